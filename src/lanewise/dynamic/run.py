"""The differentiable function of a table.

`run` fits a table into an envelope, packs its index tables, and calls compiled code: a function of arrays, with a
reverse rule (`jax.custom_vjp`), so that `jax.grad`, `jax.value_and_grad` and `jax.jit` around it work. Inside `jit`
the table is a constant of what is traced.

It does not have: a forward-mode rule (`jax.jvp`, `jax.hessian`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.dynamic import compute, pack
from lanewise.dynamic import reverse as backwards
from lanewise.dynamic.compute import Moving, Ran
from lanewise.dynamic.envelope import Envelope, Store
from lanewise.dynamic.layout import layout
from lanewise.dynamic.memory import keep_pages
from lanewise.dynamic.order import levels
from lanewise.dynamic.table import Table, TableError, Type

STORE = Store()


@dataclass(frozen=True)
class Answer:
    """What a run gives: by type, the wanted rows; or, where all values are answers, arenas and each value's
    position."""

    types: tuple[Type, ...]
    rows: tuple[Any, ...]
    position: np.ndarray | None = None

    def of(self, type_: Type) -> Any:
        return self.rows[self.types.index(type_)]


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Moves:
    """Which shared arrays and carried rows have derivatives: known when differentiated, part of what is compiled."""

    shared: tuple[bool, ...]

    def of_pieces(self, envelope: Envelope) -> Moving:
        lay = layout(envelope)
        return tuple(
            (
                tuple(base is not None for base in lay.operand[p]),
                tuple(self.shared[s] for s in envelope.shared[p]),
            )
            for p in range(len(envelope.pieces))
        )


@functools.partial(jax.jit, static_argnums=0)
def _forward(envelope: Envelope, tables: Any, payload: Any, carried: Any, shared: Any) -> Any:
    lay = layout(envelope)
    ran = compute.forward(lay, tables, payload, carried, shared)
    return compute.answers(lay, tables, ran.arenas)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward_saving(
    envelope: Envelope, moves: _Moves, tables: Any, payload: Any, carried: Any, shared: Any
) -> Any:
    lay = layout(envelope)
    moving = moves.of_pieces(envelope)
    ran = compute.forward(lay, tables, payload, carried, shared, moving)
    return compute.answers(lay, tables, ran.arenas), ran


@functools.partial(jax.jit, static_argnums=(0, 1))
def _backward(
    envelope: Envelope,
    moves: _Moves,
    tables: Any,
    back: Any,
    payload: Any,
    shared: Any,
    ran: Ran,
    seeds: Any,
) -> Any:
    lay = layout(envelope)
    moving = moves.of_pieces(envelope)
    return backwards.reverse(lay, tables, back, payload, shared, Ran(*ran), moving, seeds)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    envelope: Envelope, tables: Any, back: Any, payload: Any, carried: Any, shared: Any
) -> Any:
    del back
    return _forward(envelope, tables, payload, carried, shared)


def _run_forward(
    envelope: Envelope, tables: Any, back: Any, payload: Any, carried: Any, shared: Any
) -> Any:
    moves = _Moves(tuple(bool(s.perturbed) for s in shared))
    plain = jax.tree.map(lambda x: x.value, (tables, back, payload, carried, shared))
    tables, back, payload, carried, shared = plain
    out, ran = _forward_saving(envelope, moves, tables, payload, carried, shared)
    return out, (moves, tables, back, payload, shared, ran)


def _run_backward(envelope: Envelope, kept: Any, adjoints: Any) -> Any:
    moves, tables, back, payload, shared, ran = kept
    seeds = tuple(
        None if not t.differentiable else jnp.zeros(a.aval.shape, a.aval.dtype) if _zero(a) else a
        for t, a in zip(envelope.types, adjoints, strict=True)
    )
    carried, of_shared = _backward(envelope, moves, tables, back, payload, shared, ran, seeds)
    return None, None, None, tuple(carried), tuple(of_shared)


def _zero(value: Any) -> bool:
    return isinstance(value, jax.custom_derivatives.SymbolicZero)


_run.defvjp(_run_forward, _run_backward, symbolic_zeros=True)


def _padded(rows: Any, size: int, type_: Type) -> Any:
    """Rows of payload in an array of this many."""
    given = np.asarray(rows, type_.dtype) if len(rows) else np.zeros((0, *type_.shape), type_.dtype)
    if given.shape[1:] != type_.shape:
        raise TableError(f"payload of type {type_} has rows of shape {given.shape[1:]}.")
    if len(given) == size:
        return given
    whole = np.zeros((size, *type_.shape), type_.dtype)
    whole[: len(given)] = given
    return whole


def run(
    table: Table,
    shared: Sequence[Any],
    wanted: Sequence[np.ndarray] | None = None,
    *,
    carried: Mapping[Type, Any] | None = None,
    order: str = "depth",
    store: Store = STORE,
) -> Answer:
    """Run a table.

    `wanted` are numbers of values, for each of the table's types; without it, all values are answers. `carried` are
    rows that operands beyond the payload name.

    >>> from lanewise.dynamic.table import piece
    >>> f4 = Type((), np.dtype("f4"))
    >>> scaled = piece(lambda w, a, b: w * (a + b), shared=[np.float32(0)], rows=[np.float32(0)] * 2)
    >>> sums = Table((scaled,), ((0,),), [0, 0], [~0, ~1, 0, ~1], {f4: np.float32([1, 2])})
    >>> def root(w):
    ...     return run(sums, [w], wanted=[np.array([1])]).of(f4)[0]
    >>> print(root(jnp.float32(3)), jax.grad(root)(jnp.float32(3)))
    33.0 20.0
    """
    keep_pages()
    types = table.types
    carried = carried or {}
    given = [*shared, *carried.values()]
    traced = any(isinstance(x, _jax.Tracer) for x in given)
    level = levels(table, order)
    used = pack.uses(table, types, wanted) if traced else None
    need = pack.demand(table, types, level, wanted, used)
    envelope = store.envelope(table, need)
    lay = layout(envelope)
    at = pack.places(table, level, need, lay)
    tables = pack.pack_forward(table, wanted, need, lay, at)
    payload = tuple(
        _padded(table.payload.get(t, ()), size, t)
        for t, size in zip(types, envelope.payload, strict=True)
    )
    rows = tuple(
        _carried(carried.get(t), size, t) for t, size in zip(types, envelope.carried, strict=True)
    )
    arrays = tuple(shared)
    if used is None:
        out = _forward(envelope, tables, payload, rows, arrays)
    else:
        back = pack.pack_reverse(table, used, need, lay, at)
        out = _run(envelope, tables, back, payload, rows, arrays)
    return Answer(types, tuple(out), at.position if wanted is None else None)


def _carried(rows: Any, size: int, type_: Type) -> Any:
    if rows is None:
        return jnp.zeros((size, *type_.shape), type_.dtype)
    short = size - rows.shape[0]
    return jnp.pad(rows, [(0, short)] + [(0, 0)] * (rows.ndim - 1)) if short else rows
