"""Reverse mode through corners of `while`, `scan` and `cond`, as lifted from `jax.lax`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw

FULL = bool(os.environ.get("LANEWISE_FULL"))
V = jnp.array([0.4, -1.2, 0.9])


def fori(n: int, body: Callable[..., Any], init: Any) -> Any:
    """A `while`, which JAX cannot reverse; `lax.fori_loop` with a known number would be a `scan`."""

    def step(carry: Any) -> Any:
        return carry[0] + 1, body(*carry)

    return lax.while_loop(lambda carry: carry[0] < n, step, (0, init))[1]


def zero_length(v: Any) -> Any:
    out, ys = lax.scan(lambda c, x: (c * x, c), v, jnp.zeros((0, 3)))
    return out * 2.0, ys.sum()


def no_slices(v: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c) * v, c.sum()), v, None, length=4)


def backwards(v: Any) -> Any:
    return lax.scan(lambda c, x: (c * jnp.cos(x), c * x), v.sum(), v, reverse=True)


def unrolled(v: Any) -> Any:
    return lax.scan(lambda c, x: (c * jnp.cos(x), c), v[0], v, unroll=2)


def becomes_active_later(v: Any) -> Any:
    """State that does not depend on the argument at first."""
    return fori(3, lambda i, s: (s[0] * v[i], s[1] + s[0], s[2]), (v[0], jnp.float32(0), 1.0))


def swaps(v: Any) -> Any:
    return fori(3, lambda i, s: (s[1], s[0] * jnp.sin(s[1]) + i), (v[0], v[1]))


def three_ways(v: Any) -> Any:
    """Branches that save different things, one nothing."""

    def step(i: Any, v: Any) -> Any:
        ways = (
            lambda v: jnp.exp(-v) * jnp.tanh(v),
            lambda v: v * 2.0,
            lambda v: jnp.outer(jnp.sin(v), jnp.cos(v)).sum(0),
        )
        return lax.switch(i % 3, ways, v)

    return fori(5, step, v)


def nested(v: Any) -> Any:
    def outer(i: Any, v: Any) -> Any:
        inner = fori(2, lambda j, w: jnp.sin(w) * v + j, v)
        scanned, ys = lax.scan(lambda c, x: (c + x * inner.sum(), c), 0.1, v)
        return lax.cond(scanned > 0, lambda: inner * scanned, lambda: v - ys) * 0.5

    return fori(3, outer, v)


def same_value_twice(v: Any) -> Any:
    return lax.scan(lambda c, x: ((c[0] * x + c[1], c[0]), c[1]), (v[0], v[0]), v)


def matrices(v: Any) -> Any:
    m = jnp.outer(v, v) * 0.3 + jnp.eye(3)
    return fori(3, lambda i, m: jnp.linalg.solve(m + jnp.eye(3), m @ m), m)


def in_and_out(v: Any) -> Any:
    """Reads and writes of a carried array, at places that come from data."""

    def step(i: Any, s: Any) -> Any:
        table, at = s
        table = table.at[at].add(jnp.sin(table[(at + 1) % 6]))
        table = table.at[(at + 2) % 6].set(table[at] * v[i % 3])
        return table, (at * 5 + 1) % 6

    return fori(4, step, (jnp.tile(v, 2), 1))[0]


def sorted_and_extreme(v: Any) -> Any:
    return fori(2, lambda i, v: jnp.sort(v) * jnp.max(v) + jnp.cumsum(v), v)


def batched_inside(v: Any) -> Any:
    """A `vmap` of a loop with one test for each element."""
    grown = jax.vmap(lambda x: lax.while_loop(lambda y: y < 3.0, lambda y: y * 1.5 + 0.2, x))
    return grown(jnp.abs(v)) * v


def constants_from_outside(v: Any) -> Any:
    table = jnp.asarray(np.linspace(1.0, 2.0, 3, dtype=np.float32))
    return fori(3, lambda i, s: s * table[i] + jnp.asarray(np.float32(0.1)) * v, v)


CASES = (
    *(zero_length, no_slices, backwards, unrolled, becomes_active_later, swaps, three_ways, nested),
    *(same_value_twice, matrices, in_and_out, sorted_and_extreme, batched_inside),
    constants_from_outside,
)


SETTINGS = ("auto", "all", "sqrt", 2)
RUNS = [
    pytest.param(fun, setting, id=f"{fun.__name__}-{setting}")
    for at, fun in enumerate(CASES)
    for turn, setting in enumerate(SETTINGS)
    if FULL or turn == at % 4
]


@pytest.mark.parametrize(("fun", "setting"), RUNS)
def test_as_forward_mode_has_it(fun: Callable[..., Any], setting: Any) -> None:
    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        def of(v: Any) -> Any:
            leaves = map(jnp.asarray, jax.tree.leaves(f(v)))
            leaves = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
            return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)) for x in leaves)

        return of

    two = jnp.stack([V, V[::-1] * 0.7])
    expected = jax.jit(jax.vmap(jax.jacfwd(total(fun))))(two)
    ours = jax.grad(total(lw.lift(fun).with_options(checkpoints=setting)))
    if (CASES.index(fun) + SETTINGS.index(setting)) % 3:
        found = jax.jit(jax.vmap(ours))(two)
    else:
        found = jax.jit(lambda two: lax.map(ours, two))(two)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
