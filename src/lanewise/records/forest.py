"""Packed records: one array for each field."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import InternalError, OptionError, RecordError
from lanewise.core.objects import Held, take_as
from lanewise.records.blame import blame
from lanewise.records.cycles import has_cycle
from lanewise.records.reference import Many, Reference, Store, at_row
from lanewise.records.schema import Field, Schema, is_record, on_record, schema_of
from lanewise.records.values import Wrong
from lanewise.records.walk import Column, Walk, rows_in_order, walk

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


class Forest(Held):
    """Records as arrays. `lanewise.vmap` of a program over a forest runs it for each root.

    `forest[i]` is a reference to the i-th root, `forest.roots` to all of them and `forest.nodes` to every record of
    the roots' kind. A forest is a pytree; capacities of its arrays are bucketed, so that forests of about one size have
    one type, and a program compiled for one serves the other.
    """

    __slots__ = ("_index", "_kind", "_objects", "_store")

    def __init__(self, index: Any, store: Any, kind: int, objects: Any = None) -> None:
        self._index = index
        self._store = store
        self._kind = kind
        self._objects = objects

    @property
    def roots(self) -> Reference:
        """References to the records that were packed, in their order."""
        return Reference(self._index, self._store, self._store.schema, self._kind)

    @property
    def nodes(self) -> Reference:
        """References to every record of the roots' kind, in the order of `objects`; those beyond are None."""
        return self.nodes_of(self._kind)

    def nodes_of(self, kind: Any) -> Reference:
        """References to every record of the kind that a class belongs to."""
        schema = self._store.schema
        if isinstance(kind, type):
            if kind not in schema.kind_of:
                raise OptionError(f"the forest has no {kind.__name__}; it has {schema}.")
            kind = schema.kind_of[kind]
        row = jnp.arange(1, self._capacity(kind), dtype=jnp.int32)
        index = jnp.where(row <= self._store.counts[kind], row, -1)
        return Reference(index, self._store, schema, kind)

    @property
    def axes(self) -> Any:
        """`in_axes` of `jax.vmap` for `roots` and `nodes`: lanes have a reference each, and share the arrays."""
        return self.roots._lw_lanes(0)[1]

    def _capacity(self, kind: int) -> int:
        return self._store.tags[kind].shape[0]

    @property
    def size(self) -> Any:
        """How many records of the roots' kind there are."""
        return self._store.counts[self._kind]

    @property
    def objects(self) -> list[Any]:
        """The records themselves, of the roots' kind: answers at `nodes` are in this order."""
        if self._objects is None:
            raise RecordError(
                "this forest has been through a transformation; `pack` gave one with objects."
            )
        return self._objects()

    def __len__(self) -> int:
        return self._index.shape[0]

    def __getitem__(self, place: Any) -> Any:
        return self.roots[place]

    def at(self, found: Any) -> Any:
        """References that a program returned, or row numbers, with this forest to point into."""
        if isinstance(found, Reference | Many):
            return found._lw_held_by([self])
        return Reference(jnp.asarray(found, jnp.int32), self._store, self._store.schema, self._kind)

    def rows(self, found: Reference) -> Any:
        """The row numbers of references: an answer at `nodes` for row r is the (r - 1)-th, and -1 is None."""
        return found._index

    def values(self, name: str) -> Any:
        """The column of a field of the roots' kind: a row for each record, after one for None."""
        column = self._column(name)
        return column["value"] if isinstance(column, dict) and "value" in column else column

    def _column(self, name: str) -> Any:
        columns = self._store.columns[self._kind]
        if name not in columns:
            raise OptionError(f"the forest has no column {name!r}; it has {sorted(columns)}.")
        return columns[name]

    def replace(self, **columns: Any) -> Forest:
        """The forest with other values in some columns of the roots' kind, as `values` gives them."""
        store = self._store
        mine = dict(store.columns[self._kind])
        for name, new in columns.items():
            old = self._column(name)
            nested = isinstance(old, dict) and "value" in old
            shape = (old["value"] if nested else old).shape
            if jnp.shape(new)[:1] != shape[:1]:
                raise OptionError(f"{name}: the column has {shape[0]} rows; got {jnp.shape(new)}.")
            mine[name] = {**old, "value": new} if nested else new
        every = tuple(mine if i == self._kind else c for i, c in enumerate(store.columns))
        new_store = Store(
            store.schema, store.most, store.none_roots, every, store.tags, store.counts
        )
        return Forest(self._index, new_store, self._kind, self._objects)

    def __repr__(self) -> str:
        try:
            counts = [int(n) for n in self._store.counts]
        except Exception:
            return "<forest, traced>"
        kinds = self._store.schema.kinds
        told = ", ".join(f"{n} {kind.name}" for n, kind in zip(counts, kinds, strict=True))
        return f"<forest of {len(self)}: {told}>"

    def _lw_parts(self) -> tuple[Any, ...]:
        return (self._index,)

    def _lw_with(self, parts: Sequence[Any]) -> Forest:
        return Forest(parts[0], self._store, self._kind)

    def _lw_type(self) -> Any:
        return (Forest, self.roots._lw_type())

    def _lw_is_none(self) -> bool:
        return False

    def _lw_truth(self) -> bool:
        return len(self) > 0

    def _lw_loose(self) -> Forest:
        return self

    def _lw_lanes(self, axis: int) -> tuple[Any, Any]:
        return self.roots._lw_lanes(axis)


jax.tree_util.register_pytree_node(
    Forest,
    lambda forest: ((forest._index, forest._store), forest._kind),
    lambda kind, parts: Forest(*parts, kind),
)


def pack(
    records: Sequence[Any],
    *,
    of: Any = None,
    codes: Mapping[str, Mapping[str, int] | Callable[[str], int]] | None = None,
    like: Forest | None = None,
) -> Forest:
    """Records, and all that they refer to, as arrays.

    A record that is referred to twice is packed once. `of` are the classes that the records may have (`Leaf | Node`),
    where a batch need not show all of them. `codes` gives the number of each string, by field; a field of
    strings without codes is left out. `like` is another forest whose capacities are the least that this one has: what
    was compiled for that forest serves this one, unless it is larger.

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
    roots = list(records)
    codes = {} if codes is None else codes
    schema, kind = _schema(roots, codes, like, of)
    try:
        walked = walk(roots, schema, kind, codes)
        if walked.rows is not None and has_cycle(walked):
            raise Wrong
    except Wrong:
        raise blame("trees", roots, schema, codes) or InternalError(
            "records do not fit their annotations, and none was found that does not."
        ) from None
    with _jax.our_transfers():
        return _packed(walked, roots, like, codes)


def _reference_to(record: Any) -> Reference:
    return pack([record]).roots[0]


on_record(lambda cls: take_as(cls, _reference_to))


def _schema(
    roots: Sequence[Any], codes: Mapping[str, Any], like: Forest | None, of: Any
) -> tuple[Schema, int]:
    classes = set(map(type, roots)) | set(typing.get_args(of) or ([of] if of else []))
    classes -= {type(None)}
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
            "there is no record to tell the class of what is packed. Give `of=` or `like=`."
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
    columns: list[dict[str, Any]] = []
    tags = []
    most: dict[str, int] = {} if old is None else dict(old.most)
    for k, kind in enumerate(schema.kinds):
        capacity = bucket(walked.counts[k] + 1)
        if old is not None:
            capacity = max(capacity, old.tags[k].shape[0])
        rows = {cls: rows_in_order(walked.blocks[cls]) for cls in kind.classes}
        tag = np.full(capacity, -1, np.int8)
        for place, cls in enumerate(kind.classes):
            tag[rows[cls]] = place
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
            filler = _Filler(walked, field, capacity, before)
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
    counts = tuple(np.int32(n) for n in walked.counts)
    # Where annotations say that records of this kind may be None there is nothing to add.
    none_roots = not schema.kinds[walked.root].optional and (
        (old is not None and old.none_roots) or any(root is None for root in roots)
    )
    store = Store(
        schema, tuple(sorted(most.items())), none_roots, tuple(columns), tuple(tags), counts
    )
    with jax.ensure_compile_time_eval():
        index, store = jax.device_put((walked.roots_of(roots), store))
    return Forest(index, store, walked.root, lambda: _objects(walked, walked.root))


def bucket_of_items(count: int) -> int:
    """A bound on the length of lists, in steps that repeat: 2, 4, 8, 16, then those of `bucket`."""
    return bucket(count) if count > 8 else max(2, 1 << max(count - 1, 0).bit_length())


class _Filler:
    """One column being filled."""

    def __init__(self, walked: Walk, field: Field, capacity: int, before: Any) -> None:
        self.walked = walked
        self.field = field
        self.capacity = capacity
        self.before = before
        self.shape_found = self.shape_wanted = ""

    def fill(self, found: Sequence[tuple[np.ndarray, Column]]) -> Any:
        if self.field.what == "many":
            return self._lists(found)
        if self.field.what == "one":
            column = np.full(self.capacity, -1, np.int32)
            target = self.walked.schema.target(self.field)
            for rows, each in found:
                column[rows] = self.walked.rows_of(each, target)
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
        found: Sequence[tuple[np.ndarray, Column]],
        capacity: int,
        rows: Sequence[np.ndarray],
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

    def _lists(self, found: Sequence[tuple[np.ndarray, Column]]) -> dict[str, np.ndarray]:
        item = self.field.item
        assert item is not None
        begin, size = (np.zeros(self.capacity, np.int32) for _ in range(2))
        total, places = 0, []
        for rows, each in found:
            sizes = np.concatenate([np.empty(0, np.int64), *each.sizes])
            size[rows] = sizes
            begin[rows] = total + np.cumsum(sizes) - sizes
            places.append(np.arange(total, total + sizes.sum()))
            total += int(sizes.sum())
        capacity = bucket(total)
        if self.before is not None:
            capacity = max(capacity, self.before["items"].shape[0])
        if item.what == "one":
            items = np.full(capacity, -1, np.int32)
            for at, (_, each) in zip(places, found, strict=True):
                items[at] = self.walked.rows_of(each, self.walked.schema.target(item))
        else:
            before = None if self.before is None else self.before["items"]
            items = self._values(item, found, capacity, places, before)
        return {"begin": begin, "size": size, "items": items}


def _type(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{dtype.name}[{','.join(map(str, shape))}]"


def _objects(walked: Walk, kind: int) -> list[Any]:
    """The records of a kind by row."""
    found: list[Any] = [None] * walked.counts[kind]
    for cls in walked.schema.kinds[kind].classes:
        rows = rows_in_order(walked.blocks[cls]).tolist()
        for row, record in zip(rows, walked.kept[cls], strict=True):
            found[row - 1] = record
    return found


__all__ = ["Forest", "at_row", "bucket", "pack"]
