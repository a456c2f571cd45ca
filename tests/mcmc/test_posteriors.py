"""What is drawn agrees with what is known: exactly, or from long runs of NumPyro kept in `references.json`.

A mean or a standard deviation may be off by `ERRORS_APART` Monte Carlo standard errors, those of both runs together,
and the ranks of all chains must have mixed (R-hat, rank-normalized and split, below 1.01).

Eight schools in centered coordinates and Neal's funnel have necks that no step size fits: there a run of NumPyro of
128,000 draws at an acceptance of 0.99 ends with an R-hat of 1.05 and two thousand divergences, so there is nothing to
compare with. But draws from both can be made exactly, and whatever its step size, a sampler must leave them distributed
as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from lanewise import mcmc
from lanewise.mcmc.inference import data_of
from mcmc import posteriors
from mcmc.posteriors import Posterior
from mcmc.references import KEPT, figures, worst_rhat

ERRORS_APART = 5.0
WORST_RHAT = 1.01
LEAST_P = 1e-3

pytestmark = pytest.mark.filterwarnings("ignore::lanewise.mcmc.SamplingWarning")


@dataclass(frozen=True)
class Run:
    make: Callable[[], Posterior]
    chains: int = 32
    draws: int = 400
    warmup: int = 200
    options: dict[str, Any] = field(default_factory=dict)


def of_benchmarks(name: str, **more: Any) -> Run:
    return Run(lambda: posteriors.of_benchmarks(name), **more)


CAREFUL = {"sampler": mcmc.NUTS(target_accept=0.95)}
SLOW = {
    "gaussian_process": of_benchmarks("gaussian_process", draws=600),
    "lkj": of_benchmarks("lkj"),
    "lotka_volterra": of_benchmarks("lotka_volterra", warmup=400, draws=600),
    "horseshoe": of_benchmarks("horseshoe", warmup=400, draws=800, options=CAREFUL),
}
RUNS = {
    "gaussian_2": Run(lambda: posteriors.gaussian(2), draws=600, options={"adaptation": "chain"}),
    "gaussian_100": Run(
        lambda: posteriors.gaussian(100),
        chains=16,
        draws=800,
        options={"mass_matrix": "dense", "carrier": "native"},
    ),
    "schools_not_centered": Run(posteriors.schools_not_centered),
    "funnel_not_centered": Run(
        posteriors.funnel_not_centered, warmup=0, options={"step_size": 0.7, "mass_matrix": "unit"}
    ),
    "logistic": Run(posteriors.logistic, chains=16),
    "poisson": Run(posteriors.poisson, draws=800),
    "volatility": Run(
        posteriors.volatility,
        chains=16,
        draws=800,
        options={"sampler": mcmc.NUTS(target_accept=0.9)},
    ),
    "radon": of_benchmarks("radon"),
    "ordered_mixture": of_benchmarks("ordered_mixture", draws=600),
    "autoregression": of_benchmarks("autoregression"),
}


def expected(posterior: Posterior) -> dict[str, dict[str, Any]]:
    if not posterior.exact:
        return json.loads(KEPT.read_text())[posterior.name]
    return {
        name: {"mean": mean, "sd": sd, "mean_mcse": 0.0, "sd_mcse": 0.0}
        for name, (mean, sd) in posterior.exact.items()
    }


def assert_same(found: dict[str, dict[str, Any]], known: dict[str, dict[str, Any]]) -> None:
    """Means and standard deviations within errors of what is known."""
    assert found.keys() == known.keys()
    for quantity, kept in known.items():
        ours = {measure: np.asarray(value) for measure, value in found[quantity].items()}
        for measure in ("mean", "sd"):
            error = np.hypot(ours[f"{measure}_mcse"], kept[f"{measure}_mcse"])
            apart = np.abs(ours[measure] - np.asarray(kept[measure])) / error
            assert apart.max() < ERRORS_APART, f"{measure} of {quantity}: {apart} errors apart"


@pytest.mark.parametrize(
    "name", [*RUNS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_means_and_deviations_are_those_of_the_posterior(name: str) -> None:
    run = (RUNS | SLOW)[name]
    posterior = run.make()
    data = mcmc.sample(
        mcmc.Model(posterior.logdensity, posterior.init, posterior.shown),
        jax.random.key(0),
        chains=run.chains,
        draws=run.draws,
        warmup=run.warmup,
        progress=False,
        **run.options,
    )
    assert_same(figures(data), expected(posterior))
    assert worst_rhat(data) < WORST_RHAT


def moved(logdensity: Any, starts: Any, step_size: float) -> Any:
    """Chains after a few draws with a fixed step size."""
    chains = jax.tree.leaves(starts)[0].shape[0]
    data = mcmc.sample(
        logdensity,
        jax.random.key(1),
        chains=chains,
        draws=5,
        warmup=0,
        init=starts,
        step_size=step_size,
        mass_matrix="unit",
        progress=False,
    )
    return data.isel(draw=[-1])


def test_draws_of_neals_funnel_stay_draws_of_it() -> None:
    starts = jax.vmap(posteriors.funnel_draw)(jax.random.split(jax.random.key(0), 2048))
    data = moved(posteriors.funnel_logdensity, starts, 0.3).posterior
    neck, rest = (np.asarray(data[name]).squeeze(1) for name in ("neck", "rest"))
    assert np.mean(np.abs(neck - starts["neck"])) > 0.5
    assert kstest(neck / posteriors.NECK_SPREAD, "norm").pvalue > LEAST_P
    assert kstest((rest * np.exp(-0.5 * neck[:, None])).ravel(), "norm").pvalue > LEAST_P


def test_draws_of_eight_schools_stay_draws_of_them() -> None:
    starts = jax.tree.map(jnp.asarray, posteriors.schools_draws(2048))
    data = moved(posteriors.schools_centered, starts, 0.3)
    assert np.mean(np.abs(data.posterior["mean"].values.ravel() - starts["mean"])) > 1.0
    # One draw of each of many chains: those of one chain, as far as errors go.
    independent = {
        name: value.transpose("draw", "chain", ...).values
        for name, value in data.posterior.data_vars.items()
    }
    known = json.loads(KEPT.read_text())["schools_not_centered"]
    assert_same(figures(data_of({"posterior": independent})), known)
