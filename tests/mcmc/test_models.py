"""Models of other libraries are the densities that they say they are."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import needs
from lanewise import mcmc
from lanewise.core.errors import OptionError

OBSERVED = np.array([0.5, -1.2, 2.2, 0.9, 1.7], np.float32)

needs_numpyro = needs.installed("numpyro")
needs_pymc = needs.installed("pymc")


def direct(mean: jax.Array, log_spread: jax.Array) -> jax.Array:
    """Numbers of unknown mean and spread, a half normal by its logarithm."""
    spread = jnp.exp(log_spread)
    prior = norm.logpdf(mean, 0.0, 2.0) + jnp.log(2.0) + norm.logpdf(spread) + log_spread
    return prior + jnp.sum(norm.logpdf(OBSERVED, mean, spread))


def numpyro_model(observed: Any, *, scale: float) -> None:
    import numpyro
    from numpyro.distributions import HalfNormal, Normal

    mean = numpyro.sample("mean", Normal(0.0, scale))
    spread = numpyro.sample("spread", HalfNormal(1.0))
    numpyro.deterministic("ratio", mean / spread)
    numpyro.sample("observed", Normal(mean, spread), obs=observed)


def assert_direct(model: mcmc.Model, mean: str, log_spread: str) -> None:
    assert model.init is not None
    positions = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 16))
    found = jax.vmap(model.logdensity)(positions)
    wanted = jax.vmap(direct)(positions[mean], positions[log_spread])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert len(np.unique(positions[mean])) == 16, "starts differ"


def assert_sampled(model: mcmc.Model) -> None:
    """Draws are kept in the model's own quantities."""
    data = mcmc.sample(
        model,
        jax.random.key(1),
        chains=8,
        draws=20,
        warmup=0,
        step_size=0.05,
        progress=False,
    )
    draws = data.posterior
    assert (draws["spread"] > 0.0).all()
    assert "observed" not in draws
    np.testing.assert_allclose(draws["ratio"], draws["mean"] / draws["spread"], rtol=1e-4)
    values = direct(jnp.asarray(draws["mean"].values[3, 7]), jnp.log(draws["spread"].values[3, 7]))
    np.testing.assert_allclose(data.sample_stats["lp"][3, 7], values, rtol=1e-4)


@needs_numpyro
def test_a_numpyro_model_is_its_density() -> None:
    model = mcmc.from_numpyro(numpyro_model, OBSERVED, scale=2.0)
    assert_direct(model, "mean", "spread")
    assert_sampled(model)


def ragged() -> None:
    """Supports of several kinds, one of which depends on another site."""
    import numpyro
    from numpyro import distributions as dist

    low: Any = numpyro.sample("low", dist.Normal(0.0, 1.0))
    numpyro.sample("between", dist.Uniform(low, low + 2.0))
    weights: Any = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.deterministic("first", weights[0])
    with numpyro.plate("rows", 5):
        numpyro.sample("observed", dist.Normal(low, 1.0), obs=OBSERVED)


def looping() -> None:
    """A loop of NumPyro's own, which NumPyro must prepare."""
    import numpyro
    from numpyro import distributions as dist
    from numpyro.contrib.control_flow import scan

    def step(state: Any, observed: Any) -> Any:
        state = numpyro.sample("state", dist.Normal(0.9 * state, 1.0))
        numpyro.sample("observed", dist.Normal(state, 0.5), obs=observed)
        return state, None

    scan(step, numpyro.sample("start", dist.Normal(0.0, 1.0)), jnp.asarray(OBSERVED))


@needs_numpyro
@pytest.mark.parametrize("model", [ragged, looping])
def test_a_numpyro_model_is_what_numpyro_makes_of_it(model: Any) -> None:
    from numpyro.infer.util import initialize_model

    ours = mcmc.from_numpyro(model)
    theirs = initialize_model(jax.random.PRNGKey(0), model)
    assert ours.init is not None and ours.shown is not None
    position = jax.jit(ours.init)(jax.random.key(3))
    shapes = jax.tree.map(jnp.shape, (position, theirs.param_info.z))
    assert shapes[0] == shapes[1]
    expected = theirs.postprocess_fn(position)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        (ours.logdensity(position), dict(ours.shown(position))),
        (-theirs.potential_fn(position), {name: expected[name] for name in ours.shown(position)}),
    )
    assert set(expected) == set(ours.shown(position))


@needs_pymc
def test_a_pymc_model_is_its_density() -> None:
    import pymc

    with pymc.Model() as theirs:
        mean = pymc.Normal("mean", 0.0, 2.0)
        spread = pymc.HalfNormal("spread", 1.0)
        pymc.Deterministic("ratio", mean / spread)
        pymc.Normal("observed", mean, spread, observed=OBSERVED)
    model = mcmc.from_pymc(theirs)
    assert_direct(model, "mean", "spread_log__")
    assert_sampled(model)


@needs_pymc
def test_a_pymc_model_of_whole_numbers_is_refused() -> None:
    import pymc

    with pymc.Model() as theirs:
        count = pymc.Poisson("count", 3.0)
        pymc.Normal("observed", count, 1.0, observed=OBSERVED)
    with pytest.raises(OptionError, match="count is of type int64"):
        mcmc.from_pymc(theirs)
    with pytest.raises(OptionError, match=r"from_pymc takes a pymc.Model; got int"):
        mcmc.from_pymc(3)


@pytest.mark.parametrize(
    ("adapter", "library"), [("from_numpyro", "numpyro.infer"), ("from_pymc", "pymc")]
)
def test_a_missing_library_is_named(
    adapter: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(OptionError, match=f"{adapter} needs .*: pip install"):
        getattr(mcmc, adapter)(lambda: None)
