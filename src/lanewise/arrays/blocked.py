"""Reductions and scans by any associative operator, in code whose size hardly depends on the length.

The sequence is cut into blocks of `STEPS` elements. One `lax.scan` of that many steps goes through all blocks side by
side; what each block amounts to is a shorter sequence, which is treated alike; its prefixes are then combined with
the partial results of the blocks. That is about two applications of the operator an element, `2 log n / log STEPS`
loops of a few dozen steps, and one trace of the operator for each. Elements that fill no block join the shorter
sequence as they are, so nothing is padded and no neutral element is needed.

Derivatives are JAX's own, of this code. The tangent of a scan is a linear recurrence, y'ᵢ = Aᵢ y'ᵢ₋₁ + Bᵢ x'ᵢ with A
and B the operator's partial derivatives; differentiated block by block it is again one loop over all blocks and a
shorter recurrence, the reverse of which runs backwards, and A and B are applied without ever being written down as
matrices. That is why operators on arrays of any size need no rule of their own. `jax.checkpoint` makes a step keep
its state only; what lies inside the operator is computed again on the way back. For `reduce` the same holds: the
partial results from the left are what the forward loop keeps, the derivative by what comes from the right is what the
backward loop carries, so both scans of the well-known two-scan rule (Schenck et al. 2022) are there, at a third of
the passes.

Considered: `lax.associative_scan`, which unrolls log n levels of strided slices (its gradient is what takes JAX long to
compile); Jacobians as k × k matrices in a scan of their own, which cost k² for what costs k here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Leaves = list[Any]
Combine = Callable[[Sequence[Any], Sequence[Any]], Leaves]

# Few steps mean short loops and more levels. On a CPU, a million pairs: 16 and 32 alike, 128 slower.
STEPS = 32


def scan_leaves(combine: Combine, xs: Sequence[Any]) -> Leaves:
    """Inclusive prefixes along the first axes, which are not empty."""
    length = xs[0].shape[0]
    if length <= STEPS:
        return _in_turn(combine, list(xs))
    blocks, rest = divmod(length, STEPS)
    rows, tail = _rows(xs, blocks)
    partial = _in_turn(_side_by_side(combine), rows)
    prefixes = scan_leaves(combine, [_joined(p[-1], t, rest) for p, t in zip(partial, tail)])
    # The first block is done; the others start where the one before ended.
    before = [p[: blocks - 1] for p in prefixes]
    along = jax.vmap(_side_by_side(combine), in_axes=(None, 0))
    others = along(before, [p[:, 1:] for p in partial])
    return [
        _joined(_flat(jnp.concatenate([p[:, :1], o], axis=1)), all_[blocks:], rest)
        for p, o, all_ in zip(partial, others, prefixes)
    ]


def reduce_leaves(combine: Combine, xs: Sequence[Any]) -> Leaves:
    """All elements combined in order; there is at least one."""
    length = xs[0].shape[0]
    if length <= STEPS:
        return _folded(combine, list(xs))
    blocks, rest = divmod(length, STEPS)
    rows, tail = _rows(xs, blocks)
    totals = _folded(_side_by_side(combine), rows)
    return reduce_leaves(combine, [_joined(x, t, rest) for x, t in zip(totals, tail)])


def _rows(xs: Sequence[Any], blocks: int) -> tuple[Leaves, Leaves]:
    """The blocks as columns (step, block), and the elements that fill no block."""
    whole = blocks * STEPS
    rows = [x[:whole].reshape(blocks, STEPS, *x.shape[1:]).swapaxes(0, 1) for x in xs]
    return rows, [x[whole:] for x in xs]


def _flat(columns: Any) -> Any:
    return columns.swapaxes(0, 1).reshape(-1, *columns.shape[2:])


def _joined(first: Any, rest: Any, length: int) -> Any:
    return jnp.concatenate([first, rest]) if length else first


def _side_by_side(combine: Combine) -> Combine:
    return jax.vmap(lambda a, b: combine(a, b))


def _in_turn(combine: Combine, xs: Leaves) -> Leaves:
    def step(before: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        after = combine(before, x)
        return after, after

    first = [x[0] for x in xs]
    _, rest = lax.scan(_keeping_state(step), first, [x[1:] for x in xs])
    return [jnp.concatenate([x[:1], r]) for x, r in zip(xs, rest)]


def _folded(combine: Combine, xs: Leaves) -> Leaves:
    def step(before: Leaves, x: Leaves) -> tuple[Leaves, None]:
        return combine(before, x), None

    return lax.scan(_keeping_state(step), [x[0] for x in xs], [x[1:] for x in xs])[0]


def _keeping_state(step: Callable[..., Any]) -> Callable[..., Any]:
    return jax.checkpoint(step, prevent_cse=False)
