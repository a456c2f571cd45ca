"""Packed records: one array for each field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise.core.errors import OptionError, RecordError
from lanewise.core.objects import Held
from lanewise.records.reference import Many, Reference, Store


class Forest(Held):
    """Records as arrays. `lanewise.vmap` of a program over a forest runs it for each root.

    `forest[i]` is a reference to the i-th root, `forest.roots` to all of them and `forest.nodes` to every record of
    the roots' kind. A forest is a pytree; capacities of its arrays are bucketed, so that forests of about one size have
    one type, and a program compiled for one runs the other.
    """

    __slots__ = ("_index", "_kind", "_objects", "_store")

    def __init__(self, index: Any, store: Any, kind: int, objects: Any = None) -> None:
        self._index = index
        self._store = store
        self._kind = kind
        self._objects = objects

    def __reduce__(self) -> tuple[Any, ...]:
        return Forest, (self._index, self._store, self._kind)

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
        return self._objects

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
        """The forest with other values in some columns of the roots' kind, given by `values`."""
        store = self._store
        mine = dict(store.columns[self._kind])
        for name, new in columns.items():
            old = self._column(name)
            nested = isinstance(old, dict) and "value" in old
            shape = jnp.shape(self.values(name))
            if jnp.shape(new)[:1] != shape[:1]:
                raise OptionError(f"{name}: the column has {shape[0]} rows; got {jnp.shape(new)}.")
            mine[name] = {**old, "value": new} if nested else new
        every = tuple(mine if i == self._kind else c for i, c in enumerate(store.columns))
        new_store = Store(
            store.schema, store.most, store.none_roots, every, store.tags, store.counts
        )
        return Forest(self._index, new_store, self._kind, self._objects)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a forest has no {name!r}. Fields are those of its records: `forest[i]`, `forest.roots`, or the argument"
            " of a program under `lanewise.vmap`."
        )

    def __repr__(self) -> str:
        try:
            counts = [int(n) for n in self._store.counts]
        except Exception:
            return "<forest, traced>"
        kinds = self._store.schema.kinds
        counted = ", ".join(f"{n} {kind.name}" for n, kind in zip(counts, kinds, strict=True))
        return f"<forest of {len(self)}: {counted}>"

    def _lw_parts(self) -> tuple[Any, ...]:
        return (self._index,)

    def _lw_with(self, parts: Sequence[Any]) -> Forest:
        return Forest(parts[0], self._store, self._kind)

    def _lw_type(self) -> Any:
        return (Forest, self.roots._lw_type())

    def _lw_is_none(self, gone: Sequence[Any] = ()) -> bool:
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
