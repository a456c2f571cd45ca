"""Records in arrays: a reference is a row number, and reading its field reads a column.

A `Store` has a column for each field of each kind, shared by all lanes. Row 0 belongs to None: numbers are zero there,
references None, lists empty. A reference to None is -1, and reads are clamped, so that they need no test.

Inside a program a reference is traced. Outside it is an ordinary object: `forest[0].left.label` gives a number, and a
field that is None gives None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise.core.errors import RecordError
from lanewise.core.objects import Held, Items
from lanewise.records.optional import Optional
from lanewise.records.schema import Field, Schema


class Store:
    """The columns of all kinds. `tags` says which class of its kind a row is of, `most` how long lists are."""

    __slots__ = ("columns", "counts", "most", "none_roots", "schema", "tags")

    def __init__(
        self,
        schema: Schema,
        most: tuple[tuple[str, int], ...],
        none_roots: bool,
        columns: Any,
        tags: Any,
        counts: Any,
    ) -> None:
        self.schema = schema
        self.most = most
        self.none_roots = none_roots
        self.columns = columns
        self.tags = tags
        self.counts = counts


jax.tree_util.register_pytree_node(
    Store,
    lambda store: (
        (store.columns, store.tags, store.counts),
        (store.schema, store.most, store.none_roots),
    ),
    lambda aux, parts: Store(*aux, *parts),
)


def _is_traced(x: Any) -> bool:
    return isinstance(x, _jax.Tracer)


def read(column: Any, row: Any) -> Any:
    """A column at a row, or at many; row 0 where it is negative."""
    if np.ndim(row) > 0:
        return jnp.asarray(column)[jnp.maximum(row, 0)]
    return lax.dynamic_index_in_dim(column, row, 0, keepdims=False, allow_negative_indices=False)


class Reference(Held):
    """A record of a packed forest, or None; or a batch of them. Its attributes are the record's fields.

    A reference that a program returns is *loose*, without the arrays it points into; `Forest.at` restores them.
    """

    __slots__ = ("_index", "_kind", "_schema", "_store")

    def __init__(self, index: Any, store: Store | None, schema: Schema, kind: int) -> None:
        put = object.__setattr__
        put(self, "_index", index)
        put(self, "_store", store)
        put(self, "_schema", schema)
        put(self, "_kind", kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return Reference, (self._index, self._store, self._schema, self._kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not a field: an attribute that Python looks up
            raise AttributeError(name)
        kind = self._schema.kinds[self._kind]
        field = kind.fields.get(name)
        if field is None:
            raise AttributeError(
                f"{kind.name} has no field {name!r}; it has {', '.join(map(repr, kind.fields))}."
            )
        if self._store is None:
            raise AttributeError(
                f"this reference to {kind.name} came out of a program, without the forest it points into. Use"
                " `forest.at(reference)`."
            )
        return self._read(field)

    def _read(self, field: Field) -> Any:
        assert self._store is not None
        kept = field.item or field
        if kept.what == "text" and field.name not in self._schema.coded:
            raise AttributeError(
                f"{self._schema.kinds[self._kind].name}.{field.name} is a str, and arrays hold numbers. Give `pack` the"
                f" number of each: `codes={{{field.name!r}: ...}}`."
            )
        column = self._store.columns[self._kind][field.name]
        if field.what == "many":
            begin, size = read(column["begin"], self._index), read(column["size"], self._index)
            return Many(begin, size, self._store, self._schema, (self._kind, field.name))
        if field.what == "one":
            return at_row(
                read(column, self._index), self._store, self._schema, self._schema.target(field)
            )
        if not field.optional:
            return read(column, self._index)
        value = read(column["value"], self._index)
        present = read(column["present"], self._index)
        if np.ndim(self._index) == 0 and not _is_traced(present):
            return value if present else None
        return Optional(value, present)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"`{name}` cannot be assigned: the records of a forest are shared by all lanes. Use"
            " `forest.replace(...)`, outside of the program."
        )

    def __eq__(self, other: object) -> Any:
        if other is None:
            return self._lw_is_none()
        raise TypeError(
            "references are compared by `is`; to compare records, compare their fields."
        )

    __hash__ = object.__hash__

    def __len__(self) -> int:
        if np.ndim(self._index) == 0:
            raise TypeError("a reference to one record has no length")
        return self._index.shape[0]

    def __getitem__(self, place: Any) -> Any:
        if np.ndim(self._index) == 0:
            raise TypeError("a reference to one record has no items; name a field")
        return at_row(self._index[place], self._store, self._schema, self._kind)

    def __repr__(self) -> str:
        name = self._schema.kinds[self._kind].name
        shown = "traced" if _is_traced(self._index) else np.asarray(self._index)
        return f"<{'loose ' if self._store is None else ''}reference to {name}: {shown}>"

    # -- where Python would ask for an object ----------------------------------------------------

    def _lw_parts(self) -> tuple[Any, ...]:
        return (self._index,)

    def _lw_with(self, parts: Sequence[Any]) -> Reference:
        return Reference(parts[0], self._store, self._schema, self._kind)

    def _lw_type(self) -> Any:
        return Reference, _Same(self._store), self._schema, self._kind

    def _lw_is_none(self, gone: Sequence[Any] = ()) -> Any:
        if all(cls in gone for cls in self._schema.kinds[self._kind].classes):
            return True
        return _plain(self._index < 0)

    def _lw_is_same(self, other: Any) -> Any:
        if not isinstance(other, Reference) or other._kind != self._kind:
            return False
        return _plain(self._index == other._index)

    def _lw_is_instance(self, cls: Any, gone: Sequence[Any] = ()) -> Any:
        classes = cls if isinstance(cls, tuple) else getattr(cls, "__args__", None) or (cls,)
        members = self._schema.kinds[self._kind].classes
        wanted = [i for i, each in enumerate(members) if any(issubclass(each, c) for c in classes)]
        if not wanted:
            return False
        left = [each for each in members if each not in gone]
        if all(members.index(each) in wanted for each in left):
            if None in gone or not self._may_be_none():
                return True
            if len(wanted) == len(members):
                return _plain(self._index >= 0)
        if self._store is None:
            raise AttributeError("a reference that came out of a program does not know its class.")
        tag = read(self._store.tags[self._kind], self._index)
        test = tag == wanted[0]
        for other in wanted[1:]:
            test = test | (tag == other)
        return _plain(test)

    def _may_be_none(self) -> bool:
        """Whether a field, or a root, may be None by its annotation; a variable of the program may be in any case."""
        none_roots = self._store is not None and self._store.none_roots
        return none_roots or self._schema.kinds[self._kind].optional

    def _lw_truth(self) -> Any:
        return _plain(self._index >= 0)

    def __bool__(self) -> bool:
        if _is_traced(self._index):
            raise TypeError("whether a reference is None is known at run time alone.")
        return bool(self._index >= 0)

    @property
    def __class__(self) -> Any:
        """Outside of programs, the class of the record: for `isinstance` and `match` in plain Python."""
        index, store = self._index, self._store
        if store is None or _is_traced(index) or not isinstance(index, jax.Array | np.integer):
            return Reference
        if np.ndim(index) > 0 or int(index) < 0:
            return Reference
        kind = self._schema.kinds[self._kind]
        tags = store.tags[self._kind]
        if len(kind.classes) == 1:
            return kind.classes[0]
        return Reference if _is_traced(tags) else kind.classes[int(tags[int(index)])]

    def _lw_none(self) -> Reference:
        return Reference(-1, self._store, self._schema, self._kind)

    def _lw_loose(self) -> Reference:
        return Reference(self._index, None, self._schema, self._kind)

    def _lw_held_by(self, others: Sequence[Held]) -> Reference:
        if self._store is not None:
            return self
        for other in others:
            store = getattr(other, "_store", None)
            if store is not None and store.schema is self._schema:
                return Reference(self._index, store, self._schema, self._kind)
        return self

    def _lw_lanes(self, axis: int) -> tuple[Any, Any]:
        return self, Reference(axis, None, self._schema, self._kind)


class _Same:
    """A store, equal to another of the same arrays."""

    __slots__ = ("store",)

    def __init__(self, store: Store | None) -> None:
        self.store = store

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return NotImplemented
        if self.store is other.store or self.store is None or other.store is None:
            return self.store is other.store
        mine, theirs = jax.tree.leaves(self.store), jax.tree.leaves(other.store)
        return len(mine) == len(theirs) and all(x is y for x, y in zip(mine, theirs))

    __hash__ = None  # type: ignore[assignment]


def _plain(test: Any) -> Any:
    """A bool where it is known."""
    return test if _is_traced(test) or np.ndim(test) > 0 else bool(test)


def at_row(index: Any, store: Store | None, schema: Schema, kind: int) -> Any:
    """A reference to a row; None where the row is known to be None's."""
    if not _is_traced(index) and np.ndim(index) == 0 and int(index) < 0:
        return None
    return Reference(index, store, schema, kind)


jax.tree_util.register_pytree_node(
    Reference,
    lambda ref: ((ref._index, ref._store), (ref._schema, ref._kind)),
    lambda aux, parts: Reference(*parts, *aux),
)


class Many(Items):
    """A field that is a list: `for`, `len`, an index and a slice work on it."""

    __slots__ = ("_begin", "_place", "_schema", "_size", "_store")

    def __init__(
        self, begin: Any, size: Any, store: Store | None, schema: Schema, place: tuple[int, str]
    ) -> None:
        self._begin = begin
        self._size = size
        self._store = store
        self._schema = schema
        self._place = place

    @property
    def _field(self) -> Field:
        kind, name = self._place
        found = self._schema.kinds[kind].fields[name].item
        assert found is not None
        return found

    def _lw_most(self) -> int:
        assert self._store is not None
        return dict(self._store.most)[f"{self._place[0]}.{self._place[1]}"]

    def _lw_length(self) -> Any:
        return self._size

    def _lw_item(self, index: Any) -> Any:
        if self._store is None:
            raise AttributeError(
                "a list that came out of a program has no items. Return its record."
            )
        kind, name = self._place
        found = read(self._store.columns[kind][name]["items"], self._begin + index)
        if self._field.what != "one":
            return found
        return at_row(found, self._store, self._schema, self._schema.target(self._field))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._slice(place)
        if not _is_traced(self._size) and not _is_traced(place):
            if not -self._size <= place < self._size:
                raise IndexError(f"index {place} is out of range: the list has {self._size} items")
        if _is_traced(place):
            return self._lw_item(jnp.where(place < 0, place + self._size, place))
        return self._lw_item(place + self._size if place < 0 else place)

    def _slice(self, part: slice) -> Many:
        if part.step not in (None, 1):
            raise RecordError(
                f"a list of a record is sliced without a step, and this one is {part.step}. Use `reversed(...)`, or"
                " a `for` over `range(start, stop, step)` and an index."
            )

        def bound(x: Any, otherwise: Any) -> Any:
            if x is None:
                return otherwise
            x = x + self._size if not _is_traced(x) and x < 0 else x
            return jnp.clip(x, 0, self._size)

        start, stop = bound(part.start, 0), bound(part.stop, self._size)
        size = jnp.maximum(stop - start, 0)
        return Many(self._begin + start, size, self._store, self._schema, self._place)

    def __len__(self) -> int:
        if _is_traced(self._size):
            raise TypeError("the length of this list is known at run time alone.")
        return int(self._size)

    def __iter__(self) -> Iterator[Any]:
        if _is_traced(self._size):
            raise RecordError(
                "the length of this list is known at run time alone. Use a `for` statement in a program, or"
                " `lanewise.arrays.map` and `reduce`."
            )
        return (self._lw_item(i) for i in range(int(self._size)))

    def __repr__(self) -> str:
        kind, name = self._place
        return f"<list {self._schema.kinds[kind].name}.{name}>"

    def _lw_parts(self) -> tuple[Any, ...]:
        return self._begin, self._size

    def _lw_with(self, parts: Sequence[Any]) -> Many:
        begin, size = parts
        return Many(begin, size, self._store, self._schema, self._place)

    def _lw_type(self) -> Any:
        return Many, _Same(self._store), self._schema, self._place

    def _lw_is_none(self, gone: Sequence[Any] = ()) -> bool:
        return False

    def _lw_is_instance(self, cls: Any, gone: Sequence[Any] = ()) -> bool:
        return cls in (list, tuple, Sequence)

    def _lw_truth(self) -> Any:
        return _plain(self._size > 0)

    def _lw_loose(self) -> Many:
        return Many(self._begin, self._size, None, self._schema, self._place)

    def _lw_held_by(self, others: Sequence[Held]) -> Many:
        if self._store is not None:
            return self
        for other in others:
            store = getattr(other, "_store", None)
            if store is not None and store.schema is self._schema:
                return Many(self._begin, self._size, store, self._schema, self._place)
        return self


jax.tree_util.register_pytree_node(
    Many,
    lambda many: ((many._begin, many._size, many._store), (many._schema, many._place)),
    lambda aux, parts: Many(*parts, *aux),
)
