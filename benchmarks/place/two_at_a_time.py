"""Offloaded loops with two iterations a turn: an experiment of `place_gpu.py`, not part of the library.

An offloaded loop sends what the iteration before saved. A loop carries that in one buffer, and XLA has the copy out of
it end before the next value is written there. With two iterations a turn what the first of them saves has a buffer of
its own, and is sent while the second runs. Each of the two has rows of its own in the host's memory, for XLA does not
join rows there (`unroll=2` of `lax.scan`).

`two_at_a_time` has the reverse of loops traced like this inside it. Their lengths must be even.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.diff import scan as library


@jax.tree_util.register_pytree_node_class
class Pair:
    """Rows of the first and of the second iteration of each turn."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def tree_flatten(self) -> tuple[Any, None]:
        return self.rows, None

    @classmethod
    def tree_unflatten(cls, _: None, rows: Any) -> Pair:
        return cls(*rows)


def is_pair(x: Any) -> bool:
    return isinstance(x, Pair)


def is_away(x: Any) -> bool:
    return getattr(_jax.aval_of(x), "memory_space", None) == jax.memory.Space.Host


def scan(
    step: Callable[..., Any], carry: Any, xs: Any, *, length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`lax.scan` two iterations a turn, where rows come from the host's memory or go there."""
    traced = jax.make_jaxpr(lambda: step(carry, jax.tree.map(first, xs, is_leaf=is_pair))[1])()
    if not any(a.memory_space == jax.memory.Space.Host for a in traced.out_avals) and not any(
        map(is_pair, jax.tree.leaves(xs, is_leaf=is_pair))
    ):
        return lax.scan(step, carry, xs, length=length, reverse=reverse)
    assert length % 2 == 0, "the experiment is for loops of an even number of iterations"
    # Pairs go into the loop as they are; others two rows a turn.
    whole = jax.tree.map(
        lambda x: x if is_pair(x) else x.reshape(length // 2, 2, *x.shape[1:]), xs, is_leaf=is_pair
    )

    def turn(carry: Any, given: Any) -> Any:
        made: list[Any] = [None, None]
        for k in (1, 0) if reverse else (0, 1):
            slices = jax.tree.map(
                lambda x, k=k: x.rows[k] if is_pair(x) else x[k], given, is_leaf=is_pair
            )
            carry, made[k] = step(carry, slices)
        return carry, jax.tree.map(both, *made)

    carry, ys = lax.scan(turn, carry, whole, length=length // 2, reverse=reverse)
    joined = [
        y if is_pair(y) else y.reshape(length, *y.shape[2:])
        for y in jax.tree.leaves(ys, is_leaf=is_pair)
    ]
    return carry, jax.tree.unflatten(jax.tree.structure(ys, is_leaf=is_pair), joined)


def first(x: Any) -> Any:
    return x.rows[0][0] if is_pair(x) else x[0]


def both(one: Any, other: Any) -> Any:
    return Pair(one, other) if is_away(one) else jnp.stack([one, other])


@contextlib.contextmanager
def two_at_a_time() -> Iterator[None]:
    names = {**vars(lax), "scan": scan}
    library.lax = types.SimpleNamespace(**names)
    try:
        yield
    finally:
        library.lax = lax
