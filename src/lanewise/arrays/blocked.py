"""Reductions and scans by any associative operator, in code whose size hardly depends on the length.

A long sequence is cut into blocks. One `lax.scan` goes through all blocks side by side and finds what each amounts
to; these totals are a shorter sequence, whose prefixes are found in the same way; from them, a second loop through all
blocks side by side finds the prefixes within. That is two applications of the operator per element, two loops of about
a hundred steps a level, and a million elements make three levels. Elements that fill no block join the totals, so
that nothing is padded. A scan starts from the neutral element if one is given, or else from its first element.

Derivatives are JAX's own, of this code. The tangent of a scan is a linear recurrence, y'ᵢ = Aᵢ y'ᵢ₋₁ + Bᵢ x'ᵢ with A
and B the operator's partial derivatives; differentiated block by block it is again two loops over all blocks and a
shorter recurrence, the reverse of which runs backwards, and A and B are applied without ever being written down as
matrices. That is why operators on arrays of any size need no rule of their own. `jax.checkpoint` makes a step keep its
state only; what the operator computes inside is computed again on the way back. For `reduce` the same holds: the
partial results from the left are what the forward loop keeps, the derivative by what comes from the right is what the
backward loop carries; so both scans of the two-scan rule of Schenck et al. (2022) are there, in half the passes.

Considered: `lax.associative_scan`, which unrolls log n levels of strided slices (its gradient is what takes JAX long to
compile); scanning each block first and combining with what came before after, which keeps one more array and took twice
as long; Jacobians as k × k matrices in a scan of their own, which cost k² for what costs k here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Leaves = list[Any]
Combine = Callable[[Sequence[Any], Sequence[Any]], Leaves]
# What the blocks amount to, and the elements that fill none, level by level.
Tower = tuple[Leaves, ...]

# This many elements are combined one after the other.
_SHORT = 256
# A longer sequence has as many levels as loops of up to this power of two steps need. On a CPU, a million pairs: loops
# of 16, 32 and 100 steps take the same time, of 1,000 half as long again; code grows with the levels.
_STEP_BITS = 7


def scan_leaves(
    combine: Combine, xs: Sequence[Any], neutral: Sequence[Any] | None = None
) -> Leaves:
    """Inclusive prefixes along the first axes, which are not empty. A neutral element to start from saves a copy."""
    if neutral is not None:
        return scan_with_totals(combine, xs, neutral)[0]
    rest, _ = _scan_from(combine, [x[0] for x in xs], [x[1:] for x in xs], None)
    return [written(x, y, 1) for x, y in zip(xs, rest, strict=True)]


def scan_with_totals(
    combine: Combine, xs: Sequence[Any], neutral: Sequence[Any]
) -> tuple[Leaves, Tower]:
    """Inclusive prefixes, and what the blocks of each level amount to."""
    return _scan_from(combine, list(neutral), list(xs), list(neutral))


def _scan_from(
    combine: Combine, start: Leaves, xs: Leaves, neutral: Leaves | None
) -> tuple[Leaves, Tower]:
    """`start ⊕ x[0] ⊕ ... ⊕ x[i]` for each i."""
    cut = _cut(xs)
    if cut is None:
        return scanned(combine, start, xs), ()
    totals = cut.totals(combine, neutral)
    prefixes, tower = _scan_from(combine, start, totals, neutral)
    last = cut.blocks - 1
    starts = [jnp.concatenate([x[None], p[:last]]) for x, p in zip(start, prefixes, strict=True)]
    within = scanned(_side_by_side(combine), starts, cut.rows)
    found = [_put_together(w, p[cut.blocks :]) for w, p in zip(within, prefixes, strict=True)]
    return found, (totals, *tower)


def reduce_leaves(combine: Combine, xs: Sequence[Any]) -> Leaves:
    """All elements combined in order; there is at least one."""
    cut = _cut(xs)
    if cut is None:
        return _folded(combine, list(xs))
    return reduce_leaves(combine, cut.totals(combine, None))


@dataclass(frozen=True)
class _Cut:
    """A sequence as blocks, which are columns (step, block), and what fills no block."""

    rows: Leaves
    tail: Leaves
    blocks: int

    def totals(self, combine: Combine, neutral: Leaves | None) -> Leaves:
        """What each block amounts to, and the elements of the tail."""
        side_by_side = _side_by_side(combine)
        if neutral is None:
            found = _folded(side_by_side, self.rows)
        else:
            # From the rows as they are: XLA would copy those without the first.
            start = [jnp.broadcast_to(e, (self.blocks, *e.shape)) for e in neutral]
            found = folded_from(side_by_side, start, self.rows)
        return [jnp.concatenate([x, t]) for x, t in zip(found, self.tail, strict=True)]


def _cut(xs: Sequence[Any]) -> _Cut | None:
    """The blocks of a sequence; None for one that is short."""
    length = xs[0].shape[0]
    if is_short(length):
        return None
    steps, blocks = steps_and_blocks(length)
    end = blocks * steps
    rows = [x[:end].reshape(blocks, steps, *x.shape[1:]).swapaxes(0, 1) for x in xs]
    return _Cut(rows, [x[end:] for x in xs], blocks)


def is_short(length: int) -> bool:
    """Whether a sequence is one loop."""
    return length <= _SHORT


def steps_and_blocks(length: int) -> tuple[int, int]:
    """How many elements make a block, and how many blocks there are.

    About an equal share for each level, and no tail if that can be had near it.

    >>> steps_and_blocks(10**6), steps_and_blocks(1_000_003)
    ((100, 10000), (101, 9901))
    """
    levels = math.ceil(math.log2(length) / _STEP_BITS)
    wanted = math.ceil(round(length ** (1 / levels), 6))
    near = range(wanted - wanted // 4, wanted + wanted // 4)
    nearest = sorted(near, key=lambda n: abs(n - wanted))
    steps = next((n for n in nearest if length % n == 0), wanted)
    return steps, length // steps


def _put_together(within: Any, tail: Any) -> Any:
    """The columns of blocks as one sequence again, and the tail."""
    return with_tail(within.swapaxes(0, 1).reshape(-1, *within.shape[2:]), tail)


def with_tail(flat: Any, tail: Any) -> Any:
    if tail.shape[0] == 0:
        return flat
    room = [(0, tail.shape[0], 0), *[(0, 0, 0)] * (flat.ndim - 1)]
    return written(lax.pad(flat, jnp.zeros((), flat.dtype), room), tail, flat.shape[0])


def written(x: Any, part: Any, start: int) -> Any:
    """`x` with a part of it replaced. Concatenation of short and long arrays takes XLA six times as long."""
    return lax.dynamic_update_slice_in_dim(x, part, start, axis=0)


def _side_by_side(combine: Combine) -> Combine:
    return jax.vmap(lambda a, b: combine(a, b))


def scanned(combine: Combine, start: Leaves, xs: Leaves) -> Leaves:
    """Prefixes by one loop."""

    def step(before: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        after = combine(before, x)
        return after, after

    return lax.scan(_keeping_state(step), start, xs)[1]


def _folded(combine: Combine, xs: Leaves) -> Leaves:
    return folded_from(combine, [x[0] for x in xs], [x[1:] for x in xs])


def folded_from(combine: Combine, start: Leaves, xs: Leaves) -> Leaves:
    """All combined, by one loop."""

    def step(before: Leaves, x: Leaves) -> tuple[Leaves, None]:
        return combine(before, x), None

    return lax.scan(_keeping_state(step), start, xs)[0]


def _keeping_state(step: Callable[..., Any]) -> Callable[..., Any]:
    return jax.checkpoint(step, prevent_cse=False)
