"""Joint distributions of TensorFlow Probability are the densities that they say."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from lanewise import mcmc
from lanewise.core.errors import OptionError

try:
    tfp = importlib.import_module("tensorflow_probability.substrates.jax")
except (ImportError, AttributeError):  # a release for another JAX fails in its own ways
    pytest.skip(
        "no TensorFlow Probability that works with this JAX; pip install 'tfp-nightly[jax]'",
        allow_module_level=True,
    )

tfd: Any = tfp.distributions
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


@tfd.JointDistributionCoroutineAutoBatched
def schools() -> Any:
    mean = yield tfd.Normal(0.0, 5.0, name="mean")
    spread = yield tfd.HalfNormal(5.0, name="spread")
    apart = yield tfd.Sample(tfd.Normal(0.0, 1.0), 8, name="apart")
    yield tfd.Independent(tfd.Normal(mean + spread * apart, ERRORS), 1, name="effect")


NAMED = tfd.JointDistributionNamedAutoBatched(
    {
        "mean": tfd.Normal(0.0, 5.0),
        "spread": tfd.HalfNormal(5.0),
        "y": lambda mean, spread: tfd.Sample(tfd.Normal(mean, spread), 4),
    }
)
DATA = np.array([1.0, 2.0, 0.5, 3.0], np.float32)


@pytest.mark.parametrize(
    "make", [lambda: (schools, {"effect": EFFECTS}), lambda: (NAMED, {"y": DATA})]
)
def test_the_density_has_the_jacobian(make: Any) -> None:
    joint, observed = make()
    model = mcmc.from_tfp(joint, observed)
    assert model.init is not None and model.shown is not None and model.unconstrained is not None
    position = model.init(jax.random.key(0))
    shown = model.shown(position)
    assert shown["spread"] > 0.0 and not set(observed) & set(shown)
    back = jax.tree.leaves(model.unconstrained(shown))
    for found, known in zip(back, jax.tree.leaves(position)):
        np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-5)
    # Along one coordinate the density changes as that of the values does, with the derivative of what is shown.
    whole = float(
        joint.log_prob({**shown, **observed})
        if joint is NAMED
        else joint.log_prob(**shown, **observed)
    )
    spread = [leaf for leaf in jax.tree.leaves(position) if leaf.shape == ()]
    assert len(spread) == 2
    jacobian = jax.jacobian(lambda p: jnp.stack([model.shown(p)["spread"]]))(position)  # type: ignore[misc]
    slope = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(jacobian))
    np.testing.assert_allclose(float(model.logdensity(position)), whole + np.log(slope), rtol=1e-5)


def test_each_observation_has_a_likelihood_and_can_be_drawn() -> None:
    model = mcmc.from_tfp(schools, {"effect": EFFECTS}, dims={"effect": ["school"]})
    data = mcmc.sample(model, 0, chains=8, draws=300, warmup=300, progress=False)
    data = mcmc.log_likelihood(model, data)
    data = mcmc.posterior_predictive(model, data, 1)
    posterior = {name: value.values for name, value in data.posterior.data_vars.items()}
    school = posterior["mean"][..., None] + posterior["spread"][..., None] * posterior["apart"]
    known = norm.logpdf(EFFECTS, school, ERRORS)
    np.testing.assert_allclose(data.log_likelihood["effect"], known, rtol=1e-4)
    assert data.posterior_predictive["effect"].dims == ("chain", "draw", "school")
    # As a NumPyro run of this model has it.
    assert abs(posterior["mean"].mean() - 4.4) < 0.6
    prior = mcmc.prior_predictive(model, 2, draws=400).prior
    assert abs(float(prior["mean"].std()) - 5.0) < 1.0


def test_nothing_observed_is_the_prior() -> None:
    model = mcmc.from_tfp(NAMED, {})
    data = mcmc.sample(model, 0, chains=4, draws=20, warmup=50, progress=False)
    assert data.posterior["y"].shape == (4, 20, 4)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "a lone distribution": (tfd.Normal(0.0, 1.0), {}, "takes a joint distribution"),
    "an unknown name": (NAMED, {"z": 1.0}, "observed names ['z']; the variables are"),
    "nothing left": (NAMED, {"y": DATA, "mean": 0.0, "spread": 1.0}, "nothing to sample"),
    "no names": (
        tfd.JointDistributionSequentialAutoBatched([tfd.Normal(0.0, 1.0)]),
        {},
        "have no names",
    ),
    "whole numbers": (
        tfd.JointDistributionNamedAutoBatched({"n": tfd.Poisson(3.0)}),
        {},
        "these samplers move along gradients",
    ),
    "a batch": (
        tfd.JointDistributionNamed({"x": tfd.Normal(jnp.zeros(3), 1.0)}),
        {},
        "is a batch, of shape (3,)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sampled_is_refused_with_the_fix(case: str) -> None:
    joint, observed, says = REFUSED[case]
    with pytest.raises(OptionError) as error:
        mcmc.from_tfp(joint, observed)
    assert says in str(error.value)
