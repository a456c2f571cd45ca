"""Keys of XLA's own generator: a lane's numbers are those it would draw alone, whatever its neighbours are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw

TURNS = jnp.array([3, 0, 5, 1, 4])


@lw.program
def bits(state, n):
    total = jnp.uint32(0)
    while n > 0:
        state, drawn = lax.rng_bit_generator(state, (2,), dtype=jnp.uint32)
        total = total ^ drawn[0] ^ (drawn[1] >> 1)
        n -= 1
    return total


@lw.program
def scaled(key, scale, n):
    total = 0.0
    while n > 0:
        key, own = jax.random.split(key)
        total = scale * (total + jax.random.uniform(own))
        n -= 1
    return total


@pytest.mark.parametrize(
    "options",
    [{"schedule": "sweep"}, {"schedule": "plain"}, {"lanes": 2, "carrier": "ticks"}],
    ids=["sweep", "plain", "refilled"],
)
def test_words_drawn_by_the_primitive_itself(options: dict[str, Any]) -> None:
    words = jax.random.bits(jax.random.key(1), (5, 4))
    alone = [bits(w, n) for w, n in zip(words, TURNS, strict=True)]
    np.testing.assert_array_equal(lw.vmap(bits, **options)(words, TURNS), alone)


def test_keys_as_words_and_derivatives() -> None:
    """Old-style keys are words; what is drawn again on the way back is the same."""
    with jax.default_prng_impl("rbg"):
        keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(5))
        assert keys.shape == (5, 4)
        slope = lw.value_and_grad(scaled, 1, carrier="ticks")
        alone = [slope(k, 1.5, n) for k, n in zip(keys, TURNS, strict=True)]
        batch = jax.jit(jax.vmap(slope, in_axes=(0, None, 0)))(keys, 1.5, TURNS)
    for found, expected in zip(batch, zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5)


@lw.program
def solved(words, b):
    """What solves a linear equation may draw: its code is held in a named tuple."""

    def solve(_, b):
        drawn = lax.rng_bit_generator(words, (), dtype=jnp.uint32)[1]
        return b / 2.0 + (drawn >> 16).astype(jnp.float32)

    while b < 1.0:
        b = lax.custom_linear_solve(lambda v: 2.0 * v, b, solve)
    return b


@pytest.mark.parametrize("schedule", ["sweep", "plain"])
def test_words_drawn_inside_a_linear_solve(schedule: str) -> None:
    words = jax.random.bits(jax.random.key(2), (5, 4))
    bs = jnp.array([0.5, 2.0, 0.0, 0.25, 0.75])
    alone = [solved(w, b) for w, b in zip(words, bs, strict=True)]
    assert len({float(x) for x in alone}) == 5
    np.testing.assert_array_equal(lw.vmap(solved, schedule=schedule)(words, bs), alone)
