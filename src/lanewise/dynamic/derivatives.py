"""The wanted rows of a table as a JAX primitive: with derivatives forwards and backwards.

Forwards, the derivative is JAX's of the compiled code. Backwards it is the reverse of the table (`reverse.py`): to
linearize is to run the table and keep what its reverse reads, and to stage `pushed_p`, the linear map from tangents of
operands to those of rows, whose transpose is that reverse.

The reverse has loops of its own for deep tables, through which JAX goes forwards alone: `jax.jvp` of `jax.grad` is
right, `jax.grad` of `jax.grad` is an error. (Programs by levels have all orders, `rules/second.py`: they are there as
programs, where a table is data.)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching, mlir
from lanewise.core.errors import TransformError
from lanewise.dynamic import compute
from lanewise.dynamic import reverse as backwards
from lanewise.dynamic.compute import Moving, Ran
from lanewise.dynamic.envelope import Envelope
from lanewise.dynamic.layout import layout


@jax.tree_util.register_static
@dataclass(frozen=True)
class Moves:
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
def forward(envelope: Envelope, tables: Any, payload: Any, carried: Any, shared: Any) -> Any:
    """The wanted rows, without what the reverse reads."""
    lay = layout(envelope)
    ran = compute.forward(lay, tables, payload, carried, shared)
    return compute.answers(lay, tables, ran.arenas)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _saving(
    envelope: Envelope, moves: Moves, tables: Any, payload: Any, carried: Any, shared: Any
) -> Any:
    lay = layout(envelope)
    moving = moves.of_pieces(envelope)
    ran = compute.forward(lay, tables, payload, carried, shared, moving)
    return compute.answers(lay, tables, ran.arenas), ran


@functools.partial(jax.jit, static_argnums=(0, 1))
def _reverse(
    envelope: Envelope,
    moves: Moves,
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


def rows_of(
    envelope: Envelope, tables: Any, back: Any, payload: Any, carried: Any, shared: Any
) -> list[Any]:
    """The wanted rows by type; `back` are the tables of the reverse direction."""
    leaves, tree = jax.tree.flatten((tables, back, payload, tuple(carried), tuple(shared)))
    return rows_p.bind(*leaves, envelope=envelope, tree=tree)


@dataclass(frozen=True)
class _Linear:
    """What `pushed_p` knows beside the parameters of `rows_p`: which operands have tangents, and what is saved."""

    nonzero: tuple[bool, ...]
    moves: Moves
    saved: Any  # how it is put together


rows_p = _jax.Primitive("table_rows")
pushed_p = _jax.Primitive("table_pushed")


def _rows(*leaves: Any, envelope: Envelope, tree: Any) -> list[Any]:
    tables, _, payload, carried, shared = jax.tree.unflatten(tree, leaves)
    return list(forward(envelope, tables, payload, carried, shared))


def _pushed(*values: Any, envelope: Envelope, tree: Any, linear: _Linear) -> list[Any]:
    leaves, tangents = values[: tree.num_leaves], values[-sum(linear.nonzero) :]

    def of_moved(*moved: Any) -> list[Any]:
        given = iter(moved)
        pairs = zip(leaves, linear.nonzero, strict=True)
        rows = _rows(
            *(next(given) if flag else x for x, flag in pairs), envelope=envelope, tree=tree
        )
        return [x for x, t in zip(rows, envelope.types, strict=True) if t.differentiable]

    return jax.jvp(of_moved, tuple(itertools.compress(leaves, linear.nonzero)), tuple(tangents))[1]


def _jvp_rows(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    moves = [type(t) is not ad.Zero for t in tangents]

    def of_moved(*moved: Any) -> list[Any]:
        given = iter(moved)
        return _rows(
            *(next(given) if flag else x for x, flag in zip(primals, moves, strict=True)), **params
        )

    own, given = itertools.compress(primals, moves), itertools.compress(tangents, moves)
    return jax.jvp(of_moved, tuple(own), tuple(given))


def _linearize_rows(
    nonzero: Sequence[bool], *leaves: Any, envelope: Envelope, tree: Any
) -> tuple[Any, ...]:
    if any(map(_jax.is_linearized, leaves)):
        raise TransformError(
            "a gradient of a gradient of values that were recorded lazily, or of a table. Take one of the two forwards"
            ' (`jax.jvp` of `jax.grad`), or write a program, which `schedule="levels"` runs the same way.'
        )
    tables, back, payload, carried, shared = jax.tree.unflatten(tree, leaves)
    # Of tangents, those of shared arrays come last.
    moves = Moves(tuple(nonzero[len(leaves) - len(shared) :]))
    del back
    outs, ran = _saving(envelope, moves, tables, payload, carried, shared)
    saved, how = jax.tree.flatten(ran)
    linear = _Linear(tuple(nonzero), moves, how)
    flags = [t.differentiable for t in envelope.types]

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, flag in zip(tangents, nonzero, strict=True) if flag]
        params = {"envelope": envelope, "tree": tree, "linear": linear}
        moved = iter(pushed_p.bind(*residuals, *given, **params))
        return [
            next(moved) if flag else _jax.zero_tangent(x)
            for x, flag in zip(outs, flags, strict=True)
        ]

    return list(outs), flags, [*leaves, *saved], tangents_of


def _transpose_pushed(
    cts: Sequence[Any], *values: Any, envelope: Envelope, tree: Any, linear: _Linear
) -> list[Any]:
    """The reverse of the table."""
    leaves, num = values[: tree.num_leaves], linear.saved.num_leaves
    tables, back, payload, carried, shared = jax.tree.unflatten(tree, leaves)
    ran = jax.tree.unflatten(linear.saved, values[len(leaves) : len(leaves) + num])
    given = iter(cts)
    seeds = tuple(
        ad.instantiate_zeros(next(given)) if t.differentiable else None for t in envelope.types
    )
    found, of_shared = _reverse(envelope, linear.moves, tables, back, payload, shared, ran, seeds)
    first = len(leaves) - len(carried) - len(shared)
    by_leaf = [*[None] * first, *found, *of_shared]
    moved = [
        jnp.zeros_like(x) if adjoint is None else adjoint
        for x, adjoint in itertools.compress(zip(leaves, by_leaf, strict=True), linear.nonzero)
    ]
    return [*[None] * (len(leaves) + num), *moved]


def _run_as(primitive: Any, run: Callable[..., list[Any]]) -> None:
    """Have a primitive run, staged, batched and lowered as this function is."""
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(
        lambda *avals, **params: [
            _jax.shaped(x.shape, x.dtype)
            for x in jax.eval_shape(
                functools.partial(run, **params), *map(_jax.shape_dtype_struct, avals)
            )
        ]
    )

    def batched(values: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        outs = jax.vmap(functools.partial(run, **params), list(dims))(*values)
        return outs, [0] * len(outs)

    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(
        primitive, lambda ctx, *args, **params: _jax.lower_unchecked(ctx, run, *args, **params)
    )


_run_as(rows_p, _rows)
_run_as(pushed_p, _pushed)
ad.primitive_jvps[rows_p] = _jvp_rows
_jax.on_linearize(rows_p, _linearize_rows)
ad.primitive_transposes[pushed_p] = _transpose_pushed
