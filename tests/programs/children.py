"""Any number of calls: loops, scans and maps over what calls itself."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, floats, inputs, ints


@lw.program
def sprout(x, depth):
    """A value decides how many children there are, none at all too; each turn needs what it had before its call."""
    if depth <= 0:
        return jnp.tanh(x), jnp.int32(1)
    total, nodes = 0.1 * x, jnp.int32(1)
    more = jnp.asarray(jnp.abs(x) * 4.0, jnp.int32) % 4
    for k in range(more):
        child = x * (0.6 + 0.1 * k) + 0.3
        value, below = sprout(child, depth - 1 - k % 2)
        total = 0.7 * total + value * child
        nodes += below
    return jnp.sin(total), nodes


@lw.program
def branching(x, depth):
    """A scan that makes two calls a turn, and stacks what one of them gave."""
    if depth <= 0:
        return jnp.sin(x)

    def turn(total, y):
        one = branching(x + y, depth - 1)
        other = branching(x * y, depth - 2)
        return total + one * y - other, one

    total, stacked = lax.scan(turn, jnp.zeros_like(x), 0.3 * jnp.arange(3.0, dtype=x.dtype))
    return jnp.tanh(total) + stacked[1] * 0.5 + stacked.max()


@lw.program
def child_sum(first, count, values, node):
    """A tree whose nodes have any number of children, in a row of the arrays that all lanes share."""
    total = jnp.zeros((), values.dtype)
    for k in range(count[node]):
        total += child_sum(first, count, values, first[node] + k) / (1.0 + k)
    return jnp.tanh(total + values[node])


def _forest(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Nodes in the order of their depth, so that the children of each are side by side."""
    size = 64
    first, count = np.zeros(size, np.int32), np.zeros(size, np.int32)
    after = 1
    for node in range(size):
        count[node] = min(int(rng.integers(0, 5)) if node else 9, size - after)
        first[node], after = after, after + count[node]
    values = rng.normal(size=size).astype(np.float32)
    return first, count, values, rng.integers(0, size, n).astype(np.int32)


CASES = (
    Case(
        "sprout",
        sprout,
        inputs(floats(-1.0, 1.0), ints(0, 5)),
        differentiable=(0,),
        recursive=True,
    ),
    Case(
        "branching",
        branching,
        inputs(floats(0.1, 1.0), ints(0, 4)),
        differentiable=(0,),
        recursive=True,
        heavy=True,
    ),
    Case(
        "child_sum",
        child_sum,
        _forest,
        in_axes=(None, None, None, 0),
        differentiable=(2,),
        recursive=True,
    ),
)
