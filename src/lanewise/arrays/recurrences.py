"""Scans by an operator that is linear in each operand (`bilinear.py`), with derivatives made for them.

The tangents of prefixes yᵢ = yᵢ₋₁ ⊕ xᵢ obey a linear recurrence, y'ᵢ = A(xᵢ) y'ᵢ₋₁ + wᵢ, where w comes from the
tangents of the elements one by one. So a derivative is one pass that makes w, which is not a loop, and the solution of
a recurrence; in reverse mode the solution of the transposed one, which runs backwards, and one pass that makes the
adjoints of the elements. (For affine maps that is an affine scan from the other end.)

A recurrence is solved in the blocks of the scan itself (`blocked.py`). A value passes a whole block by A of what the
block amounts to, which the scan found on its way forward. So no product of matrices A is ever formed and nothing
but elements and prefixes is stored. Each group of numbers that A does not mix has a recurrence of its own: of the
product and the sum of affine maps, only that is solved whose prefixes have a derivative.

JAX sees this as a linear system (`lax.custom_linear_solve`: a band of A below a diagonal of ones), from which it has
the transposed one and derivatives of every order.

Segments: where one begins, nothing is carried on. The flags are then the last among the numbers of elements.

Reductions take the general path: what JAX makes of it is one pass forward and one back already, and nothing is written
on the way that has to be laid out again. Considered and measured: one loop over all elements, which XLA:CPU compiles
to a few nanoseconds an element as long as it holds plain numbers, but runs at microseconds for a batch of sixteen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise.arrays.bilinear import Bilinear
from lanewise.arrays.blocked import (
    Leaves,
    Tower,
    folded_from,
    is_short,
    scan_with_totals,
    scanned,
    written,
)
from lanewise.arrays.laid_out import (
    Laid,
    LaidLeaves,
    Shapes,
    apart,
    each,
    lay_out,
    put_together,
    row_numbers,
)


def scan_bilinear(
    op: Bilinear, leaves: Sequence[Any], neutral: Sequence[Any], begins: Any = None
) -> Leaves:
    """Inclusive prefixes of a long sequence, since the last place where a segment begins if `begins` is given."""
    plan, given, start = _Plan(op, begins is not None), list(leaves), apart(neutral, op.shapes)
    if begins is not None:
        given.append(begins.reshape(-1, *(1,) * start[0].ndim))
        start.append(jnp.zeros((1,) * start[0].ndim, bool))
    smooth = jnp.issubdtype(leaves[0].dtype, jnp.inexact)
    find = _prefixes if smooth else _plain_prefixes
    found, _ = find(plan, lay_out(given, plan.shapes), start)
    return put_together(found.picked(range(len(op.results))), op.shapes)


@dataclass(frozen=True)
class _Plan:
    op: Bilinear
    segmented: bool

    @property
    def shapes(self) -> Shapes:
        return (*self.op.shapes, ()) if self.segmented else self.op.shapes

    def combine(self, a: Sequence[Any], b: Sequence[Any], neutral: Sequence[Any]) -> Leaves:
        if not self.segmented:
            return self.op.combine(a, b)
        before = [jnp.where(b[-1], e, x) for e, x in zip(neutral, a, strict=True)]
        return [*self.op.combine(before[:-1], b[:-1]), a[-1] | b[-1]]

    def combine_row(self, a: Sequence[Any], row: Sequence[Any], neutral: Leaves) -> Leaves:
        return self.combine(a, row_numbers(row, self.shapes), neutral)

    def stopped(self, x: Sequence[Any], values: Leaves) -> Leaves:
        """Nothing where a segment begins."""
        return [jnp.where(x[-1], 0, v) for v in values] if self.segmented else values


def _totals(plan: _Plan, laid: LaidLeaves, neutral: Leaves) -> Leaves:
    """What each block amounts to, and the elements of the tail."""
    blocks = laid.blocks(plan.shapes)
    start = [jnp.broadcast_to(e, (blocks, *e.shape)) for e in neutral]
    found = folded_from(lambda a, row: plan.combine_row(a, row, neutral), start, laid.rows)
    tail = row_numbers(laid.tail, plan.shapes)
    return [jnp.concatenate([x, t]) for x, t in zip(found, tail, strict=True)]


def _plain_prefixes(plan: _Plan, laid: LaidLeaves, neutral: Leaves) -> tuple[Laid, Tower]:
    def combine(a: Sequence[Any], b: Sequence[Any]) -> Leaves:
        return plan.combine(a, b, neutral)

    totals = _totals(plan, laid, neutral)
    prefixes, tower = scan_with_totals(combine, totals, neutral)
    blocks = laid.blocks(plan.shapes)
    starts = [
        jnp.concatenate([e[None], p[: blocks - 1]]) for e, p in zip(neutral, prefixes, strict=True)
    ]
    rows = scanned(lambda a, row: plan.combine_row(a, row, neutral), starts, laid.rows)
    return Laid(rows, [p[blocks:] for p in prefixes]), (totals, *tower)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _prefixes(plan: _Plan, laid: LaidLeaves, neutral: Leaves) -> tuple[Laid, Tower]:
    """Prefixes, and what blocks amount to: an aid to solving recurrences, not a result that has derivatives."""
    return _plain_prefixes(plan, laid, neutral)


@_prefixes.defjvp
def _prefixes_jvp(
    plan: _Plan, primals: tuple[LaidLeaves, Leaves], tangents: tuple[LaidLeaves, Leaves]
) -> tuple[tuple[Laid, Tower], tuple[Laid, Tower]]:
    (laid, neutral), (moved, _) = primals, tangents
    found, tower = _prefixes(plan, laid, neutral)
    before, steps = found.one_on(neutral), moved.numbers(plan.shapes)
    if plan.segmented:
        before = each(
            lambda xs, ys: [jnp.where(xs[-1], e, y) for e, y in zip(neutral, ys, strict=True)],
            laid.numbers(plan.shapes),
            before,
        )
    out = jax.tree.map(_no_tangent, found)
    for group in plan.op.groups:
        recurrence = _Recurrence(plan, group)
        driven = each(functools.partial(plan.op.driven, group), before, steps)
        solved = recurrence.solved(laid, lax.stop_gradient(tower), driven)
        for n, k in enumerate(group):
            out.rows[k], out.tail[k] = solved.rows[n], solved.tail[n]
    return (found, tower), (out, jax.tree.map(_no_tangent, tower))


def _no_tangent(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


# What goes from element to element: (what enters, the element, what drives it) to (what leaves, what is kept).
_Step = Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]


@dataclass(frozen=True)
class _Recurrence:
    """yᵢ = A(xᵢ) yᵢ₋₁ + wᵢ for one group of numbers."""

    plan: _Plan
    group: tuple[int, ...]

    def solved(self, xs: LaidLeaves, tower: Tower, ws: Laid) -> Laid:
        forwards = _Sweep(self.forwards, self.forwards)
        backwards = _Sweep(self.backwards, self.beyond, reverse=True)

        def system(ys: Laid) -> Laid:
            before = ys.one_on([jnp.zeros((), y.dtype) for y in ys.tail])
            carried = each(self.carried, before, xs.numbers(self.plan.shapes))
            return jax.tree.map(jnp.subtract, ys, carried)

        return lax.custom_linear_solve(
            system,
            ws,
            lambda _, ws: _swept(forwards, self.plan.shapes, xs, tower, ws),
            lambda _, cs: _swept(backwards, self.plan.shapes, xs, tower, cs),
        )

    def carried(self, ys: Leaves, xs: Leaves) -> Leaves:
        return self.plan.op.carried(self.group, self.plan.stopped(xs, ys), xs)

    def carried_back(self, ss: Leaves, xs: Leaves) -> Leaves:
        return self.plan.stopped(xs, self.plan.op.carried_back(self.group, ss, xs))

    def forwards(self, ys: Leaves, xs: Leaves, ws: Leaves) -> tuple[Leaves, Leaves]:
        found = [c + w for c, w in zip(self.carried(ys, xs), ws, strict=True)]
        return found, found

    def backwards(self, vs: Leaves, xs: Leaves, cs: Leaves) -> tuple[Leaves, Leaves]:
        """The solution at a place is its right side and what comes from the place after, vᵢ₊₁ = A(xᵢ₊₁)ᵀ sᵢ₊₁."""
        found = [v + c for v, c in zip(vs, cs, strict=True)]
        return self.carried_back(found, xs), found

    def beyond(self, vs: Leaves, xs: Leaves, ds: Leaves) -> tuple[Leaves, Leaves]:
        """The same for whole blocks, which have what leaves them where elements have right sides."""
        found = [c + d for c, d in zip(self.carried_back(vs, xs), ds, strict=True)]
        return found, found


@dataclass(frozen=True)
class _Sweep:
    """A step at elements, and one at what blocks amount to."""

    step: _Step
    above: _Step
    reverse: bool = False

    @property
    def of_blocks(self) -> _Sweep:
        return _Sweep(self.above, self.above, self.reverse)

    def entering(self, leaving: Any) -> Any:
        """What enters each element of a sequence, from what leaves them: nothing enters the first."""
        nothing = jnp.zeros_like(leaving)
        if self.reverse:
            return written(nothing, leaving[1:], 0)
        return written(nothing, leaving[:-1], 1)


def _swept(sweep: _Sweep, shapes: Shapes, xs: LaidLeaves, tower: Tower, ws: Laid) -> Laid:
    """What each step keeps, from nothing."""
    tail, blocks = row_numbers(xs.tail, shapes), ws.blocks
    nothing = [jnp.zeros_like(w[0]) for w in ws.rows]
    left, _ = _looped(sweep, shapes, nothing, xs.rows, ws.rows, keep=False)
    left_by_tail, _ = sweep.step([jnp.zeros_like(w) for w in ws.tail], tail, ws.tail)
    driven = [jnp.concatenate([x, t]) for x, t in zip(left, left_by_tail, strict=True)]
    entering = [sweep.entering(v) for v in _swept_above(sweep.of_blocks, tower, driven)]
    _, kept = _looped(sweep, shapes, [v[:blocks] for v in entering], xs.rows, ws.rows)
    _, kept_by_tail = sweep.step([v[blocks:] for v in entering], tail, ws.tail)
    return Laid(kept, kept_by_tail)


def _swept_above(sweep: _Sweep, tower: Tower, ws: Leaves) -> Leaves:
    """The same at what blocks amount to, which are numbers already."""
    xs, *rest = tower
    apart_already = [()] * len(xs)
    if is_short(xs[0].shape[0]):
        return _looped(sweep, apart_already, [jnp.zeros_like(w[0]) for w in ws], xs, ws)[1]
    shapes = apart_already[: len(ws)]
    driven = lay_out(ws, shapes).numbers(shapes)
    found = _swept(sweep, apart_already, lay_out(xs, apart_already), tuple(rest), driven)
    return put_together(found, shapes)


def _looped(
    sweep: _Sweep, shapes: Shapes, start: Leaves, xs: Leaves, ws: Leaves, keep: bool = True
) -> tuple[Leaves, Leaves]:
    def step(entering: Leaves, row: tuple[Leaves, Leaves]) -> tuple[Leaves, Leaves | None]:
        x, w = row
        leaving, kept = sweep.step(entering, row_numbers(x, shapes), w)
        return leaving, kept if keep else None

    leaving, kept = lax.scan(step, start, (xs, ws), reverse=sweep.reverse)
    return leaving, kept or []
