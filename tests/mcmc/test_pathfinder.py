"""Pathfinder: approximations that are right, and starts in the typical set."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc.pathfinder import Pathfinder
from mcmc.posteriors import gaussian, logistic


def factor(normal: Any, chain: int) -> np.ndarray:
    """`J` of a chain as a matrix, by NumPy."""
    size = normal.mean.shape[1]
    found = normal.scale[chain] * np.eye(size)
    for row in range(int(normal.count[chain])):
        step, other = normal.steps[chain, row], normal.others[chain, row]
        found = (np.eye(size) + np.outer(step, other)) @ found
    return found


def test_the_approximation_of_a_gaussian() -> None:
    """Means and covariances are right, and so are the determinants that are kept beside them."""
    rng = np.random.default_rng(1)
    root = rng.standard_normal((4, 4)) + 3.0 * np.eye(4)
    precision, mean = root @ root.T / 4.0, np.array([1.0, -2.0, 0.5, 3.0])

    def density(x: jax.Array) -> jax.Array:
        return -0.5 * (x - mean) @ (precision @ (x - mean))

    with jax.enable_x64(True):
        starts = 20.0 * rng.standard_normal((16, 4))
        keys = jax.random.split(jax.random.key(0), 16)
        found, _ = Pathfinder(draws=64).paths(density, jnp.asarray(starts), keys)
    assert len(set(found.taken.tolist())) > 1  # trip counts are the chains' own
    apart = []
    for chain in range(16):
        root = factor(found.normal, chain)
        determinant = np.linalg.slogdet(root)[1]
        np.testing.assert_allclose(found.normal.log_determinant[chain], determinant, atol=1e-8)
        product, off = root.T @ precision @ root, found.normal.mean[chain] - mean
        divergence = np.trace(product) - 4.0 - np.linalg.slogdet(product)[1] + off @ precision @ off
        apart.append(0.5 * divergence)
    assert np.median(apart) < 0.02  # Kullback-Leibler divergences
    assert max(apart) < 0.5


def test_starts_far_from_a_gaussian_of_100_dimensions() -> None:
    posterior = gaussian(100)
    far = mcmc.Model(
        posterior.logdensity, lambda key: {"x": 100.0 + jax.random.normal(key, (100,))}
    )
    with jax.enable_x64(True):
        data = mcmc.sample(
            far, 0, chains=32, draws=1, warmup=0, init=Pathfinder(), step_size=1e-6, progress=False
        )
    # Twice the energy is chi-squared of 100 degrees of freedom: 100, give or take 14.
    energy = -2.0 * data.sample_stats.lp.values
    assert (energy < 200.0).all()
    assert 60.0 < np.median(energy) < 160.0


@pytest.mark.filterwarnings("ignore::lanewise.mcmc.SamplingWarning")
def test_starts_for_ensembles_and_what_is_given() -> None:
    posterior = logistic()
    model = mcmc.Model(posterior.logdensity, posterior.init)
    settings: dict[str, Any] = {"chains": 16, "progress": False}
    with jax.enable_x64(True):
        given = jax.vmap(posterior.init)(jax.random.split(jax.random.key(5), 16))
        given = jax.tree.map(lambda leaf: 5.0 + leaf, given)
        at = mcmc.sample(
            model, 0, draws=1, warmup=0, step_size=1e-6, init=Pathfinder(given), **settings
        )
        data = mcmc.sample(
            model, 0, draws=50, warmup=100, init=Pathfinder(), sampler=mcmc.ChEES(), **settings
        )
    usual = data.sample_stats.lp.values
    lp = at.sample_stats.lp.values
    assert (lp > usual.mean() - 6.0 * usual.std()).all()
    assert abs(lp.mean() - usual.mean()) < 2.0 * usual.std()


def test_bad_settings_are_named() -> None:
    with pytest.raises(OptionError, match="max_steps=0 must be"):
        Pathfinder(max_steps=0)
    with pytest.raises(OptionError, match="not another one"):
        Pathfinder(Pathfinder())
