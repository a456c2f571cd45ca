"""The wanted rows of a table as a JAX primitive: with derivatives forwards and backwards, of any order.

Forwards, the derivative is JAX's of the compiled code. Backwards it is the reverse of the table (`reverse.py`): to
linearize is to run the table and keep what its reverse reads, and to stage `pushed_p`, the linear map from tangents of
operands to those of rows, whose transpose is that reverse.

Both runs have loops of their own for deep tables, through which JAX goes forwards alone. So each is a primitive too,
and where it is linearized again it is the same code with those loops as programs (`ending.py`), which have
gradients. The states of such a loop are whole arenas, and a fixed number of them is kept: that takes memory and time
where tables are deep. (A gradient of a gradient of a program by levels is one of tables again, `rules/second.py`.)
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching
from lanewise.dynamic import compute, cut
from lanewise.dynamic import reverse as backwards
from lanewise.dynamic.compiled import compiled
from lanewise.dynamic.compute import Active, Ran
from lanewise.dynamic.ending import with_gradients
from lanewise.dynamic.envelope import Envelope
from lanewise.dynamic.layout import layout


@jax.tree_util.register_static
@dataclass(frozen=True)
class Moves:
    """Which shared arrays and carried rows have derivatives: known when differentiated, part of what is compiled."""

    shared: tuple[bool, ...]

    def of_pieces(self, envelope: Envelope) -> Active:
        lay = layout(envelope)
        return tuple(
            (
                tuple(base is not None for base in lay.operand[p]),
                tuple(self.shared[s] for s in envelope.shared[p]),
            )
            for p in range(len(envelope.pieces))
        )


@functools.partial(compiled, static_argnums=0)
def forward(envelope: Envelope, tables: Any, payload: Any, carried: Any, shared: Any) -> Any:
    """The wanted rows, without what the reverse reads."""
    return _forward(envelope, tables, payload, carried, shared, in_place=True)


def _forward(
    envelope: Envelope, tables: Any, payload: Any, carried: Any, shared: Any, *, in_place: bool
) -> Any:
    lay = layout(envelope)
    ran = compute.forward(lay, tables, payload, carried, shared, in_place=in_place)
    return compute.answers(lay, tables, ran.arenas)


def rows_of(envelope: Envelope, tables: Any, payload: Any, carried: Any, shared: Any) -> list[Any]:
    """The wanted rows by type; the tables are those of both directions."""
    leaves, tree = jax.tree.flatten((tables, payload, tuple(carried), tuple(shared)))
    return rows_p.bind(*leaves, envelope=envelope, tree=tree)


@dataclass(frozen=True)
class _Linear:
    """What `pushed_p` knows beside the parameters of `rows_p`: which operands have tangents, and what is saved."""

    nonzero: tuple[bool, ...]
    moves: Moves
    saved: Any  # how it is put together


rows_p = _jax.primitive("table_rows")
pushed_p = _jax.primitive("table_pushed")
saving_p = _jax.primitive("table_saving")
reversed_p = _jax.primitive("table_reversed")


def _rows(*leaves: Any, envelope: Envelope, tree: Any, in_place: bool = True) -> list[Any]:
    tables, payload, carried, shared = jax.tree.unflatten(tree, leaves)
    return list(_forward(envelope, tables, payload, carried, shared, in_place=in_place))


def _saving(
    *leaves: Any, envelope: Envelope, tree: Any, moves: Moves, in_place: bool = True
) -> list[Any]:
    """The wanted rows, then what the reverse reads."""
    tables, payload, carried, shared = jax.tree.unflatten(tree, leaves)
    lay, active = layout(envelope), moves.of_pieces(envelope)
    ran = compute.forward(lay, tables, payload, carried, shared, active, in_place=in_place)
    return [*compute.answers(lay, tables, ran.arenas), *jax.tree.leaves(ran)]


@functools.lru_cache(maxsize=256)
def _tree_of_saved(envelope: Envelope, moves: Moves) -> Any:
    """How what the reverse reads is put together."""
    active = moves.of_pieces(envelope)

    def saved(capacities: Sequence[int]) -> list[list[Any]]:
        return [
            [0] * len(cut.codes(piece, size, *active[p]).saved) if size else []
            for p, (piece, size) in enumerate(zip(envelope.pieces, capacities, strict=True))
        ]

    arenas = [0] * len(envelope.types)
    return jax.tree.structure(Ran(arenas, [*map(saved, envelope.head)], saved(envelope.tail)))


def _reversed(
    *values: Any, envelope: Envelope, tree: Any, linear: _Linear, in_place: bool = True
) -> list[Any]:
    """The reverse of the table: leaves, what is saved, adjoints of rows -> adjoints of the active leaves."""
    first, second = tree.num_leaves, tree.num_leaves + linear.saved.num_leaves
    leaves, given = values[:first], iter(values[second:])
    tables, payload, carried, shared = jax.tree.unflatten(tree, leaves)
    ran = Ran(*jax.tree.unflatten(linear.saved, values[first:second]))
    seeds = tuple(next(given) if t.differentiable else None for t in envelope.types)
    active = linear.moves.of_pieces(envelope)
    lay = layout(envelope)
    found, of_shared = backwards.reverse(lay, tables, payload, shared, ran, active, seeds, in_place)
    by_leaf = [*[None] * (len(leaves) - len(carried) - len(shared)), *found, *of_shared]
    return [
        jnp.zeros_like(x) if adjoint is None else adjoint
        for x, adjoint in itertools.compress(zip(leaves, by_leaf, strict=True), linear.nonzero)
    ]


def _pushed(
    *values: Any, envelope: Envelope, tree: Any, linear: _Linear, in_place: bool = True
) -> list[Any]:
    leaves, tangents = values[: tree.num_leaves], values[-sum(linear.nonzero) :]
    run = functools.partial(_rows, envelope=envelope, tree=tree, in_place=in_place)
    _, moved = _pushed_through(run, leaves, linear.nonzero, tangents)
    return [x for x, t in zip(moved, envelope.types, strict=True) if t.differentiable]


def _pushed_through(
    run: Callable[..., list[Any]],
    values: Sequence[Any],
    moves: Sequence[bool],
    tangents: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """`jax.jvp` of a function of values of which some are active."""
    of_moved, own = _jax.restricted(run, values, moves)
    return jax.jvp(of_moved, own, list(tangents))


def _linearize_rows(
    nonzero: Sequence[bool], *leaves: Any, envelope: Envelope, tree: Any
) -> tuple[Any, ...]:
    shared = jax.tree.unflatten(tree, leaves)[-1]
    # Of tangents, those of shared arrays come last.
    moves = Moves(tuple(nonzero[len(leaves) - len(shared) :]))
    found = saving_p.bind(*leaves, envelope=envelope, tree=tree, moves=moves)
    num = len(envelope.types)
    outs, saved = found[:num], found[num:]
    linear = _Linear(tuple(nonzero), moves, _tree_of_saved(envelope, moves))
    flags = [t.differentiable for t in envelope.types]

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, flag in zip(tangents, nonzero, strict=True) if flag]
        params = {"envelope": envelope, "tree": tree, "linear": linear}
        moved = iter(pushed_p.bind(*residuals, *given, **params))
        return [
            next(moved) if flag else _jax.zero_tangent(x)
            for x, flag in zip(outs, flags, strict=True)
        ]

    return outs, flags, [*leaves, *saved], tangents_of


def _transpose_pushed(
    cts: Sequence[Any],
    *values: Any,
    envelope: Envelope,
    tree: Any,
    linear: _Linear,
    batch: tuple[Any, ...] = (),
) -> list[Any]:
    """The reverse of the table."""
    known = values[: tree.num_leaves + linear.saved.num_leaves]
    seeds = [ad.instantiate_zeros(ct) for ct in cts]
    params: dict[str, Any] = {"envelope": envelope, "tree": tree, "linear": linear}
    if not batch:
        moved = reversed_p.bind(*known, *seeds, **params)
        return [*[None] * len(known), *moved]
    own = tuple((*dims[: len(known)], *[0] * len(seeds)) for dims in batch)
    moved = reversed_p.bind(*known, *seeds, **params, batch=own)
    axes = zip(*(dims[len(known) :] for dims in batch), strict=True)
    return [*[None] * len(known), *map(_with_axes, moved, axes)]


def _with_axes(adjoint: Any, dims: tuple[int | None, ...]) -> Any:
    """An adjoint with the axes of a batch in front, the outermost first, where `dims` has them; summed over others."""
    if not dims:
        return adjoint
    inner = jax.vmap(lambda each: _with_axes(each, dims[:-1]))(adjoint)
    return inner.sum(0) if dims[-1] is None else jnp.moveaxis(inner, 0, dims[-1])


def _run_as(primitive: Any, run: Callable[..., list[Any]]) -> None:
    """Have a primitive run, staged, batched, lowered and differentiated as this function is.

    `batch` has, for each axis that `jax.vmap` has added, the innermost first, where values have it.
    """

    def whole(*values: Any, batch: tuple[Any, ...] = (), **params: Any) -> list[Any]:
        found = functools.partial(run, **params)
        for dims in batch:
            found = jax.vmap(found, list(dims))
        return found(*values)

    names = [p.name for p in inspect.signature(run).parameters.values() if p.kind is p.KEYWORD_ONLY]
    own = compiled(whole, static_argnames=[*names, "batch"])
    primitive.def_impl(own)
    primitive.def_abstract_eval(
        lambda *avals, **params: [
            _jax.shaped(x.shape, x.dtype)
            for x in jax.eval_shape(
                functools.partial(whole, **params), *map(_jax.shape_dtype_struct, avals)
            )
        ]
    )

    def batched(values: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        batch = (*params.pop("batch", ()), tuple(dims))
        outs = primitive.bind(*values, batch=batch, **params)
        return outs, [0] * len(outs)

    @functools.lru_cache(maxsize=64)
    def backwards_too(params: tuple[tuple[str, Any], ...]) -> Callable[..., list[Any]]:
        return jax.jit(with_gradients(functools.partial(whole, **dict(params), in_place=False)))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        again = any(map(_jax.is_linearized, (*primals, *tangents)))
        fun = backwards_too(tuple(params.items())) if again else functools.partial(own, **params)
        moves = [type(t) is not ad.Zero for t in tangents]
        return _pushed_through(fun, primals, moves, list(itertools.compress(tangents, moves)))

    def linearize(nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        if primitive is rows_p and "batch" not in params:
            return _linearize_rows(nonzero, *primals, **params)
        return _jax.linearized(backwards_too(tuple(params.items())), nonzero, primals)

    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = jvp
    _jax.on_linearize(primitive, linearize)
    _jax.lowered_as(primitive, whole)


_run_as(rows_p, _rows)
_run_as(pushed_p, _pushed)
_run_as(saving_p, _saving)
_run_as(reversed_p, _reversed)
ad.primitive_transposes[pushed_p] = _transpose_pushed
