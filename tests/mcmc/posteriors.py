"""Densities whose posteriors are known: exactly, or from long runs of NumPyro (`references.py`).

Each is a plain function of a position, so that every sampler asks the very same one. Positions are dictionaries of
unconstrained arrays; scales go by their logarithms, whose tails are light enough for standard deviations to settle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

import _models
import _models_more

Position = dict[str, Array]


@dataclass(frozen=True)
class Posterior:
    """A density, the shapes of its arrays, and where it is known exactly its means and standard deviations.

    `shown` turns a position into what is compared, the position itself if it is None.
    """

    name: str
    logdensity: Callable[[Position], Array]
    shapes: dict[str, tuple[int, ...]]
    shown: Callable[[Position], Position] | None = None
    exact: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def init(self, key: Array) -> Position:
        keys = jax.random.split(key, len(self.shapes))
        return {
            name: jax.random.uniform(k, shape, minval=-1.0, maxval=1.0)
            for k, (name, shape) in zip(keys, self.shapes.items())
        }


# Eight schools (Rubin 1981): effects of coaching and their standard errors.
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _schools_prior(mean: Array, log_spread: Array) -> Array:
    """A normal mean, and a half Cauchy spread by its logarithm."""
    half_cauchy = -jnp.log1p((jnp.exp(log_spread) / 5.0) ** 2) + log_spread
    return norm.logpdf(mean, 0.0, 5.0) + half_cauchy


def schools_centered(p: Position) -> Array:
    """Eight schools by their own effects."""
    schools = norm.logpdf(p["school"], p["mean"], jnp.exp(p["log_spread"]))
    likelihood = norm.logpdf(EFFECTS, p["school"], ERRORS)
    return _schools_prior(p["mean"], p["log_spread"]) + jnp.sum(schools + likelihood)


def schools_draws(count: int) -> dict[str, np.ndarray]:
    """Draws from the posterior of eight schools: the spread from its marginal on a grid; the rest is normal then."""
    rng = np.random.default_rng(0)
    grid = np.linspace(-16.0, 7.0, 20_000)
    variances = ERRORS**2 + np.exp(2.0 * grid)[:, None]
    precision = 1.0 / 25.0 + np.sum(1.0 / variances, axis=1)
    mean = np.sum(EFFECTS / variances, axis=1) / precision
    misses = np.sum((EFFECTS - mean[:, None]) ** 2 / variances + np.log(variances), axis=1)
    prior = grid - np.log1p((np.exp(grid) / 5.0) ** 2)
    log_weights = prior - 0.5 * (misses + np.log(precision) + mean**2 / 25.0)
    weights = np.exp(log_weights - log_weights.max())
    at = rng.choice(grid.size, count, p=weights / weights.sum())
    log_spread = grid[at]
    overall = mean[at] + rng.standard_normal(count) / np.sqrt(precision[at])
    sharpness = 1.0 / ERRORS**2 + np.exp(-2.0 * log_spread)[:, None]
    center = (EFFECTS / ERRORS**2 + (overall * np.exp(-2.0 * log_spread))[:, None]) / sharpness
    school = center + rng.standard_normal((count, 8)) / np.sqrt(sharpness)
    return {"mean": overall, "log_spread": log_spread, "school": school}


def schools_not_centered() -> Posterior:
    def shown(p: Position) -> Position:
        school = p["mean"] + jnp.exp(p["log_spread"]) * p["apart"]
        return {"mean": p["mean"], "log_spread": p["log_spread"], "school": school}

    def logdensity(p: Position) -> Array:
        likelihood = norm.logpdf(EFFECTS, shown(p)["school"], ERRORS)
        prior = _schools_prior(p["mean"], p["log_spread"])
        return prior + jnp.sum(norm.logpdf(p["apart"]) + likelihood)

    shapes = {"mean": (), "log_spread": (), "apart": (8,)}
    return Posterior("schools_not_centered", logdensity, shapes, shown)


NECK_SPREAD, FUNNEL_REST = 3.0, 9


def funnel_logdensity(p: Position) -> Array:
    """Neal's funnel (2003), in its own coordinates."""
    rest = norm.logpdf(p["rest"], 0.0, jnp.exp(0.5 * p["neck"]))
    return norm.logpdf(p["neck"], 0.0, NECK_SPREAD) + jnp.sum(rest)


def funnel_draw(key: Array) -> Position:
    """A draw from the funnel itself: it is known how."""
    neck_key, rest_key = jax.random.split(key)
    neck = NECK_SPREAD * jax.random.normal(neck_key)
    return {
        "neck": neck,
        "rest": jnp.exp(0.5 * neck) * jax.random.normal(rest_key, (FUNNEL_REST,)),
    }


def funnel_not_centered() -> Posterior:
    """The funnel in coordinates in which it is a normal distribution.

    What is compared is the neck, and the rest by its size's logarithm: half of the variance of the rest itself,
    exp(9 / 2), comes from necks beyond three standard deviations, and no run's own error estimate shows how few it saw.
    """

    def shown(p: Position) -> Position:
        neck = NECK_SPREAD * p["neck"]
        return {"neck": neck, "log_size": 0.5 * neck + jnp.log(jnp.abs(p["rest"]))}

    def logdensity(p: Position) -> Array:
        return norm.logpdf(p["neck"]) + jnp.sum(norm.logpdf(p["rest"]))

    shapes = {"neck": (), "rest": (FUNNEL_REST,)}
    return Posterior("funnel_not_centered", logdensity, shapes, shown)


def gaussian(dimensions: int) -> Posterior:
    """A correlated normal distribution; its variances along its axes go over a factor of fifty."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))
    variances = np.geomspace(0.02, 1.0, dimensions)
    mean = rng.standard_normal(dimensions)
    precision = (basis / variances) @ basis.T
    deviations = np.sqrt(np.diag((basis * variances) @ basis.T))

    def logdensity(p: Position) -> Array:
        apart = p["x"] - mean
        return -0.5 * apart @ (jnp.asarray(precision, apart.dtype) @ apart)

    return Posterior(
        f"gaussian_{dimensions}",
        logdensity,
        {"x": (dimensions,)},
        exact={"x": (mean, deviations)},
    )


def of_benchmarks(name: str) -> Posterior:
    """One that the benchmarks have, with a NumPyro model beside it."""
    model = (_models.MODELS | _models_more.MORE)[name]()
    return Posterior(name, model.logdensity, model.shapes, model.shown)


def logistic() -> Posterior:
    """Logistic regression, synthetic: 500 rows, 10 columns."""
    return of_benchmarks("logistic")


def poisson() -> Posterior:
    """Counts in 8 groups of 5, each group with its own rate."""
    rng = np.random.default_rng(2)
    rates = np.exp(1.0 + 0.6 * rng.standard_normal(8))
    counts = rng.poisson(rates[:, None], (8, 5)).astype(np.float32)

    def log_rates(p: Position) -> Array:
        return p["mean"] + jnp.exp(p["log_spread"]) * p["apart"]

    def shown(p: Position) -> Position:
        return {"mean": p["mean"], "log_spread": p["log_spread"], "log_rate": log_rates(p)}

    def logdensity(p: Position) -> Array:
        log_rate = log_rates(p)[:, None]
        likelihood = counts * log_rate - jnp.exp(log_rate) - gammaln(counts + 1.0)
        prior = norm.logpdf(p["mean"], 0.0, 2.0) + norm.logpdf(p["log_spread"], -0.5, 1.0)
        return jnp.sum(likelihood) + prior + jnp.sum(norm.logpdf(p["apart"]))

    shapes = {"mean": (), "log_spread": (), "apart": (8,)}
    return Posterior("poisson", logdensity, shapes, shown)


def volatility() -> Posterior:
    """Stochastic volatility: returns of 60 days, whose log variance is an autoregression, run by a scan."""
    days, persistence, spread, level = 60, 0.9, 0.4, -1.0
    rng = np.random.default_rng(3)
    state, returns = 0.0, np.zeros(days, np.float32)
    for day in range(days):
        state = persistence * state + spread * rng.standard_normal()
        returns[day] = np.exp(0.5 * (level + state)) * rng.standard_normal()

    def log_variances(p: Position) -> Array:
        persistence, spread = jnp.tanh(p["persistence"]), jnp.exp(p["log_spread"])

        def next_day(state: Array, shock: Array) -> tuple[Array, Array]:
            state = persistence * state + spread * shock
            return state, p["level"] + state

        return jax.lax.scan(next_day, jnp.zeros_like(spread), p["shocks"])[1]

    def shown(p: Position) -> Position:
        names = ("level", "persistence", "log_spread")
        return {name: p[name] for name in names} | {"log_variance": log_variances(p)}

    def logdensity(p: Position) -> Array:
        likelihood = norm.logpdf(returns, 0.0, jnp.exp(0.5 * log_variances(p)))
        prior = (
            norm.logpdf(p["level"], 0.0, 1.0)
            + norm.logpdf(p["persistence"], 1.5, 0.5)
            + norm.logpdf(p["log_spread"], -1.0, 0.5)
        )
        return jnp.sum(likelihood) + prior + jnp.sum(norm.logpdf(p["shocks"]))

    shapes = {"level": (), "persistence": (), "log_spread": (), "shocks": (days,)}
    return Posterior("volatility", logdensity, shapes, shown)


REFERENCED = (
    schools_not_centered,
    funnel_not_centered,
    logistic,
    poisson,
    volatility,
    *(functools.partial(of_benchmarks, name) for name in ("gaussian_process", *_models_more.MORE)),
)
