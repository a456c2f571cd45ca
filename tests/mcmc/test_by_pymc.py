"""A PyMC model is what PyMC says it is: its density, its quantities, its data, and what it predicts."""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import needs
from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc import pymc_graphs
from lanewise.mcmc.inference import groups_of

pymc: Any = needs.library("pymc")

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCHOOLS = list("ABCDEFGH")
Values = dict[str, Any]


@pytest.fixture(autouse=True)
def double(precision: None) -> None:
    """Double precision, as PyMC's JAX backend turns it on for a process when it is first imported."""
    jax.config.update("jax_enable_x64", True)


def schools() -> Any:
    with pymc.Model(coords={"school": SCHOOLS}) as model:
        errors = pymc.Data("errors", ERRORS, dims="school")
        mean = pymc.Normal("mean", 0.0, 5.0)
        spread = pymc.HalfNormal("spread", 5.0)
        apart = pymc.Normal("apart", dims="school")
        theta = pymc.Deterministic("theta", mean + spread * apart, dims="school")
        pymc.Normal("effect", theta, errors, observed=EFFECTS, dims="school")
    return model


def everything() -> Any:
    """Transforms of all kinds, missing observations, a potential."""
    missing = np.ma.masked_invalid([1.0, 2.0, np.nan, 3.0])
    ordered = pymc.distributions.transforms.ordered
    with pymc.Model(coords={"part": ["a", "b", "c"], "row": [0, 1]}) as model:
        scale = pymc.HalfNormal("scale", 1.0)
        low = pymc.Normal("low", 0.0, 1.0)
        pymc.Uniform("between", low, low + 2.0)
        pymc.Dirichlet("weights", np.ones(3), dims="part")
        cuts = pymc.Normal("cuts", 0, 1, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
        spreads = pymc.HalfNormal.dist(1.0, shape=3)
        chol, _, _ = pymc.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=spreads, compute_corr=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that data are missing
            pymc.Normal("y", low, scale, observed=missing)
        pymc.MvNormal("rows", cuts, chol=chol, observed=np.eye(3)[:2], dims=("row", "part"))
        pymc.Potential("bound", -(scale**2))
    return model


def start_of(model: mcmc.Model, seed: int = 3) -> Any:
    assert model.init is not None
    return model.init(jax.random.key(seed))


def in_pymc(position: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in position.items()}


@pytest.mark.parametrize("make", [schools, everything])
def test_density_and_quantities_are_those_of_pymc(make: Any) -> None:
    theirs = make()
    ours = mcmc.from_pymc(theirs)
    position = start_of(ours)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(position))
    assert ours.shown is not None and ours.unconstrained is not None
    np.testing.assert_allclose(
        ours.logdensity(position), theirs.compile_logp()(in_pymc(position)), rtol=1e-10
    )
    shown = ours.shown(position)
    assert set(shown) == {rv.name for rv in [*theirs.free_RVs, *theirs.deterministics]}
    assert not any(name.endswith("__") for name in shown)
    expected = theirs.compile_fn(
        theirs.unobserved_value_vars, inputs=theirs.value_vars, point_fn=False
    )(*in_pymc(position).values())
    for variable, value in zip(theirs.unobserved_value_vars, expected, strict=True):
        if variable.name in shown:
            np.testing.assert_allclose(shown[variable.name], value, rtol=1e-10, atol=1e-12)
    again = ours.unconstrained(shown)
    assert again.keys() == position.keys()
    for name, value in position.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-9, atol=1e-12)


def test_imputed_values_and_correlations_are_kept() -> None:
    model = mcmc.from_pymc(everything())
    assert model.shown is not None
    shown = model.shown(start_of(model))
    assert {"y_unobserved", "y", "chol", "chol_corr", "chol_stds", "weights"} <= shown.keys()
    np.testing.assert_allclose(shown["y"][np.array([0, 1, 3])], [1.0, 2.0, 3.0])
    assert shown["y"][2] == shown["y_unobserved"][0]
    assert (np.diff(shown["cuts"]) > 0.0).all()
    np.testing.assert_allclose(shown["weights"].sum(), 1.0)
    np.testing.assert_allclose(np.diag(shown["chol_corr"]), 1.0)


def test_data_dims_and_coords_come_along() -> None:
    data = mcmc.sample(
        schools(), jax.random.key(0), chains=3, draws=5, warmup=0, step_size=0.1, progress=False
    )
    groups = groups_of(data)
    assert set(groups) == {"posterior", "sample_stats", "observed_data", "constant_data"}
    posterior = groups["posterior"]
    assert set(posterior.data_vars) == {"mean", "spread", "apart", "theta"}
    assert posterior["theta"].dims == ("chain", "draw", "school")
    assert posterior["school"].values.tolist() == SCHOOLS
    np.testing.assert_array_equal(groups["observed_data"]["effect"], EFFECTS)
    np.testing.assert_array_equal(groups["constant_data"]["errors"].sel(school="C"), ERRORS[2])
    assert (posterior["spread"] > 0.0).all()
    found = posterior["mean"] + posterior["spread"] * posterior["apart"]
    np.testing.assert_allclose(posterior["theta"], found)


@pytest.mark.parametrize("make", [schools, everything])
def test_the_log_likelihood_is_that_of_pymc(make: Any) -> None:
    theirs = make()
    ours = mcmc.from_pymc(theirs)
    position = start_of(ours)
    assert ours.log_likelihood is not None
    found = ours.log_likelihood(position)
    pointwise = theirs.compile_fn(
        theirs.logp(theirs.observed_RVs, sum=False),
        inputs=theirs.value_vars,
        point_fn=False,
        on_unused_input="ignore",
    )
    values = pointwise(*in_pymc(position).values())
    for variable, expected in zip(theirs.observed_RVs, values, strict=True):
        np.testing.assert_allclose(found[variable.name], expected, rtol=1e-10)


def drawn_from(function: Any, *arguments: Any, draws: int = 4000) -> Values:
    keys = jax.random.split(jax.random.key(11), draws)
    return jax.jit(jax.vmap(function, (0, *(None for _ in arguments))))(keys, *arguments)


def assert_moments(draws: Any, mean: Any, sd: Any) -> None:
    """Within five standard errors of a normal distribution's."""
    draws = np.asarray(draws)
    count = len(draws)
    assert (np.abs(draws.mean(0) - mean) < 5.0 * np.asarray(sd) / np.sqrt(count)).all()
    assert (np.abs(draws.std(0) / sd - 1.0) < 5.0 / np.sqrt(2.0 * count)).all()


def test_predictions_and_the_prior_are_drawn_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("PyTensor has JAX code for all of these")

    monkeypatch.setattr(pymc_graphs, "_by_host", never)
    model = mcmc.from_pymc(schools())
    assert model.predictive is not None and model.prior is not None and model.shown is not None
    position = start_of(model)
    theta = model.shown(position)["theta"]
    predicted = drawn_from(model.predictive, position)
    assert_moments(predicted["effect"], theta, ERRORS)
    prior = drawn_from(model.prior)
    assert prior.keys() == {"mean", "spread", "apart", "theta", "effect"}
    assert_moments(prior["mean"], 0.0, 5.0)
    assert_moments(prior["apart"], 0.0, 1.0)
    # A half normal of scale 5 has squares of mean 25, so effects vary with all that varies.
    effect = np.sqrt(25.0 + 25.0 + ERRORS**2)
    np.testing.assert_allclose(np.std(prior["effect"], axis=0), effect, rtol=0.1)
    np.testing.assert_allclose(
        prior["theta"], prior["mean"][:, None] + prior["spread"][:, None] * prior["apart"]
    )
    assert not np.allclose(prior["apart"][:, 0], prior["mean"]), "variables have keys of their own"


def test_missing_observations_are_predicted_as_drawn() -> None:
    model = mcmc.from_pymc(everything())
    assert model.predictive is not None and model.prior is not None and model.shown is not None
    position = start_of(model)
    predicted = drawn_from(model.predictive, position, draws=5)
    assert predicted.keys() == {"y_observed", "rows", "y"}
    assert (predicted["y"][:, 2] == model.shown(position)["y_unobserved"][0]).all()
    np.testing.assert_array_equal(predicted["y"][:, [0, 1, 3]], predicted["y_observed"])
    with pytest.warns(UserWarning, match="Potential is left out"):
        prior = drawn_from(model.prior, draws=5)
    assert prior["rows"].shape == (5, 2, 3)


def test_what_has_no_code_in_jax_is_drawn_by_pytensor() -> None:
    with pymc.Model() as theirs:
        mean = pymc.HalfNormal("mean", 2.0)
        pymc.Wald("y", mu=mean, lam=4.0, observed=np.array([0.5, 1.5]))
    model = mcmc.from_pymc(theirs)
    assert model.predictive is not None and model.prior is not None
    draws = drawn_from(model.predictive, {"mean_log__": jnp.log(2.0)}, draws=1000)["y"]
    assert draws.shape == (1000, 2) and len(np.unique(draws)) == 2000
    # A Wald variable has variance mean ** 3 / lam.
    assert np.abs(draws.mean() - 2.0) < 5.0 * np.sqrt(8.0 / 4.0 / 2000)
    same = drawn_from(model.predictive, {"mean_log__": jnp.log(2.0)}, draws=1000)["y"]
    np.testing.assert_array_equal(draws, same)
    assert drawn_from(model.prior, draws=3)["mean"].shape == (3,)


def test_data_are_those_of_when_the_model_was_taken() -> None:
    theirs = schools()
    taken = mcmc.from_pymc(theirs)
    position = start_of(taken)
    with theirs:
        pymc.set_data({"errors": 2.0 * ERRORS})
    later = mcmc.from_pymc(theirs)
    assert taken.log_likelihood is not None and later.log_likelihood is not None
    before, after = taken.log_likelihood(position), later.log_likelihood(position)
    assert not np.allclose(before["effect"], after["effect"])
    assert taken.shown is not None
    theta = taken.shown(position)["theta"]
    known = jax.scipy.stats.norm.logpdf(EFFECTS, theta, ERRORS)
    np.testing.assert_allclose(before["effect"], known)
    np.testing.assert_array_equal(taken.constant["errors"], ERRORS)
    np.testing.assert_array_equal(later.constant["errors"], 2.0 * ERRORS)


def test_functions_first_called_under_a_trace_leave_nothing_of_it_behind() -> None:
    model = mcmc.from_pymc(schools())
    position = start_of(model)
    assert model.log_likelihood and model.predictive and model.prior and model.shown
    assert model.unconstrained
    key = jax.random.key(0)
    calls = [(model.log_likelihood, (position,)), (model.predictive, (key, position))]
    calls += [(model.prior, (key,)), (model.shown, (position,))]
    for function, arguments in calls:
        traced = jax.jit(function)(*arguments)
        again = function(*arguments)
        for name, value in again.items():
            np.testing.assert_allclose(traced[name], value, rtol=1e-12)


def test_pymc_does_not_ask_for_a_hundred_devices() -> None:
    mcmc.from_pymc(schools())
    assert "device_count=100" not in os.environ.get("XLA_FLAGS", "")


def discrete() -> None:
    count = pymc.Poisson("count", 3.0)
    pymc.Normal("y", count, 1.0, observed=EFFECTS)


def missing_counts() -> None:
    mean = pymc.HalfNormal("mean", 1.0)
    pymc.Poisson("n", mean, observed=np.ma.masked_equal([1, -1, 2], -1))


def minibatch() -> None:
    mean = pymc.Normal("mean", 0.0, 1.0)
    part = pymc.Minibatch(EFFECTS, batch_size=4)
    pymc.Normal("y", mean, 1.0, observed=part, total_size=8)


def nothing_free() -> None:
    pymc.Normal("y", 0.0, 1.0, observed=EFFECTS)


REFUSED = {
    discrete: "count is of type int64.*sum it out",
    missing_counts: "n_unobserved is of type int64.*leave the missing observations out",
    minibatch: "draws random numbers itself .pymc.Minibatch",
    nothing_free: "no free variables",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_cannot_be_sampled_is_refused_with_the_fix(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pymc.Model() as theirs:
            make()
    with pytest.raises(OptionError, match=REFUSED[make]):
        mcmc.from_pymc(theirs)


def test_a_variable_that_pymc_cannot_draw_is_named() -> None:
    with pymc.Model() as theirs:
        mean = pymc.Normal("mean", 0.0, 1.0)
        pymc.CustomDist(
            "y", mean, logp=lambda value, mean: -((value - mean) ** 2), observed=EFFECTS
        )
    model = mcmc.from_pymc(theirs)
    assert model.predictive is not None
    with pytest.raises(OptionError, match="cannot draw from a variable of the model"):
        model.predictive(jax.random.key(0), start_of(model))
