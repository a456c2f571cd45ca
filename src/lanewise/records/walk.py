"""All records that can be reached from some, in one pass.

Records are visited in blocks. A block is asked for one field at a time, by C code (`map`, `attrgetter`, `np.fromiter`),
so nothing of ours is called for a single record. What a block refers to is the next block; a block that is large is
split, and each part followed to its end before the next begins, so that what is read was close in memory.

In a forest of trees each record is met once, and gets its row when it is met: the rows of a field are consecutive
numbers. Whether that holds is checked by the identities of all records met, each time there are four times as many. If a
record was met twice, the walk begins again and looks each record up in a table.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from lanewise.records.schema import Field, Schema
from lanewise.records.values import Wrong, taker

_BLOCK = 1024
_NONE = id(None)


class Shared(Exception):
    """A record was met twice."""


@dataclass
class Column:
    """What the records of one class have in one field, block after block."""

    field: Field
    get: Callable[[Any], Any]
    take: Callable[[list[Any]], tuple[np.ndarray, np.ndarray | None]]
    values: list[np.ndarray] = field(default_factory=list)
    present: list[np.ndarray] = field(default_factory=list)  # of values that may be None
    sizes: list[np.ndarray] = field(default_factory=list)  # of lists
    # Of records: their identities, and in a forest of trees the row of the first of each block.
    ids: list[np.ndarray] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)


@dataclass
class Walk:
    """What was found. Rows of a kind begin with 1."""

    schema: Schema
    columns: dict[type, list[Column]]
    counts: list[int]  # of rows, for each kind
    # The rows of the records of each class: the first of each block, and how many.
    blocks: dict[type, list[tuple[np.ndarray | int, int]]]
    rows: list[dict[int, int]] | None  # for each kind, by identity; None in a forest of trees
    root: int  # the kind of the roots
    kept: dict[type, list[Any]]  # the records of each class, as they were visited

    def roots_of(self, roots: Sequence[Any]) -> np.ndarray:
        _, ids = _identities(roots, len(roots))
        if self.rows is not None:
            return _looked_up(self.rows[self.root], ids)
        return np.where(ids != _NONE, np.cumsum(ids != _NONE), -1).astype(np.int32)

    def rows_of(self, column: Column, target: int) -> np.ndarray:
        """The rows that a field of records refers to, -1 for None."""
        ids = np.concatenate([np.empty(0, np.int64), *column.ids])
        if self.rows is not None:
            return _looked_up(self.rows[target], ids)
        there = ids != _NONE
        before = np.cumsum(there) - there
        lengths = np.array([len(part) for part in column.ids], np.int64)
        at = np.cumsum(lengths) - lengths
        some = lengths > 0
        shift = np.array(column.begins, np.int64)[some] - before[at[some]]
        return np.where(there, before + np.repeat(shift, lengths[some]), -1).astype(np.int32)


def _looked_up(rows: dict[int, int], ids: np.ndarray) -> np.ndarray:
    return np.fromiter(map(rows.__getitem__, ids.tolist()), np.int32, len(ids))


def _identities(records: Iterable[Any], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Records as an array of objects, and the `id` of each.

    In CPython an array of objects holds their addresses, which are what `id` gives: they are read as numbers, at a
    third of the cost of calling `id`.
    """
    found = np.fromiter(records, object, count)
    if not _ADDRESSES:
        return found, np.fromiter(map(id, found), np.int64, count)
    view = _View()
    address = found.__array_interface__["data"][0]
    view.__array_interface__ = {
        "data": (address, True),
        "shape": (count,),
        "typestr": np.dtype(np.int64).str,
        "version": 3,
    }
    return found, np.array(view)


class _View:
    """Memory that NumPy reads."""

    __slots__ = ("__array_interface__",)


_ADDRESSES = sys.implementation.name == "cpython" and np.dtype(object).itemsize == 8


def walk(roots: Sequence[Any], schema: Schema, root: int, codes: Mapping[str, Any]) -> Walk:
    """Visit all records that can be reached; `root` is the kind of the first."""
    try:
        return _walk(roots, schema, root, codes, shared=False)
    except Shared:
        return _walk(roots, schema, root, codes, shared=True)


def _walk(
    roots: Sequence[Any], schema: Schema, root: int, codes: Mapping[str, Any], shared: bool
) -> Walk:
    columns = {cls: _columns(schema, cls, codes) for cls in schema.kind_of}
    rows: list[dict[int, int]] = [{_NONE: -1} for _ in schema.kinds]
    counts = [0] * len(schema.kinds)
    blocks: dict[type, list[Any]] = {cls: [] for cls in columns}
    kept: dict[type, list[Any]] = {cls: [] for cls in columns}
    met = _Met()
    work: list[tuple[int, list[Any], int]] = []
    pending: list[list[Any]] = [[] for _ in schema.kinds]  # what the block at hand refers to

    def meet(kind: int, records: list[Any], ids: np.ndarray) -> int:
        """Give records rows, and visit them later; the row of the first."""
        first = counts[kind] + 1
        if shared:
            known = rows[kind]
            found = dict(zip(ids.tolist(), records))
            for old in found.keys() & known.keys():
                del found[old]
            records = list(found.values())
            known.update(zip(found, range(first, first + len(found))))
        elif records:
            met.add(ids)
        counts[kind] += len(records)
        pending[kind] += records
        return first

    def flush() -> None:
        for kind, records in enumerate(pending):
            if records:
                work.append((kind, records, counts[kind] + 1 - len(records)))
                pending[kind] = []

    some = [each for each in roots if each is not None]
    meet(root, some, _identities(some, len(some))[1])
    flush()
    while work:
        kind, records, first = work.pop()
        if len(records) > _BLOCK:
            work.append((kind, records[_BLOCK:], first + _BLOCK))
            records = records[:_BLOCK]
        classes = schema.kinds[kind].classes
        types = list(map(type, records)) if len(classes) > 1 else map(type, records)
        if not set(types) <= set(classes):
            raise Wrong
        if len(classes) == 1:
            blocks[classes[0]].append((first, len(records)))
            kept[classes[0]] += records
            _visit(columns[classes[0]], records, schema, meet)
            flush()
            continue
        for cls in classes:
            places = [i for i, each in enumerate(types) if each is cls]
            if places:
                some = [records[i] for i in places]
                blocks[cls].append((first + np.array(places), len(places)))
                kept[cls] += some
                _visit(columns[cls], some, schema, meet)
        flush()
    if not shared:
        met.check()
    return Walk(schema, columns, counts, blocks, rows if shared else None, root, kept)


def _visit(
    columns: Sequence[Column],
    records: list[Any],
    schema: Schema,
    meet: Callable[[int, list[Any], np.ndarray], int],
) -> None:
    for column in columns:
        kept, found, count = column.field, map(column.get, records), len(records)
        try:
            if kept.what == "many":
                assert kept.item is not None
                lists = list(found)
                if not set(map(type, lists)) <= {list, tuple}:
                    raise Wrong
                sizes = np.fromiter(map(len, lists), np.int64, count)
                column.sizes.append(sizes)
                found, count = chain.from_iterable(lists), int(sizes.sum())
                kept = kept.item
            if kept.what != "one":
                values, present = column.take(list(found))
                column.values.append(values)
                if present is not None:
                    column.present.append(present)
                continue
            objects, ids = _identities(found, count)
        except AttributeError:
            raise Wrong from None
        column.ids.append(ids)
        there = ids != _NONE
        if not there.all():
            if not kept.optional:
                raise Wrong
            objects, ids = objects[there], ids[there]
        column.begins.append(meet(schema.target(kept), objects.tolist(), ids))


def _columns(schema: Schema, cls: type, codes: Mapping[str, Any]) -> list[Column]:
    found = []
    for each in schema.kinds[schema.kind_of[cls]].fields_of(cls):
        kept = each.item or each
        if kept.what != "text" or each.name in schema.coded:
            take = taker(kept, codes.get(each.name))
            found.append(Column(each, operator.attrgetter(each.name), take))
    return found


def rows_in_order(blocks: Sequence[tuple[Any, int]]) -> np.ndarray:
    """The rows of the records of a class, in the order in which they were visited."""
    if not blocks:
        return np.empty(0, np.int64)
    if isinstance(blocks[0][0], np.ndarray):
        return np.concatenate([rows for rows, _ in blocks])
    firsts, sizes = (np.array(x, np.int64) for x in zip(*blocks, strict=True))
    return np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


class _Met:
    """Looks for a record that was met twice, each time there are four times as many."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.count = 0
        self.checked = 0

    def add(self, ids: np.ndarray) -> None:
        self.parts.append(ids)
        self.count += len(ids)
        if self.count > 4 * self.checked + 4096:
            self.check()

    def check(self) -> None:
        if self.count == self.checked:
            return
        every = np.sort(np.concatenate(self.parts))
        if (every[1:] == every[:-1]).any():
            raise Shared
        self.parts, self.checked = [every], self.count
