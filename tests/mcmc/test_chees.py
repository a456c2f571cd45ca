"""ChEES and SNAPER: draws of what is known, gradients of the criteria, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc.chees import Carried, Ended, Task, chain_of, chees_gradient, snaper_gradient
from lanewise.mcmc.space import Place, Point
from mcmc.posteriors import NECK_SPREAD, Posterior, gaussian, schools_not_centered
from mcmc.references import KEPT, figures
from mcmc.test_sample import Guarded

CRITERIA = ("chees", "snaper")


def sampled(posterior: Posterior, **more: Any) -> Any:
    model = mcmc.Model(posterior.logdensity, posterior.init, posterior.shown)
    settings: dict[str, Any] = {"chains": 128, "draws": 60, "warmup": 300, "progress": False}
    return mcmc.sample(model, jax.random.key(1), **(settings | more))


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_correlated_gaussian(criterion: str) -> None:
    posterior = gaussian(50)
    with jax.enable_x64(True):
        data = sampled(posterior, sampler=mcmc.ChEES(criterion))
    found, (mean, sd) = figures(data)["x"], posterior.exact["x"]
    assert (np.abs(found["mean"] - mean) < 5.0 * np.array(found["mean_mcse"])).all()
    assert (np.abs(found["sd"] - sd) < 5.0 * np.array(found["sd_mcse"])).all()
    assert data.posterior.attrs["trajectory_length"] > 2.0 * float(
        data.sample_stats.step_size[0, 0]
    )


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.filterwarnings("ignore::lanewise.mcmc.SamplingWarning")
def test_eight_schools(criterion: str) -> None:
    with jax.enable_x64(True):
        data = sampled(schools_not_centered(), sampler=mcmc.ChEES(criterion))
    found = figures(data)
    for name, known in json.loads(KEPT.read_text())["schools_not_centered"].items():
        for figure in ("mean", "sd"):
            apart = np.abs(np.array(found[name][figure]) - known[figure])
            error = np.hypot(found[name][f"{figure}_mcse"], known[f"{figure}_mcse"])
            assert (apart < 5.0 * error).all(), (name, figure)


def test_exact_draws_stay_exact() -> None:
    """Chains that start at exact draws of the funnel are still draws of it, at one step size for all of it."""
    chains, rest = 4096, 2

    def density(x: jax.Array) -> jax.Array:
        neck = x[0]
        return -0.5 * (neck**2 / NECK_SPREAD**2 + jnp.exp(-neck) * (x[1:] @ x[1:]) + rest * neck)

    rng = np.random.default_rng(0)
    neck = NECK_SPREAD * rng.standard_normal(chains)
    others = np.exp(0.5 * neck)[:, None] * rng.standard_normal((chains, rest))
    with jax.enable_x64(True):
        positions = jnp.asarray(np.concatenate([neck[:, None], others], axis=1))
        values, gradients = jax.vmap(jax.value_and_grad(density))(positions)
        keys, space = jax.random.split(jax.random.key(0), chains), jnp.array([2.0, 0.5, 1.0])
        place = Place(positions / space, values, gradients * space)
        point = Point(place, jnp.zeros_like(positions))
        carried = Carried(place, Ended(point, point, jnp.zeros(chains), jnp.zeros(chains, bool)))
        task = Task(0, 0, 1, jnp.array(False), jnp.array(0.3), jnp.full(16, 5, jnp.int32))
        axes = (0, 0, None, None, None)
        ran, kept = lw.vmap(chain_of(density, 16), in_axes=axes)(keys, carried, 16, space, task)
    last = np.asarray(kept.positions[:, -1, 0])
    assert (last != neck).mean() > 0.5
    assert abs(last.mean()) < 4.0 * NECK_SPREAD / np.sqrt(chains)
    assert abs(last.std() / NECK_SPREAD - 1.0) < 4.0 / np.sqrt(2.0 * chains)
    np.testing.assert_allclose(ran.place.logdensity, kept.logdensity[:, -1])


@pytest.mark.filterwarnings("ignore:The m:lanewise.mcmc.SamplingWarning")
def test_a_chain_that_fails_costs_only_itself() -> None:
    starts = jax.random.normal(jax.random.key(1), (16, 2)).at[2, 0].set(-2e3)
    with pytest.warns(mcmc.SamplingWarning, match=r"1 of 16 chains \(2\) failed"):
        data = mcmc.sample(
            Guarded(jnp.ones(2), -1e3),
            0,
            chains=16,
            draws=50,
            warmup=150,
            init=starts,
            sampler=mcmc.ChEES(),
            progress=False,
        )
    finite = np.isfinite(data.posterior["x"].values).all(axis=(1, 2))
    assert not finite[2] and finite.sum() == 15
    assert abs(float(data.posterior["x"].std()) - 1.0) < 0.1


def test_gradients_are_those_of_the_criteria() -> None:
    """On straight trajectories, by central differences."""
    rng = np.random.default_rng(0)
    start, momentum = rng.standard_normal((2, 6, 3))
    mean, component = rng.standard_normal((2, 3))

    def ended(time: float) -> Ended:
        points = [Point(Place(x, 0, 0), momentum) for x in (start, start + time * momentum)]  # type: ignore[arg-type]
        return Ended(*points, np.ones(6), np.zeros(6, bool))  # type: ignore[arg-type]

    # The paper's means are those of the distribution: estimated by those of the chains, and constant in time.
    means = [point.place.position.mean(0) for point in ended(0.7)[:2]]

    def chees(log_time: float) -> float:
        ends = [point.place.position for point in ended(np.exp(log_time))[:2]]
        first, last = (((x - m) ** 2).sum(1) for x, m in zip(ends, means))
        return float(((last - first) ** 2).sum()) / 4.0

    def snaper(log_time: float, reverse: bool) -> float:
        """Of the trajectory that goes on at its end, or began earlier."""
        more = np.exp(log_time) - 0.7
        ends = start - more * momentum * reverse, start + (0.7 + more * (not reverse)) * momentum
        first, last = (((x - mean) @ component) ** 2 for x in ends)
        return float(((last - first) ** 2).sum() / np.exp(log_time))

    at, small = np.log(0.7), 1e-5
    slope = (chees(at + small) - chees(at - small)) / (2 * small)
    np.testing.assert_allclose(chees_gradient(ended(0.7), 0.7).sum(), slope, rtol=1e-6)
    both = [(snaper(at + small, r) - snaper(at - small, r)) / (2 * small) for r in (False, True)]
    found = snaper_gradient(ended(0.7), 0.7, mean, component).sum()
    np.testing.assert_allclose(found, np.mean(both), rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"chains": 2}, "chains=2: ChEES"),
        ({"warmup": 0}, "warmup=0 tunes nothing"),
        ({"adaptation": "chain"}, "adaptation='chain' is for NUTS"),
        ({"mass_matrix": "dense"}, "mass_matrix='dense' is not for this sampler"),
        ({"step_size": -1.0}, "step_size=-1.0 must be"),
    ],
)
def test_what_cannot_be_done_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sampled(gaussian(2), sampler=mcmc.ChEES(), **wrong)


def test_bad_settings_are_named() -> None:
    with pytest.raises(OptionError, match="criterion='nuts' must be"):
        mcmc.ChEES("nuts")
