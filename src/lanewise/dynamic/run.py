"""The differentiable function of a table.

`prepare` fits a table into an envelope and packs its index tables: a `Prepared`, which is a pytree of arrays. It can
be an argument of a `jax.jit` function, say a whole training step, which is then compiled once for the envelope and
not for each table. `run` prepares a table and calls it. Both are differentiable (`derivatives.py`). Inside `jit`, `run`
makes the table a constant of what is traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.profile import profile_of
from lanewise.dynamic import pack, passes
from lanewise.dynamic.derivatives import forward, rows_of
from lanewise.dynamic.envelope import Envelope, Store
from lanewise.dynamic.layout import layout
from lanewise.dynamic.order import levels
from lanewise.dynamic.table import Table, TableError, Type

STORE = Store()


@dataclass(frozen=True)
class Answer:
    """What a run gives: by type, the wanted rows.

    Where all values are answers these are arenas, `position` says where each value is in that of its type, and
    `carried_from` where the rows that were carried begin.
    """

    types: tuple[Type, ...]
    rows: tuple[Any, ...]
    position: np.ndarray | None = None
    carried_from: tuple[int, ...] = ()

    def of(self, type_: Type) -> Any:
        return self.rows[self.types.index(type_)]


def _filled(rows: Any, size: int, type_: Type, words: np.ndarray | None) -> Any:
    """Rows of payload at the beginning of `words`, or where they do not go there in an array of this many."""
    given = np.asarray(rows, type_.dtype)
    if len(given) and given.shape[1:] != type_.shape:
        raise TableError(f"payload of type {type_} has rows of shape {given.shape[1:]}.")
    if words is not None:
        if len(given):
            words[: given.size].view(type_.dtype)[:] = given.reshape(-1)
        return None
    if len(given) == size:
        return given if size else None
    whole = np.zeros((size, *type_.shape), type_.dtype)
    whole[: len(given)] = given
    return whole


@dataclass(frozen=True)
class Prepared:
    """A table that is ready to run: what it is compiled for, and its index tables and payload.

    A table is prepared with the tables of the reverse direction only where it is asked for; else it has no gradient.
    Payload of numbers as large as an index is among the tables, so that most often they are one array: each array of
    the host costs a call of compiled code a transfer.
    """

    envelope: Envelope
    gradient: bool
    tables: Any
    payload: tuple[Any, ...]

    def __call__(self, shared: Sequence[Any], carried: Mapping[Type, Any] | None = None) -> Answer:
        """Run it. The rows of each type are as many as the envelope has room for; the first `wanted` ones count."""
        envelope, given = self.envelope, carried or {}
        rows = [
            carried_rows(given.get(t), size, t)
            for t, size in zip(envelope.types, envelope.carried, strict=True)
        ]
        return Answer(envelope.types, tuple(self.rows(shared, rows)))

    def rows(self, shared: Sequence[Any], carried: Sequence[Any]) -> list[Any]:
        """The wanted rows by type, of as many carried rows as the envelope has room for."""
        own: Any = rows_of if self.gradient else forward
        return list(own(self.envelope, self.tables, self.payload, tuple(carried), tuple(shared)))


jax.tree_util.register_dataclass(
    Prepared, data_fields=["tables", "payload"], meta_fields=["envelope", "gradient"]
)


def prepare(
    table: Table,
    wanted: Sequence[np.ndarray] | None = None,
    *,
    order: str = "depth",
    gradient: bool = True,
    store: Store = STORE,
) -> Prepared:
    """Fit a table into an envelope and pack its index tables.

    `wanted` are numbers of values, for each of the table's types; without it, all values are answers.

    >>> from lanewise.dynamic.table import piece
    >>> f4 = Type((), np.dtype("f4"))
    >>> plus = piece(lambda w, a, b: w * a + b, shared=[np.float32(0)], rows=[np.float32(0)] * 2)
    >>> @jax.jit
    ... def slope(w, prepared):
    ...     return jax.grad(lambda w: prepared([w]).of(f4)[0])(w)
    >>> for numbers in ([1, 2], [3, 4, 5]):
    ...     calls = len(numbers) - 1
    ...     operands = [~0, ~1] + [v for i in range(1, calls) for v in (i - 1, ~(i + 1))]
    ...     sums = Table((plus,), ((0,),), [0] * calls, operands, {f4: np.float32(numbers)})
    ...     print(slope(jnp.float32(3), prepare(sums, [np.array([calls - 1])])))
    1.0
    22.0
    """
    return _prepare(table, wanted, order, gradient, store)[0]


def _prepare(
    table: Table, wanted: pack.Wanted, order: str, gradient: bool, store: Store
) -> tuple[Prepared, np.ndarray | None]:
    """The table ready to run, and where each value is."""
    compiled = passes.library() is not None
    level = levels(table, order) if order != "depth" or table.level is not None else None
    found = (passes if compiled else pack).survey(table, level, wanted, gradient)
    envelope = store.envelope(table, found.need, profile_of(_jax.default_platform()))
    lay = layout(envelope)
    made = (passes if compiled else pack).packed(table, wanted, found, lay)
    parts, words = lay.forward.parts, made.tables
    payload = tuple(
        _filled(table.payload.get(type_, ()), size, type_, words[at] if at else None)
        for type_, size, at in zip(
            table.types,
            envelope.payload,
            (parts.get(("payload", t)) for t in range(len(table.types))),
            strict=True,
        )
    )
    ready = Prepared(envelope, gradient, made.tables, payload)
    return ready, made.position


def run(
    table: Table,
    shared: Sequence[Any],
    wanted: Sequence[np.ndarray] | None = None,
    *,
    carried: Mapping[Type, Any] | None = None,
    order: str = "depth",
    store: Store = STORE,
    trim: bool = True,
) -> Answer:
    """Run a table.

    `wanted` are numbers of values, for each of the table's types; without it, all values are answers. `carried` are
    rows that operands beyond the payload name. Without `trim`, rows that were not asked for follow the wanted ones.

    >>> from lanewise.dynamic.table import piece
    >>> f4 = Type((), np.dtype("f4"))
    >>> scaled = piece(lambda w, a, b: w * (a + b), shared=[np.float32(0)], rows=[np.float32(0)] * 2)
    >>> sums = Table((scaled,), ((0,),), [0, 0], [~0, ~1, 0, ~1], {f4: np.float32([1, 2])})
    >>> def root(w):
    ...     return run(sums, [w], wanted=[np.array([1])]).of(f4)[0]
    >>> print(root(jnp.float32(3)), jax.grad(root)(jnp.float32(3)))
    33.0 20.0
    """
    given = [*shared, *(carried or {}).values()]
    traced = any(isinstance(x, _jax.Tracer) for x in given)
    prepared, position = _prepare(table, wanted, order, traced, store)
    answer = prepared(shared, carried)
    if wanted is None:
        lay = layout(prepared.envelope)
        joined = zip(lay.joined, prepared.envelope.payload, strict=True)
        carried_from = tuple(size if first else 0 for first, size in joined)
        return dataclasses.replace(answer, position=position, carried_from=carried_from)
    if not trim:
        return answer
    sizes = [len(values) for values in wanted]
    rows = (
        r if r.shape[0] == size else r[:size] for r, size in zip(answer.rows, sizes, strict=True)
    )
    return dataclasses.replace(answer, rows=tuple(rows))


def carried_rows(rows: Any, size: int, type_: Type) -> Any:
    if rows is None:
        return np.zeros((size, *type_.shape), type_.dtype)
    short = size - rows.shape[0]
    if short < 0:
        return rows[:size]
    return jnp.pad(rows, [(0, short)] + [(0, 0)] * (rows.ndim - 1)) if short else rows
