"""Whitened coordinates and the leapfrog integrator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.mcmc.space import Point, energy, leapfrog, place_at, rewhitened, unwhitened, whitened

PRECISION = np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)
SPACES = {
    "none": None,
    "diagonal": np.array([0.5, 2.0], np.float32),
    "dense": np.array([[0.5, 0.0], [0.3, 2.0]], np.float32),
}


def density(x: jax.Array) -> jax.Array:
    return -0.5 * x @ (PRECISION @ x) - 0.1 * jnp.sum(x**4)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_place_is_that_of_the_density(space: Any) -> None:
    x = jnp.array([0.3, -1.2])
    place = jax.jit(lambda x: place_at(density, space, whitened(space, x)))(x)
    matrix = np.eye(2) if space is None else np.diag(space) if space.ndim == 1 else space
    np.testing.assert_allclose(unwhitened(space, place.position), x, rtol=1e-6)
    np.testing.assert_allclose(place.logdensity, density(x), rtol=1e-6)
    np.testing.assert_allclose(place.gradient, matrix.T @ jax.grad(density)(x), rtol=1e-5)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_steps_keep_the_energy_and_can_be_taken_back(space: Any) -> None:
    @jax.jit
    def there_and_back(x: jax.Array, momentum: jax.Array) -> tuple[Point, Point, Point]:
        start = Point(place_at(density, space, whitened(space, x)), momentum)
        step = lambda size: lambda _, point: leapfrog(density, space, point, size)  # noqa: E731
        there = jax.lax.fori_loop(0, 20, step(0.05), start)
        return start, there, jax.lax.fori_loop(0, 20, step(-0.05), there)

    start, there, back = there_and_back(jnp.array([0.3, -1.2]), jnp.array([0.7, 0.4]))
    assert float(jnp.max(jnp.abs(there.place.position - start.place.position))) > 0.3
    assert abs(energy(there) - energy(start)) < 0.02
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), start, back)


@pytest.mark.parametrize("scales", [("diagonal", "diagonal"), ("dense", "dense")], ids="-".join)
def test_chains_change_their_coordinates_on_the_host(scales: tuple[str, str]) -> None:
    old, new = (np.asarray(SPACES[name], np.float64) for name in scales)
    new = 3.0 * new
    positions = np.array([[0.3, -1.2], [2.0, 0.1], [-0.4, 0.9]])
    found = rewhitened(old, new, positions)
    for before, after in zip(positions, found, strict=True):
        expected = whitened(jnp.asarray(new), unwhitened(jnp.asarray(old), jnp.asarray(before)))
        np.testing.assert_allclose(after, expected, rtol=1e-5)
