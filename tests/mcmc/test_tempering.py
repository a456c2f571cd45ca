"""Parallel tempering: several modes have their weights, and temperatures are spaced by the barrier."""

from __future__ import annotations

from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc.tempering import spaced
from mcmc.posteriors import gaussian
from mcmc.references import figures

WEIGHTS = np.array([0.6, 0.3, 0.1])
CENTERS = np.array([[-10.0, 0.0], [10.0, 5.0], [0.0, -12.0]])


def mixture(spreads: Any) -> Any:
    """Three normal distributions with these standard deviations."""
    # JAX keeps an array of NumPy in the precision of its first use.
    centers, weights = CENTERS.copy(), WEIGHTS.copy()

    def logdensity(x: jax.Array) -> jax.Array:
        apart = jnp.sum(((x - centers) / spreads[:, None]) ** 2, axis=1)
        return logsumexp(jnp.log(weights) - 0.5 * apart - 2.0 * jnp.log(spreads))

    return logdensity


def sampled(logdensity: Any, init: Any, **more: Any) -> Any:
    settings: dict[str, Any] = {"chains": 32, "draws": 1000, "warmup": 400, "progress": False}
    sampler = more.pop("sampler", mcmc.Tempering())
    return mcmc.sample(logdensity, 1, init=init, sampler=sampler, **(settings | more))


@pytest.mark.parametrize(
    "spreads", [np.array([1.0, 1.0, 1.0]), np.array([1.0, 0.5, 2.0])], ids=["alike", "unlike"]
)
@pytest.mark.filterwarnings("ignore::lanewise.mcmc.SamplingWarning")
def test_modes_have_their_weights(spreads: np.ndarray) -> None:
    with jax.enable_x64(True):
        data = sampled(mixture(spreads), lambda key: 5.0 * jax.random.normal(key, (2,)))
    x = data.posterior["x"].values
    which = np.linalg.norm((x[:, :, None] - CENTERS) / spreads[:, None], axis=-1).argmin(axis=-1)
    for mode, (weight, spread) in enumerate(zip(WEIGHTS, spreads)):
        there = which == mode
        error = np.sqrt(weight * (1.0 - weight) / float(arviz.ess(there.astype(float))))
        assert error < 0.03
        assert abs(there.mean() - weight) < 5.0 * error, mode
        assert np.abs(x[there].std(axis=0) / spread - 1.0).max() < 0.1
    assert data.posterior.attrs["round_trips"] > 32 * 20


def test_chains_by_nuts_do_not_cross() -> None:
    """What tempering is for; and it is said."""
    with pytest.warns(mcmc.SamplingWarning, match="R-hat"):
        sampled(
            mixture(np.ones(3)),
            lambda key: 5.0 * jax.random.normal(key, (2,)),
            sampler=mcmc.NUTS(),
            draws=200,
            chains=4,
        )


def test_a_correlated_gaussian() -> None:
    posterior = gaussian(2)
    with jax.enable_x64(True):
        data = sampled(posterior.logdensity, posterior.init, draws=500)
    found, (mean, sd) = figures(data)["x"], posterior.exact["x"]
    assert (np.abs(found["mean"] - mean) < 5.0 * np.array(found["mean_mcse"])).all()
    assert (np.abs(found["sd"] - sd) < 5.0 * np.array(found["sd_mcse"])).all()
    rejection = np.array(data.posterior.attrs["swap_rejection"])
    assert rejection.max() < 2.0 * rejection.mean()


def test_temperatures_share_the_barrier() -> None:
    betas = np.linspace(0.0, 1.0, 11)
    rejection = np.full(10, 0.1)
    np.testing.assert_allclose(spaced(betas, rejection), betas)
    rejection[0] = 1.1
    found = spaced(betas, rejection)
    assert (np.diff(found) > 0.0).all() and found[5] < betas[1]
    np.testing.assert_allclose(spaced(betas, np.zeros(10)), betas)


def test_too_few_replicas_are_reported() -> None:
    far = mixture(np.full(3, 0.01))
    with pytest.warns(mcmc.SamplingWarning, match=r"States came from .*Tempering\(replicas=4\)"):
        sampled(far, lambda key: 50.0 * jax.random.normal(key, (2,)), sampler=mcmc.Tempering(2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"warmup": 0}, "warmup=0 tunes nothing"),
        ({"mass_matrix": "dense"}, "mass_matrix='dense' is not for Tempering"),
        ({"adaptation": "chain"}, "adaptation='chain' is not for Tempering"),
    ],
)
def test_what_cannot_be_done_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sampled(mixture(np.ones(3)), lambda key: jnp.zeros(2), **wrong)


@pytest.mark.parametrize("wrong", [{"replicas": 1}, {"steps": 0}, {"target_accept": 1.0}])
def test_bad_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        mcmc.Tempering(**wrong)
