"""Loops whose rows lie in the host's memory: copied while others are computed.

What an iteration saves is sent an iteration late, and fetched an iteration early: then no copy waits for what the
iteration computes, nor that for the copy, and a compiler that runs copies on a stream of their own can run both at the
same time. The last row is never sent.

What a loop carries has one buffer, and XLA has a copy out of it end before the next value is written there. So a turn
of the loop is two iterations: what the first of them saves has a buffer of its own, and is sent while the second
runs. Each of the two has its own rows, for XLA does not join rows of the host's memory (`unroll=2` of `lax.scan`).

Of an odd number one iteration stands outside of the loop: the one that comes first, which sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# A carry, the slices of an iteration, the row that was kept of it; gives the carry, results and the row to keep.
Step = Callable[[Any, Any, Sequence[Any]], tuple[Any, tuple[Any, Sequence[Any]]]]
# Rows of the first and of the second iteration of each turn.
Rows = tuple[Any, Any]


def two_at_a_time(
    step: Step, carry: Any, xs: Any, rows: Rows, length: int, *, reverse: bool, ahead: bool
) -> tuple[Any, Any, Rows]:
    """`lax.scan`, with rows: the carry, the results of all iterations, and the rows that they gave.

    `reverse`: from the last entry of `xs` to the first. `ahead`: an iteration that stands outside comes first;
    otherwise it comes last.
    """
    outside, order = length % 2, (1, 0) if reverse else (0, 1)
    # The entry that stands outside: at the end that the loop begins with, or ends with.
    at_front = reverse != ahead
    only = jax.tree.map(lambda x: x[0 if at_front else -1], xs) if outside else None
    inside = slice(outside, None) if at_front else slice(0, length - outside)
    pairs = jax.tree.map(lambda x: x[inside].reshape(length // 2, 2, *x.shape[1:]), xs)

    def turn(carry: Any, given: Any) -> Any:
        pair, kept = given
        found: list[Any] = [None, None]
        for k in order:
            slices = jax.tree.map(lambda x, k=k: x[k], pair)
            carry, found[k] = step(carry, slices, kept[k])
        (first, one), (second, other) = found
        return carry, (jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second), (one, other))

    def alone(carry: Any) -> tuple[Any, Any]:
        carry, (outs, _) = step(carry, only, [])
        return carry, outs

    outs = None
    if outside and ahead:
        carry, outs = alone(carry)
    carry, (ys, made) = lax.scan(turn, carry, (pairs, rows), length=length // 2, reverse=reverse)
    ys = jax.tree.map(lambda y: y.reshape(length - outside, *y.shape[2:]), ys)
    if outside and not ahead:
        carry, outs = alone(carry)
    if outside:
        ys = jax.tree.map(
            lambda y, x: jnp.concatenate([x[None], y] if at_front else [y, x[None]]), ys, outs
        )
    return carry, ys, made
