"""After sampling: log likelihoods and predictions of any model, in blocks, as PyMC and ArviZ have them."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import needs
from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc import in_blocks
from lanewise.mcmc.inference import data_of, groups_of, with_groups

arviz: Any = needs.library("arviz")

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
CHAINS, DRAWS = 3, 40


@pytest.fixture(autouse=True)
def double(precision: None) -> None:
    jax.config.update("jax_enable_x64", True)


def shown(position: Any) -> dict[str, Any]:
    spread = jnp.exp(position["log_spread"])
    theta = position["mean"] + spread * position["apart"]
    return {"mean": position["mean"], "spread": spread, "apart": position["apart"], "theta": theta}


def unconstrained(quantities: Any) -> Any:
    log_spread = jnp.log(quantities["spread"])
    return {"mean": quantities["mean"], "log_spread": log_spread, "apart": quantities["apart"]}


def log_likelihood(position: Any) -> dict[str, Any]:
    return {"effect": norm.logpdf(EFFECTS, shown(position)["theta"], ERRORS)}


def predictive(key: Any, position: Any) -> dict[str, Any]:
    theta = shown(position)["theta"]
    return {"effect": theta + ERRORS * jax.random.normal(key, theta.shape)}


def prior(key: Any) -> dict[str, Any]:
    keys = jax.random.split(key, 4)
    log_spread = jnp.log(jnp.abs(5.0 * jax.random.normal(keys[0])))
    mean, apart = 5.0 * jax.random.normal(keys[1]), jax.random.normal(keys[2], (8,))
    position = {"mean": mean, "log_spread": log_spread, "apart": apart}
    return shown(position) | predictive(keys[3], position)


SCHOOLS = mcmc.Model(
    lambda position: jnp.zeros(()),
    shown=shown,
    unconstrained=unconstrained,
    log_likelihood=log_likelihood,
    predictive=predictive,
    prior=prior,
    observed={"effect": EFFECTS},
    constant={"errors": ERRORS},
    dims={name: ["school"] for name in ("effect", "errors", "apart", "theta")},
    coords={"school": list("ABCDEFGH")},
)


def schools_data() -> Any:
    """Draws near the posterior of eight schools."""
    random = np.random.default_rng(1)
    mean = 4.5 + 3.0 * random.normal(size=(CHAINS, DRAWS))
    spread = np.exp(1.0 + 0.7 * random.normal(size=(CHAINS, DRAWS)))
    apart = 0.9 * random.normal(size=(CHAINS, DRAWS, 8))
    theta = mean[..., None] + spread[..., None] * apart
    return data_of({"posterior": {"mean": mean, "spread": spread, "apart": apart, "theta": theta}})


def expected(data: Any) -> np.ndarray:
    return np.asarray(norm.logpdf(EFFECTS, data.posterior["theta"].values, ERRORS))


@pytest.mark.parametrize("block", [None, 1, 7, 50, 1000])
def test_the_log_likelihood_is_that_of_each_draw(block: int | None) -> None:
    data = schools_data()
    found = mcmc.log_likelihood(SCHOOLS, data, block=block)
    assert found.log_likelihood["effect"].dims == ("chain", "draw", "school")
    np.testing.assert_allclose(found.log_likelihood["effect"].values, expected(data), rtol=1e-12)
    assert "log_likelihood" not in groups_of(data), "data are not changed"


def figures_of(loo: Any) -> tuple[float, float, float]:
    """Estimate, standard error and effective number of parameters, under ArviZ 0.x's names or 1.x's."""
    elpd = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo
    p = loo.p if hasattr(loo, "p") else loo.p_loo
    return float(elpd), float(loo.se), float(p)


def test_loo_is_that_of_pymc() -> None:
    pymc: Any = needs.library("pymc")
    with pymc.Model(coords={"school": list("ABCDEFGH")}) as theirs:
        mean = pymc.Normal("mean", 0.0, 5.0)
        spread = pymc.HalfNormal("spread", 5.0)
        apart = pymc.Normal("apart", dims="school")
        theta = pymc.Deterministic("theta", mean + spread * apart, dims="school")
        pymc.Normal("effect", theta, ERRORS, observed=EFFECTS, dims="school")
    data = schools_data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = pymc.compute_log_likelihood(
            with_groups(data, {}), model=theirs, progressbar=False, extend_inferencedata=True
        )
        for model in (theirs, SCHOOLS):
            found = mcmc.log_likelihood(model, data)
            ours, reference = figures_of(arviz.loo(found)), figures_of(arviz.loo(known))
            np.testing.assert_allclose(ours, reference, rtol=1e-8)
            if hasattr(arviz, "waic"):  # ArviZ 1.x has none
                waic = arviz.waic(found).elpd_waic
                np.testing.assert_allclose(waic, arviz.waic(known).elpd_waic, rtol=1e-8)


def test_predictions_do_not_depend_on_blocks_and_are_spread_as_errors_are() -> None:
    data, key = schools_data(), jax.random.key(5)
    one = mcmc.posterior_predictive(SCHOOLS, data, key).posterior_predictive["effect"]
    other = mcmc.posterior_predictive(SCHOOLS, data, key, block=11).posterior_predictive["effect"]
    np.testing.assert_allclose(one.values, other.values, rtol=1e-12)
    scores = (one.values - data.posterior["theta"].values) / ERRORS
    count = scores.size
    assert abs(scores.mean()) < 5.0 / np.sqrt(count)
    assert abs(scores.std() - 1.0) < 5.0 / np.sqrt(2.0 * count)
    assert len(np.unique(scores)) == count, "each draw has a key of its own"


def test_predictions_of_other_data_have_groups_of_their_own() -> None:
    found = groups_of(
        mcmc.posterior_predictive(SCHOOLS, schools_data(), jax.random.key(5), predictions=True)
    )
    assert set(found) == {"posterior", "predictions", "predictions_constant_data"}
    np.testing.assert_array_equal(found["predictions_constant_data"]["errors"], ERRORS)


def test_the_prior_is_drawn_with_what_could_be_observed() -> None:
    found = mcmc.prior_predictive(SCHOOLS, jax.random.key(2), draws=300)
    groups = groups_of(found)
    assert set(groups) == {"prior", "prior_predictive", "observed_data", "constant_data"}
    assert set(groups["prior"].data_vars) == {"mean", "spread", "apart", "theta"}
    assert set(groups["prior_predictive"].data_vars) == {"effect"}
    assert groups["prior"]["apart"].dims == ("chain", "draw", "school")
    assert abs(groups["prior"]["mean"].std() / 5.0 - 1.0) < 5.0 / np.sqrt(600)
    added = groups_of(
        mcmc.prior_predictive(SCHOOLS, jax.random.key(2), draws=3, data=schools_data())
    )
    assert {"posterior", "prior", "prior_predictive"} == set(added)


def test_draws_that_were_chosen_keep_their_numbers() -> None:
    posterior = groups_of(schools_data())["posterior"].isel(draw=slice(None, None, 10), chain=[2])
    found = mcmc.log_likelihood(SCHOOLS, data_of({"posterior": posterior})).log_likelihood
    assert found["draw"].values.tolist() == [0, 10, 20, 30]
    assert found["chain"].values.tolist() == [2]


def test_quantities_that_make_no_position_are_not_read() -> None:
    class Unread:
        shape, dtype = (CHAINS, DRAWS, 8), np.dtype(float)

        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("theta is not needed")

    data = schools_data()
    known = expected(data)
    posterior = dict(groups_of(data)["posterior"].data_vars) | {"theta": Unread()}
    found = mcmc.log_likelihood(SCHOOLS, data_of({"posterior": posterior}))
    np.testing.assert_allclose(found.log_likelihood["effect"].values, known)


def test_a_model_that_shows_its_position_needs_no_inverse() -> None:
    def init(key: Any) -> Any:
        return {"group": [jnp.zeros(()), jax.random.normal(key, (2,))]}

    model = mcmc.Model(
        lambda position: jnp.zeros(()),
        init,
        log_likelihood=lambda p: {"y": p["group"][0] + p["group"][1]},
    )
    shift, rest = np.ones((2, 5)), np.arange(20.0).reshape(2, 5, 2)
    data = data_of({"posterior": {"group.0": shift, "group.1": rest}})
    found = mcmc.log_likelihood(model, data).log_likelihood["y"].values
    np.testing.assert_array_equal(found, shift[..., None] + rest)


def test_a_block_shrinks_to_the_memory_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    compile_it = in_blocks._compiled.__wrapped__

    def noted(work: Any, block: Any, **rest: Any) -> Any:
        made.append(block)
        return compile_it(work, block, **rest)

    monkeypatch.setattr(in_blocks, "_compiled", noted)
    monkeypatch.setattr(in_blocks, "BLOCK_BYTES", 2**14)

    def of_matrices(x: Any) -> dict[str, Any]:
        matrix = jnp.exp(-((jnp.arange(40.0)[:, None] - jnp.arange(40.0)) ** 2)) + jnp.exp(
            x
        ) * jnp.eye(40)
        return {"y": jnp.linalg.cholesky(matrix)[-1, -1]}

    draws = np.random.default_rng(0).normal(size=(2, 500))
    model = mcmc.Model(lambda x: -x, log_likelihood=of_matrices)
    found = mcmc.log_likelihood(model, data_of({"posterior": {"x": draws}})).log_likelihood["y"]
    assert len(made) == 2 and made[1].chains * made[1].draws < made[0].chains * made[0].draws
    np.testing.assert_allclose(found[1, 499], of_matrices(draws[1, 499])["y"], rtol=1e-10)


def bare(**fields: Any) -> mcmc.Model:
    return mcmc.Model(lambda x: -x, **fields)


def no_draws() -> Any:
    return data_of({"observed_data": {"y": np.zeros(2)}})


REFUSED = {
    "has no log_likelihood: make it with Model": lambda: mcmc.log_likelihood(
        bare(), schools_data()
    ),
    "has no predictive: make it with Model": lambda: mcmc.posterior_predictive(
        bare(), schools_data(), jax.random.key(0)
    ),
    "has no prior: make it with Model": lambda: mcmc.prior_predictive(bare(), jax.random.key(0)),
    "has no unconstrained: .* the inverse of shown": lambda: mcmc.log_likelihood(
        bare(shown=shown, log_likelihood=log_likelihood), schools_data()
    ),
    "the posterior has no 'mean'": lambda: mcmc.log_likelihood(
        SCHOOLS, data_of({"posterior": {"spread": np.ones((2, 3))}})
    ),
    "data has no group posterior": lambda: mcmc.log_likelihood(SCHOOLS, no_draws()),
    "block=0 must be an int": lambda: mcmc.log_likelihood(SCHOOLS, schools_data(), block=0),
    "draws=0 must be an int": lambda: mcmc.prior_predictive(SCHOOLS, jax.random.key(0), draws=0),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_is_missing_is_named_with_the_fix(says: str) -> None:
    with pytest.raises(OptionError, match=says):
        REFUSED[says]()
