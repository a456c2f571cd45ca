"""Simulation-based calibration (Talts et al. 2018): a lane is one simulated data set with a chain of its own.

Parameters are drawn from the prior, data from the parameters, and the posterior of these data is sampled. The rank of
the parameters among draws from the posterior is uniform if and only if the sampler is right on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy.stats import chisquare

import lanewise as lw
from lanewise.mcmc import NUTS
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.space import place_at

SIMULATIONS, MANY = 640, 20_000
# Ranks are among `KEPT` draws, which are `APART` apart; the first ones find the posterior.
KEPT, APART, FIRST = 15, 3, 30
LEAST_P = 1e-3


@dataclass(frozen=True)
class Simulated:
    """A model: its prior, its data given parameters, and the log density of both, up to a constant."""

    parameters: int
    data: Callable[[jax.Array, jax.Array], jax.Array]
    logdensity: Callable[[jax.Array, jax.Array], jax.Array]
    step: float


def normal() -> Simulated:
    """Ten numbers of unknown mean and spread; one step size fits all spreads that the prior has."""

    def data(key: jax.Array, x: jax.Array) -> jax.Array:
        return x[0] + jnp.exp(0.3 * x[1]) * jax.random.normal(key, (10,))

    def logdensity(x: jax.Array, data: jax.Array) -> jax.Array:
        return jnp.sum(norm.logpdf(data, x[0], jnp.exp(0.3 * x[1]))) - 0.5 * x @ x

    return Simulated(2, data, logdensity, step=0.2)


def poisson_regression() -> Simulated:
    """Counts whose log rate is a line."""
    where = np.linspace(-1.0, 1.0, 8, dtype=np.float32)

    def data(key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.random.poisson(key, jnp.exp(x[0] + x[1] * where)).astype(jnp.float32)

    def logdensity(x: jax.Array, data: jax.Array) -> jax.Array:
        log_rate = x[0] + x[1] * where
        return jnp.sum(data * log_rate - jnp.exp(log_rate)) - 0.5 * x @ x

    return Simulated(2, data, logdensity, step=0.25)


def logistic_regression() -> Simulated:
    """Labels whose odds are a line."""
    where = np.linspace(-2.0, 2.0, 20, dtype=np.float32)

    def data(key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(x[0] + x[1] * where)).astype(jnp.float32)

    def logdensity(x: jax.Array, data: jax.Array) -> jax.Array:
        odds = x[0] + x[1] * where
        return jnp.sum(data * odds - jax.nn.softplus(odds)) - 0.5 * x @ x

    return Simulated(2, data, logdensity, step=0.35)


def groups() -> Simulated:
    """Four groups, not centered: their mean, the logarithm of their spread, and where each is; an observation each."""

    def means(x: jax.Array) -> jax.Array:
        return x[0] + jnp.exp(0.5 * x[1]) * x[2:]

    def data(key: jax.Array, x: jax.Array) -> jax.Array:
        return means(x) + jax.random.normal(key, (4,))

    def logdensity(x: jax.Array, data: jax.Array) -> jax.Array:
        return jnp.sum(norm.logpdf(data, means(x))) - 0.5 * x @ x

    return Simulated(6, data, logdensity, step=0.35)


def ranks(model: Simulated, simulations: int = SIMULATIONS) -> np.ndarray:
    """Of each simulation's parameters."""
    draws = FIRST + KEPT * APART

    def rank(key: jax.Array, truth: jax.Array, data: jax.Array) -> jax.Array:
        def density(x: jax.Array) -> jax.Array:
            return model.logdensity(x, data)

        place = place_at(density, None, jnp.zeros_like(truth))
        chain = chain_of(NUTS(max_depth=6), density, draws)
        _, kept = chain(key, carried(place, model.step), draws, None, task())
        return jnp.sum(kept.positions[FIRST::APART] < truth, axis=0)

    keys = jax.random.split(jax.random.key(0), (3, simulations))
    truths = jax.vmap(lambda key: jax.random.normal(key, (model.parameters,)))(keys[0])
    data = jax.vmap(model.data)(keys[1], truths)
    return np.asarray(lw.vmap(rank)(keys[2], truths, data))


MODELS = (normal, poisson_regression, logistic_regression, groups)


def assert_uniform(found: np.ndarray) -> None:
    for parameter in found.T:
        assert chisquare(np.bincount(parameter, minlength=KEPT + 1)).pvalue > LEAST_P


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_ranks_are_uniform(make: Callable[[], Simulated]) -> None:
    assert_uniform(ranks(make()))


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_ranks_of_many_simulations_are_uniform(make: Callable[[], Simulated]) -> None:
    assert_uniform(ranks(make(), MANY))


def test_a_density_that_is_too_wide_is_noticed() -> None:
    model = normal()

    def wider(x: jax.Array, data: jax.Array) -> jax.Array:
        return 0.6 * model.logdensity(x, data)

    with pytest.raises(AssertionError):
        assert_uniform(ranks(replace(model, logdensity=wider)))
