"""Microcanonical Langevin Monte Carlo: nearly right, since nothing is rejected, and said to be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc.mclmc import Flight, turned
from lanewise.mcmc.space import Place
from mcmc.posteriors import gaussian
from mcmc.references import figures

# What the integrator's error may add, as a share of the standard deviation.
BIAS = 0.03


def test_mclmc_draws_nearly_from_a_correlated_gaussian() -> None:
    posterior = gaussian(10)
    data = mcmc.sample(
        posterior.logdensity,
        jax.random.key(0),
        chains=32,
        draws=300,
        warmup=100,
        init=posterior.init,
        sampler=mcmc.MCLMC(),
        progress=False,
    )
    found, (mean, sd) = figures(data)["x"], posterior.exact["x"]
    assert (np.abs(found["mean"] - mean) < 5.0 * np.array(found["mean_mcse"]) + BIAS * sd).all()
    assert (np.abs(found["sd"] - sd) < 5.0 * np.array(found["sd_mcse"]) + BIAS * sd).all()
    assert not data.sample_stats["diverging"].any()


def test_a_gradient_turns_the_direction_towards_itself() -> None:
    """By the differential equation: u' = (1 - u uᵀ) g / (d - 1), and the speed gains u·g."""
    gradient, direction = jnp.array([0.3, -2.0, 1.0]), jnp.array([1.0, 0.0, 0.0])
    place = Place(jnp.zeros(3), jnp.float32(0.0), gradient)
    step = 1e-3
    after, gained = turned(Flight(place, direction), jnp.float32(step))
    rate = (gradient - direction * (direction @ gradient)) / 2.0
    np.testing.assert_allclose(after.direction, direction + step * rate, atol=2e-6)
    np.testing.assert_allclose(jnp.linalg.norm(after.direction), 1.0, rtol=1e-6)
    np.testing.assert_allclose(gained, step * direction @ gradient, atol=3e-6)


def test_one_dimension_is_refused() -> None:
    with pytest.raises(
        OptionError, match="a density of one dimension has only one; use NUTS or HMC"
    ):
        mcmc.sample(
            lambda x: -0.5 * x**2,
            jax.random.key(0),
            chains=2,
            draws=2,
            warmup=0,
            step_size=0.1,
            init=jnp.zeros(2),
            sampler=mcmc.MCLMC(),
            progress=False,
        )


@pytest.mark.parametrize("wrong", [{"length": 0.0}, {"max_steps": 0}, {"target_accept": 1.5}])
def test_bad_settings_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(OptionError, match=f"{name}=.* must be"):
        mcmc.MCLMC(**wrong)
