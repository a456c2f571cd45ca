"""Lists of records as arrays: `pack`."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import InternalError, OptionError, RecordError
from lanewise.core.objects import take_as
from lanewise.records.blame import blame
from lanewise.records.cycles import has_cycle
from lanewise.records.forest import Forest
from lanewise.records.reference import Reference, Store
from lanewise.records.schema import Field, Schema, is_record, on_record, schema_of
from lanewise.records.values import Wrong
from lanewise.records.walk import Column, Walk, walk

_STEP = 16  # capacities are multiples of this


def bucket(count: int) -> int:
    """A capacity for this many rows, in steps of a quarter.

    >>> [bucket(n) for n in (0, 16, 17, 1000)]
    [16, 16, 32, 1200]
    """
    size = _STEP
    while size < count:
        size = math.ceil(size * 1.25 / _STEP) * _STEP
    return size


def pack(
    records: Sequence[Any],
    *,
    of: Any = None,
    codes: Mapping[str, Mapping[str, int] | Callable[[str], int]] | None = None,
    like: Forest | None = None,
) -> Forest:
    """Records, and everything that they refer to, as arrays.

    A record that is referred to twice is packed once. `of` are the classes that the records may have (`Leaf | Node`),
    where a batch may lack some of them. `codes` gives the number of each string, by field; a field of
    strings without codes is left out. `like` is another forest, whose capacities are lower bounds for this one: code
    compiled for that forest runs this one, unless it is larger.

    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.record
    ... class Tree:
    ...     label: int
    ...     left: "Tree | None" = None
    ...     right: "Tree | None" = None
    >>> @lw.program
    ... def depth(tree):
    ...     if tree is None:
    ...         return 0
    ...     return 1 + jnp.maximum(depth(tree.left), depth(tree.right))
    >>> forest = lw.pack([Tree(1), Tree(2, Tree(3), Tree(4, Tree(5)))])
    >>> forest
    <forest of 2: 5 Tree>
    >>> lw.vmap(depth)(forest).tolist()
    [1, 3]
    >>> forest[1].right.left.label.item()
    5
    """
    roots, codes = _listed(records), _checked(codes)
    if like is not None and not isinstance(like, Forest):
        raise OptionError(
            f"like={like!r:.60} is a {type(like).__name__}; it takes a forest that `pack` gave before."
        )
    schema, kind = _schema(roots, codes, like, of)
    try:
        walked = walk(roots, schema, kind, codes)
        if walked.shared and has_cycle(walked):
            raise Wrong
    except Wrong:
        raise blame("trees", roots, schema, codes) or InternalError(
            "records do not fit their annotations, and none was found that does not."
        ) from None
    with _jax.our_transfers():
        return _packed(walked, roots, like, codes)


def _listed(records: Any) -> list[Any]:
    if is_record(type(records)):
        raise RecordError(
            f"`pack` takes a list of records, and got one {type(records).__name__}: give `pack([record])`."
        )
    if isinstance(records, Forest | Reference):
        raise RecordError("`pack` takes a list of records, and got what is packed already.")
    try:
        return list(records)
    except TypeError:
        raise RecordError(
            f"`pack` takes a list of records, and got {records!r:.60} ({type(records).__name__})."
        ) from None


def _checked(codes: Any) -> Mapping[str, Any]:
    if codes is None:
        return {}
    if not isinstance(codes, Mapping):
        raise OptionError(
            f"codes={codes!r:.60} is a {type(codes).__name__}; it takes the codes of each field by its name, as in"
            ' `codes={"word": {"a": 0, "b": 1}}`.'
        )
    for name, each in codes.items():
        if not (isinstance(each, Mapping) or callable(each)):
            raise OptionError(
                f"codes={{{name!r}: {each!r:.60}}}: the codes of a field are a dictionary or a function from a str to"
                f" its number, and this is a {type(each).__name__}."
            )
    return codes


def _reference_to(record: Any) -> Reference:
    return pack([record]).roots[0]


on_record(lambda cls: take_as(cls, _reference_to))


def _schema(
    roots: Sequence[Any], codes: Mapping[str, Any], like: Forest | None, of: Any
) -> tuple[Schema, int]:
    given = typing.get_args(of) or ([] if of is None else [of])
    for each in given:
        if not isinstance(each, type):
            raise OptionError(
                f"of={each!r:.60} is no class; give the classes that records may have, as in `of=Leaf | Node`."
            )
    classes = {*map(type, roots), *given} - {type(None)}
    for cls in classes:
        if not is_record(cls):
            place = next((i for i, each in enumerate(roots) if type(each) is cls), None)
            if place is None:
                raise OptionError(f"of={of!r}: {cls.__name__} has no @lanewise.record.")
            raise RecordError(
                f"trees[{place}] is of class {cls.__name__}; `pack` takes records, of classes with @lanewise.record."
            )
    if like is not None:
        known = like._store.schema
        if all(known.kind_of.get(cls) == like._kind for cls in classes):
            return known, like._kind
    if not classes:
        raise RecordError(
            "there is no record that shows the class of what is packed. Give `of=` or `like=`."
        )
    schema = schema_of(classes, codes)
    for name in codes:
        fields = [kind.fields[name] for kind in schema.kinds if name in kind.fields]
        if not any((f.item or f).what == "text" for f in fields):
            raise OptionError(f"codes={name!r}: {schema} has no field of strings with that name.")
    return schema, schema.kind_of[next(iter(classes))]


def _packed(
    walked: Walk, roots: Sequence[Any], like: Forest | None, codes: Mapping[str, Any]
) -> Forest:
    schema = walked.schema
    old = None if like is None or like._store.schema is not schema else like._store
    # Where annotations say that records of this kind may be None there is nothing to add.
    none_roots = not schema.kinds[walked.root].optional and (
        (old is not None and old.none_roots) or any(root is None for root in roots)
    )
    columns: list[dict[str, Any]] = []
    tags = []
    most: dict[str, int] = {} if old is None else dict(old.most)
    for k, kind in enumerate(schema.kinds):
        count = len(walked.records[k])
        capacity = bucket(count + 1)
        if old is not None:
            capacity = max(capacity, old.tags[k].shape[0])
        one = len(kind.classes) == 1
        rows = {cls: slice(1, count + 1) if one else walked.rows_of(cls) for cls in kind.classes}
        tag = np.full(capacity, -1, np.int8)
        tag[1 : count + 1] = walked.tags[k]
        if not (kind.optional or (none_roots and k == walked.root)):
            tag[0] = schema.ends[k]
        tags.append(tag)
        made: dict[str, Any] = {}
        for name, field in kind.fields.items():
            found = [
                (rows[cls], column)
                for cls in kind.classes
                for column in walked.columns[cls]
                if column.field.name == name
            ]
            if not found:
                continue
            before = None if old is None else old.columns[k][name]
            filler = _Filler(field, capacity, before)
            try:
                made[name] = filler.fill(found)
            except Wrong:
                raise blame("trees", roots, schema, codes) or RecordError(
                    f"{kind.name}.{name}: arrays are {filler.shape_found}, and those of the forest given as `like` are"
                    f" {filler.shape_wanted}."
                ) from None
            if field.what == "many":
                longest = max(
                    (int(s.max()) for _, c in found for s in c.sizes if len(s)), default=0
                )
                at = f"{k}.{name}"
                most[at] = max(bucket_of_items(longest), most.get(at, 0))
        columns.append(made)
    counts = tuple(np.int32(len(each)) for each in walked.records)
    store = Store(
        schema, tuple(sorted(most.items())), none_roots, tuple(columns), tuple(tags), counts
    )
    with jax.ensure_compile_time_eval():
        index, store = jax.device_put((np.array(walked.roots, np.int32), store))
    return Forest(index, store, walked.root, walked.records[walked.root])


def bucket_of_items(count: int) -> int:
    """A bound on the length of lists, in steps that repeat: 2, 4, 8, 16, then those of `bucket`."""
    return bucket(count) if count > 8 else max(2, 1 << max(count - 1, 0).bit_length())


_Rows = slice | np.ndarray


class _Filler:
    """One column being filled."""

    def __init__(self, field: Field, capacity: int, before: Any) -> None:
        self.field = field
        self.capacity = capacity
        self.before = before
        self.shape_found = self.shape_wanted = ""

    def fill(self, found: Sequence[tuple[_Rows, Column]]) -> Any:
        if self.field.what == "many":
            return self._lists(found)
        if self.field.what == "one":
            column = np.full(self.capacity, -1, np.int32)
            for rows, each in found:
                column[rows] = np.concatenate(each.rows) if each.rows else -1
            return column
        before = self.before["value"] if self.field.optional and self.before else self.before
        values = self._values(self.field, found, self.capacity, [rows for rows, _ in found], before)
        if not self.field.optional:
            return values
        present = np.zeros(self.capacity, np.bool_)
        for rows, each in found:
            present[rows] = np.concatenate(each.present) if each.present else True
        return {"value": values, "present": present}

    def _values(
        self,
        field: Field,
        found: Sequence[tuple[_Rows, Column]],
        capacity: int,
        rows: Sequence[_Rows],
        before: Any,
    ) -> np.ndarray:
        parts = [[v for v in each.values if len(v)] for _, each in found]
        types = {(v.shape[1:], v.dtype) for part in parts for v in part}
        if before is not None and field.dtype is None:
            wanted = (before.shape[1:], np.dtype(before.dtype))
            self.shape_wanted = _type(*wanted)
            self.shape_found = _type(*next(iter(types), wanted))
            types.add(wanted)
        if len(types) > 1:
            raise Wrong
        shape, dtype = next(iter(types), ((), field.dtype or np.dtype(np.float32)))
        column = np.zeros((capacity, *shape), dtype)
        for at, part in zip(rows, parts, strict=True):
            if part:
                column[at] = np.concatenate(part)
        return column

    def _lists(self, found: Sequence[tuple[_Rows, Column]]) -> dict[str, np.ndarray]:
        item = self.field.item
        assert item is not None
        begin, size = (np.zeros(self.capacity, np.int32) for _ in range(2))
        total, places = 0, []
        for rows, each in found:
            sizes = np.concatenate([np.empty(0, np.int64), *each.sizes])
            size[rows] = sizes
            begin[rows] = total + np.cumsum(sizes) - sizes
            places.append(slice(total, total + int(sizes.sum())))
            total += int(sizes.sum())
        capacity = bucket(total)
        if self.before is not None:
            capacity = max(capacity, self.before["items"].shape[0])
        if item.what == "one":
            items = np.full(capacity, -1, np.int32)
            for at, (_, each) in zip(places, found, strict=True):
                items[at] = np.concatenate(each.rows) if each.rows else -1
        else:
            before = None if self.before is None else self.before["items"]
            items = self._values(item, found, capacity, places, before)
        return {"begin": begin, "size": size, "items": items}


def _type(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{dtype.name}[{','.join(map(str, shape))}]"
