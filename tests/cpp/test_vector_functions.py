"""Functions in `float32` as straight-line code: as good as rounded once, at the edges too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from cpp.checking import run_batch

# What each is in `float64`.
FUNCTIONS = {
    "exp": (lax.exp, np.exp),
    "exp2": (lax.exp2, np.exp2),
    "expm1": (lax.expm1, np.expm1),
    "log": (lax.log, np.log),
    "log1p": (lax.log1p, np.log1p),
    "logistic": (lax.logistic, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (lax.tanh, np.tanh),
}
EDGES = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38], np.float32)


def everywhere(count: int) -> np.ndarray:
    """Floats of all sizes and both signs: every n-th pattern of bits."""
    patterns = np.linspace(0, 2**32 - 1, count).astype(np.uint64).astype(np.uint32)
    return np.concatenate([patterns.view(np.float32), EDGES])


def units_apart(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units in the last place; 0 where both are the same infinity or NaN."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
        unit = np.spacing(np.maximum(np.abs(nearest), np.float32(1e-45))).astype(np.float64)
        return np.where(same, 0.0, np.abs(found.astype(np.float64) - exact) / unit)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_rounded_once(name: str) -> None:
    function, exact = FUNCTIONS[name]
    x = everywhere(200_003)
    (found,) = run_batch(lambda x: function(x), x)
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
    assert units_apart(found, wanted).max() < 0.52
    zeros = found == 0
    assert (np.signbit(found) == np.signbit(wanted))[zeros].all()


def test_powers() -> None:
    a = np.concatenate([everywhere(400), np.linspace(-4, 4, 33, dtype=np.float32)])
    b = np.concatenate(
        [
            everywhere(100),
            np.linspace(-5, 5, 41, dtype=np.float32),
            np.array([1e9, 16777217.0], np.float32),
        ]
    )
    a, b = (x.reshape(-1) for x in np.meshgrid(a, b))
    (found,) = run_batch(lambda a, b: lax.pow(a, b), a, b)
    with np.errstate(all="ignore"):
        wanted = np.power(a.astype(np.float64), b.astype(np.float64))
    assert units_apart(found, wanted).max() < 0.52
    zeros = found == 0
    assert (np.signbit(found) == np.signbit(wanted))[zeros].all()


def test_a_number_gets_the_same_bits_alone_in_an_array_and_in_a_tile() -> None:
    def turned(x: jax.Array, trips: jax.Array) -> jax.Array:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, i = carry
            y = jnp.tanh(x) + jnp.exp(-x * x) - jnp.log1p(jnp.abs(x)) + jnp.abs(x) ** 1.3
            return lax.logistic(y) * 3 - 1, i + 1

        return lax.while_loop(lambda carry: carry[1] < trips, body, (x, jnp.int32(0)))[0]

    x = jnp.linspace(-5, 5, 64, dtype=jnp.float32)
    trips = jnp.arange(64, dtype=jnp.int32) % 7
    in_tiles = lw.vmap(turned, carrier="native")
    found = lw.inspect(lw.lift(turned, carrier="native"), x, trips)
    assert "in step" in found.plan.path
    as_one = lw.vmap(turned, carrier="native", max_steps=99)  # counted, so one lane at a time
    np.testing.assert_array_equal(in_tiles(x, trips), as_one(x, trips))
    whole = lw.vmap(turned, carrier="native")(x[None], jnp.int32([4]))[0]
    np.testing.assert_array_equal(whole, as_one(x, jnp.full(64, 4, jnp.int32)))
