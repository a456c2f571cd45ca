"""Hamiltonian Monte Carlo with trajectories of random length."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from lanewise import mcmc
from lanewise.core.errors import OptionError
from mcmc.posteriors import gaussian
from mcmc.references import figures


def test_hmc_draws_from_a_correlated_gaussian() -> None:
    posterior = gaussian(2)
    data = mcmc.sample(
        posterior.logdensity,
        jax.random.key(0),
        chains=32,
        draws=300,
        warmup=0,
        step_size=0.15,
        init=posterior.init,
        sampler=mcmc.HMC(steps=5),
        progress=False,
    )
    found, (mean, sd) = figures(data)["x"], posterior.exact["x"]
    assert (np.abs(found["mean"] - mean) < 5.0 * np.array(found["mean_mcse"])).all()
    assert (np.abs(found["sd"] - sd) < 5.0 * np.array(found["sd_mcse"])).all()
    steps = data.sample_stats["n_steps"].values
    assert np.unique(steps).tolist() == list(range(1, 10)), "lengths from 1 to 2 * steps - 1"


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"target_accept": 0.0}])
def test_bad_settings_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(OptionError, match=f"{name}=.* must be"):
        mcmc.HMC(**wrong)
