"""All records that can be reached from given ones, in one pass.

The loop over records is written for the classes at hand and compiled (`_source` has its text): it reads each field by
name and appends to one list for each. On CPython that takes less time than reading one field after the other from a
block of records by `map` and `attrgetter` (`benchmarks/pack.py`). Records are visited level by level, the trees of a
few roots at a time, so that reads are close together in memory; lists become arrays when they are long.

In a forest of trees each record is met once, and gets the next row when it is met. The identities of all records met
are checked for repeats each time there are four times as many. If a record was met twice, the walk begins again
with a loop that looks each record up in a table.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.records.schema import Field, Schema
from lanewise.records.values import Taken, Wrong, listed, taker

_ROOTS = 64  # whose trees are visited together
_LONG = 4096  # lists of this many records become arrays


class _Shared(Exception):
    """A record was met twice."""


@dataclasses.dataclass
class Column:
    """The values that the records of one class have in one field, in the order of their rows."""

    field: Field
    take: Callable[[list[Any]], Taken]
    sizes: list[Any] = dataclasses.field(default_factory=list)  # of lists
    values: list[Any] = dataclasses.field(default_factory=list)
    present: list[Any] = dataclasses.field(
        default_factory=list
    )  # whether a value is not None, where it may be
    rows: list[Any] = dataclasses.field(default_factory=list)  # of records, -1 for None

    def add(self, sizes: list[int], found: list[Any], shared: bool) -> None:
        """Take what the loop has collected; the lists are empty afterwards."""
        kept = self.field.item
        consecutive = kept is not None and _is_consecutive(kept, shared)
        lengths = np.fromiter(sizes, np.int64, len(sizes))
        if self.field.what == "many":
            self.sizes.append(lengths)
            sizes.clear()
        if (self.field.item or self.field).what == "one":
            rows = np.fromiter(found, np.int32, len(found))
            if consecutive:
                before = np.cumsum(lengths) - lengths
                rows = np.repeat(rows + 1 - before, lengths) + np.arange(lengths.sum())
            self.rows.append(rows.astype(np.int32, copy=False))
        else:
            values, present = self.take(found)
            self.values.append(values)
            if present is not None:
                self.present.append(present)
        found.clear()


@dataclasses.dataclass
class Walk:
    """The records found. Rows of a kind begin with 1."""

    schema: Schema
    root: int  # the kind of the roots
    shared: bool  # whether a record is referred to twice
    columns: dict[type, list[Column]]
    roots: list[int] = dataclasses.field(default_factory=list)  # their rows
    # For each kind, in the order of rows: the records, and which class of the kind each has.
    records: list[list[Any]] = dataclasses.field(default_factory=list)
    tags: list[np.ndarray] = dataclasses.field(default_factory=list)

    def rows_of(self, cls: type) -> np.ndarray:
        kind = self.schema.kind_of[cls]
        return np.flatnonzero(self.tags[kind] == self.schema.kinds[kind].classes.index(cls)) + 1


def walk(roots: Sequence[Any], schema: Schema, root: int, codes: Mapping[str, Any]) -> Walk:
    """Visit all records that can be reached; `root` is the kind of the first. Raises `Wrong`."""
    try:
        try:
            return _walk(roots, schema, root, codes, shared=False)
        except _Shared:
            return _walk(roots, schema, root, codes, shared=True)
    except (AttributeError, TypeError):
        raise Wrong from None


def _walk(
    roots: Sequence[Any], schema: Schema, root: int, codes: Mapping[str, Any], shared: bool
) -> Walk:
    columns = {cls: _columns(schema, cls, codes) for cls in schema.kind_of}
    walked = Walk(schema, root, shared, columns, records=[[] for _ in schema.kinds])
    lists: list[tuple[list[Any], list[Any]]] = [([], []) for each in columns.values() for _ in each]
    tags: list[list[int]] = [[] for _ in schema.kinds]
    known: list[dict[int, int]] = [{id(None): -1} for _ in schema.kinds]
    met = _Met()
    visit = _compiled(schema, root, shared)
    counts: tuple[int, ...] = (0,) * len(schema.kinds)
    waiting = 0

    def flush() -> None:
        for (sizes, found), column in zip(lists, (c for each in columns.values() for c in each)):
            column.add(sizes, found, shared)

    for first in range(0, len(roots), _ROOTS):
        part = roots[first : first + _ROOTS]
        counts, found = visit(part, walked.roots, lists, tags, known, counts, met.limit, met.check)
        for kept, new in zip(walked.records, found, strict=True):
            kept += new
            waiting += len(new)
        if not shared:
            met.add(found)
        if waiting > _LONG:
            flush()
            waiting = 0
    flush()
    if not shared:
        met.check(())
    for kind, count, each in zip(schema.kinds, counts, tags, strict=True):
        one = len(kind.classes) == 1
        walked.tags.append(np.zeros(count, np.int8) if one else np.array(each, np.int8))
    return walked


def _columns(schema: Schema, cls: type, codes: Mapping[str, Any]) -> list[Column]:
    found = []
    for each in schema.kinds[schema.kind_of[cls]].fields_of(cls):
        kept = each.item or each
        if kept.what != "text" or each.name in schema.coded:
            found.append(Column(each, taker(kept, codes.get(each.name))))
    return found


# -- the loop ----------------------------------------------------------------------------------

_loops: dict[tuple[Schema, int, bool], Callable[..., Any]] = {}


def _compiled(schema: Schema, root: int, shared: bool) -> Callable[..., Any]:
    key = (schema, root, shared)
    if key not in _loops:
        classes = {f"C{i}": cls for i, cls in enumerate(schema.kind_of)}
        names: dict[str, Any] = {
            **classes,
            "Wrong": Wrong,
            "length": list.__len__,
            "listed": listed,
        }
        exec(_source(schema, root, shared), names)
        _loops[key] = names["visit"]
    return _loops[key]


def _source(schema: Schema, root: int, shared: bool) -> str:
    """The text of the loop.

    `n0` is the last row of kind 0 so far, `nodes0` its records in the order of their rows and `i0` how many of them
    were visited; `s3` and `f3` are the sizes and the values in column 3.
    """
    kinds = range(len(schema.kinds))
    lines = [
        "def visit(roots, rows, lists, tags, known, counts, limit, check):",
        f"    {_tuple(f'n{k}' for k in kinds)} = counts",
        f"    {_tuple(f't{k}' for k in kinds)} = tags",
        f"    {_tuple(f'known{k}' for k in kinds)} = known",
        *(f"    nodes{k}, i{k} = [], 0" for k in kinds),
    ]
    body: list[str] = []
    column = 0
    for k, kind in enumerate(schema.kinds):
        body += [
            f"        part = nodes{k}[i{k}:]",
            f"        i{k} = len(nodes{k})",
            "        for x in part:",
            "            c = type(x)",
        ]
        for place, cls in enumerate(kind.classes):
            name = f"C{list(schema.kind_of).index(cls)}"
            body.append(f"            {'el' if place else ''}if c is {name}:")
            if len(kind.classes) > 1:
                body.append(f"                t{k}.append({place})")
            else:
                body.append("                pass")
            for each in _columns(schema, cls, {}):
                body += [" " * 16 + line for line in _of_field(schema, each.field, column, shared)]
                column += 1
        body += ["            else:", "                raise Wrong"]
    together = _tuple(f"nodes{k}" for k in kinds)
    pairs = _tuple(f"(s{c}, f{c})" for c in range(column))
    return "\n".join(
        [
            *lines,
            f"    {pairs} = lists",
            "    for y in roots:",
            *("        " + line for line in _of_record(root, True, "rows", shared)),
            f"    while {' or '.join(f'i{k} < len(nodes{k})' for k in kinds)}:",
            f"        if {' + '.join(f'len(nodes{k})' for k in kinds)} > limit:",
            f"            limit = check({together})" if not shared else "            pass",
            *body,
            f"    return {_tuple(f'n{k}' for k in kinds)}, {together}",
            "",
        ]
    )


def _tuple(parts: Any) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def _of_field(schema: Schema, field: Field, column: int, shared: bool) -> list[str]:
    """The code for one field of the record `x`."""
    if field.what == "one":
        lines = _of_record(schema.target(field), field.optional, f"f{column}", shared)
        return [f"y = x.{field.name}", *lines]
    if field.item is None:
        return [f"f{column}.append(x.{field.name})"]
    begin = [
        f"ys = x.{field.name}",
        "try: m = length(ys)",
        "except TypeError: m = len(listed(ys))",
        f"s{column}.append(m)",
    ]
    if field.item.what != "one":
        return [*begin, f"f{column}.extend(ys)"]
    k = schema.target(field.item)
    if _is_consecutive(field.item, shared):
        # The rows of a list follow each other: the one before the first determines all.
        more = [f"    nodes{k}.extend(ys)", f"    n{k} += m"]
        return [*begin, f"f{column}.append(n{k})", "if m:", *more]
    lines = _of_record(k, field.item.optional, f"f{column}", shared)
    return [*begin, "for y in ys:", *("    " + line for line in lines)]


def _is_consecutive(item: Field, shared: bool) -> bool:
    """Whether the records of a list have rows that follow each other."""
    return item.what == "one" and not (shared or item.optional)


def _of_record(k: int, optional: bool, into: str, shared: bool) -> list[str]:
    """The code for a record `y` of kind `k` that was met: its row is appended."""
    if shared:
        new = [f"    n{k} += 1", f"    known{k}[id(y)] = r = n{k}", f"    nodes{k}.append(y)"]
        test = [] if optional else ["if y is None: raise Wrong"]
        return [*test, f"r = known{k}.get(id(y))", "if r is None:", *new, f"{into}.append(r)"]
    new = [f"n{k} += 1", f"nodes{k}.append(y)", f"{into}.append(n{k})"]
    if not optional:  # None is met as a record, of no class that there is
        return new
    return [f"if y is None: {into}.append(-1)", "else:", *("    " + line for line in new)]


# -- whether a record was met twice ----------------------------------------------------------------


class _Met:
    """Looks for a record that was met twice, each time there are four times as many."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.count = 0
        self.checked = 0

    @property
    def limit(self) -> int:
        """How many more records may be met before a check."""
        return max(4 * self.checked + _LONG - self.count, 0)

    def add(self, found: Sequence[list[Any]]) -> None:
        for records in found:
            self.parts.append(_identities(records))
            self.count += len(records)

    def check(self, more: Sequence[list[Any]]) -> int:
        """Raise if one was, `more` included, which are to be added later; returns the new limit."""
        every = np.sort(
            np.concatenate([np.empty(0, np.int64), *self.parts, *map(_identities, more)])
        )
        if (every[1:] == every[:-1]).any():
            raise _Shared
        self.checked = len(every)
        return self.limit


def _identities(records: list[Any]) -> np.ndarray:
    """The `id` of each record.

    In CPython an array of objects holds their addresses, which are what `id` gives: they are read as numbers, at a
    third of the cost of calling `id`.
    """
    if not _ADDRESSES:
        return np.fromiter(map(id, records), np.int64, len(records))
    found = np.fromiter(records, object, len(records))
    view = _View()
    view.__array_interface__ = {
        "data": (found.__array_interface__["data"][0], True),
        "shape": found.shape,
        "typestr": np.dtype(np.int64).str,
        "version": 3,
    }
    return np.array(view)


class _View:
    """Memory that NumPy reads."""

    __slots__ = ("__array_interface__",)


_ADDRESSES = sys.implementation.name == "cpython" and np.dtype(object).itemsize == 8
