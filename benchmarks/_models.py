"""Ten models of different kinds, each as a plain log density and as a NumPyro model of the same data.

Plain densities take a dictionary of unconstrained arrays; scales go by their logarithms, with the Jacobian's term. Both
forms have the same posterior, up to the names of their coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm

Position = dict[str, Array]


@dataclass(frozen=True)
class Posterior:
    """A density of `shapes`, and a function that makes the NumPyro model (imported when it is called).

    `shown` makes of a position what is looked at, the position itself if it is None.
    """

    name: str
    logdensity: Callable[[Position], Array]
    shapes: dict[str, tuple[int, ...]]
    numpyro: Callable[[], Callable[[], Any]]
    shown: Callable[[Position], Position] | None = None

    def init(self, key: Array) -> Position:
        keys = jax.random.split(key, len(self.shapes))
        return {
            name: jax.random.uniform(k, shape, minval=-1.0, maxval=1.0)
            for k, (name, shape) in zip(keys, self.shapes.items())
        }


def half_normal(log_scale: Array, width: float) -> Array:
    """A half normal scale of this width, by its logarithm."""
    return norm.logpdf(jnp.exp(log_scale), 0.0, width) + log_scale


def eight_schools() -> Posterior:
    """Eight schools (Rubin 1981), not centered."""
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)

    def logdensity(p: Position) -> Array:
        spread = jnp.exp(p["log_spread"])
        half_cauchy = -jnp.log1p((spread / 5.0) ** 2) + p["log_spread"]
        schools = p["mean"] + spread * p["apart"]
        prior = norm.logpdf(p["mean"], 0.0, 5.0) + half_cauchy + jnp.sum(norm.logpdf(p["apart"]))
        return prior + jnp.sum(norm.logpdf(effects, schools, errors))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
            spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
            with numpyro.plate("schools", 8):
                apart = numpyro.sample("apart", dist.Normal(0.0, 1.0))
                numpyro.sample("effect", dist.Normal(mean + spread * apart, errors), obs=effects)

        return model

    shapes = {"mean": (), "log_spread": (), "apart": (8,)}
    return Posterior("eight schools", logdensity, shapes, peer)


def poisson() -> Posterior:
    """Hierarchical Poisson regression: 20 groups with intercepts and slopes of their own, 400 counts."""
    rng = np.random.default_rng(2)
    rows, groups = 400, 20
    group = rng.integers(groups, size=rows)
    x = rng.standard_normal(rows).astype(np.float32)
    intercepts = 1.0 + 0.5 * rng.standard_normal(groups)
    slopes = 0.3 + 0.2 * rng.standard_normal(groups)
    counts = rng.poisson(np.exp(intercepts[group] + slopes[group] * x)).astype(np.float32)

    def logdensity(p: Position) -> Array:
        intercept = p["intercept"] + jnp.exp(p["log_spread"][0]) * p["apart"][0]
        slope = p["slope"] + jnp.exp(p["log_spread"][1]) * p["apart"][1]
        log_rate = intercept[group] + slope[group] * x
        prior = norm.logpdf(p["intercept"], 0.0, 2.0) + norm.logpdf(p["slope"], 0.0, 1.0)
        prior += jnp.sum(half_normal(p["log_spread"], 1.0)) + jnp.sum(norm.logpdf(p["apart"]))
        return prior + jnp.sum(counts * log_rate - jnp.exp(log_rate) - gammaln(counts + 1.0))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
            slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
            spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
            apart = numpyro.sample("apart", dist.Normal(0.0, 1.0).expand([2, groups]).to_event(2))
            log_rate = (intercept + spread[0] * apart[0])[group]
            log_rate += (slope + spread[1] * apart[1])[group] * x
            with numpyro.plate("rows", rows):
                numpyro.sample("count", dist.Poisson(jnp.exp(log_rate)), obs=counts)

        return model

    shapes = {"intercept": (), "slope": (), "log_spread": (2,), "apart": (2, groups)}
    return Posterior("hierarchical Poisson", logdensity, shapes, peer)


def logistic() -> Posterior:
    """Logistic regression: 500 rows, 10 columns."""
    rng = np.random.default_rng(1)
    columns = rng.standard_normal((500, 10)).astype(np.float32)
    truth = 0.5 * rng.standard_normal(10)
    labels = (rng.uniform(size=500) < 1.0 / (1.0 + np.exp(-columns @ truth))).astype(np.float32)

    def logdensity(p: Position) -> Array:
        logits = columns @ p["weights"]
        prior = jnp.sum(norm.logpdf(p["weights"]))
        return prior + jnp.sum(labels * logits - jax.nn.softplus(logits))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
            with numpyro.plate("rows", 500):
                numpyro.sample("label", dist.Bernoulli(logits=columns @ weights), obs=labels)

        return model

    return Posterior("logistic regression", logdensity, {"weights": (10,)}, peer)


def gaussian() -> Posterior:
    """A correlated normal distribution of 100 dimensions, its variances over a factor of fifty."""
    rng = np.random.default_rng(0)
    dimensions = 100
    basis, _ = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))
    variances = np.geomspace(0.02, 1.0, dimensions)
    mean = rng.standard_normal(dimensions).astype(np.float32)
    precision = ((basis / variances) @ basis.T).astype(np.float32)

    def logdensity(p: Position) -> Array:
        apart = p["x"] - mean
        return -0.5 * apart @ (precision @ apart)

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            numpyro.sample("x", dist.MultivariateNormal(mean, precision_matrix=precision))

        return model

    return Posterior("Gaussian of 100", logdensity, {"x": (dimensions,)}, peer)


def funnel() -> Posterior:
    """Neal's funnel (2003), in its own coordinates."""

    def logdensity(p: Position) -> Array:
        rest = norm.logpdf(p["rest"], 0.0, jnp.exp(0.5 * p["neck"]))
        return norm.logpdf(p["neck"], 0.0, 3.0) + jnp.sum(rest)

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            neck = numpyro.sample("neck", dist.Normal(0.0, 3.0))
            numpyro.sample("rest", dist.Normal(0.0, jnp.exp(0.5 * neck)).expand([9]).to_event(1))

        return model

    return Posterior("funnel", logdensity, {"neck": (), "rest": (9,)}, peer)


def mixture() -> Posterior:
    """Three normal components of 300 numbers, the components summed out."""
    rng = np.random.default_rng(4)
    which = rng.choice(3, size=300, p=[0.2, 0.5, 0.3])
    data = (np.array([-4.0, 0.0, 3.0])[which] + rng.standard_normal(300)).astype(np.float32)
    expected = np.array([-4.0, 0.0, 4.0], np.float32)

    def logdensity(p: Position) -> Array:
        spread = jnp.exp(p["log_spread"])
        weights = jax.nn.log_softmax(jnp.append(p["weights"], 0.0))
        parts = weights + norm.logpdf(data[:, None], p["means"], spread)
        prior = jnp.sum(norm.logpdf(p["means"], expected, 1.0)) + half_normal(p["log_spread"], 2.0)
        prior += jnp.sum(norm.logpdf(p["weights"], 0.0, 2.0))
        return prior + jnp.sum(logsumexp(parts, axis=1))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            weights = numpyro.sample("weights", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
            means = numpyro.sample("means", dist.Normal(expected, 1.0).to_event(1))
            spread = numpyro.sample("spread", dist.HalfNormal(2.0))
            parts = dist.MixtureSameFamily(
                dist.Categorical(logits=jnp.append(weights, 0.0)),
                dist.Normal(means, spread),
            )
            with numpyro.plate("rows", 300):
                numpyro.sample("y", parts, obs=data)

        return model

    shapes = {"means": (3,), "log_spread": (), "weights": (2,)}
    return Posterior("mixture", logdensity, shapes, peer)


def gaussian_process() -> Posterior:
    """The three scales of a Gaussian process through 24 points."""
    rng = np.random.default_rng(5)
    x = np.linspace(0.0, 4.0, 24).astype(np.float32)
    y = (np.sin(2.0 * x) + 0.2 * rng.standard_normal(24)).astype(np.float32)
    squares = (x[:, None] - x[None, :]) ** 2

    def covariance(height: Array, length: Array, noise: Array) -> Array:
        return height**2 * jnp.exp(-0.5 * squares / length**2) + (noise**2 + 1e-4) * np.eye(
            24, dtype=np.float32
        )

    def logdensity(p: Position) -> Array:
        height, length, noise = (jnp.exp(p[name]) for name in ("height", "length", "noise"))
        factor = jnp.linalg.cholesky(covariance(height, length, noise))
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        prior = sum(norm.logpdf(p[name]) for name in ("height", "length", "noise"))
        return prior - 0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor)))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            height = numpyro.sample("height", dist.LogNormal(0.0, 1.0))
            length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
            noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
            cov = covariance(height, length, noise)
            numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(24), cov), obs=y)

        return model

    return Posterior(
        "Gaussian process", logdensity, dict.fromkeys(("height", "length", "noise"), ()), peer
    )


def volatility() -> Posterior:
    """Stochastic volatility of 60 days: the log variance is an autoregression, run by a scan."""
    rng = np.random.default_rng(3)
    days, state = 60, 0.0
    returns = np.zeros(days, np.float32)
    for day in range(days):
        state = 0.9 * state + 0.4 * rng.standard_normal()
        returns[day] = np.exp(0.5 * (state - 1.0)) * rng.standard_normal()

    def log_variances(level: Array, persistence: Array, spread: Array, shocks: Array) -> Array:
        def next_day(state: Array, shock: Array) -> tuple[Array, Array]:
            state = persistence * state + spread * shock
            return state, level + state

        return jax.lax.scan(next_day, jnp.zeros_like(spread), shocks)[1]

    def logdensity(p: Position) -> Array:
        log_variance = log_variances(
            p["level"], jnp.tanh(p["persistence"]), jnp.exp(p["log_spread"]), p["shocks"]
        )
        prior = norm.logpdf(p["level"]) + norm.logpdf(p["persistence"], 1.5, 0.5)
        prior += norm.logpdf(p["log_spread"], -1.0, 0.5) + jnp.sum(norm.logpdf(p["shocks"]))
        return prior + jnp.sum(norm.logpdf(returns, 0.0, jnp.exp(0.5 * log_variance)))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            level = numpyro.sample("level", dist.Normal(0.0, 1.0))
            persistence = numpyro.sample("persistence", dist.Normal(1.5, 0.5))
            spread = numpyro.sample("spread", dist.LogNormal(-1.0, 0.5))
            shocks = numpyro.sample("shocks", dist.Normal(0.0, 1.0).expand([days]).to_event(1))
            log_variance = log_variances(level, jnp.tanh(persistence), spread, shocks)
            with numpyro.plate("days", days):
                numpyro.sample("return", dist.Normal(0.0, jnp.exp(0.5 * log_variance)), obs=returns)

        return model

    shapes = {"level": (), "persistence": (), "log_spread": (), "shocks": (days,)}
    return Posterior("stochastic volatility", logdensity, shapes, peer)


def item_response() -> Posterior:
    """Item response with two parameters an item: 40 people, 15 items."""
    rng = np.random.default_rng(6)
    people, items = 40, 15
    odds = np.exp(0.3 * rng.standard_normal(items)) * (
        rng.standard_normal((people, 1)) - rng.standard_normal(items)
    )
    right = (rng.uniform(size=(people, items)) < 1.0 / (1.0 + np.exp(-odds))).astype(np.float32)

    def logdensity(p: Position) -> Array:
        logits = jnp.exp(p["log_slope"]) * (p["ability"][:, None] - p["difficulty"])
        prior = jnp.sum(norm.logpdf(p["ability"])) + jnp.sum(norm.logpdf(p["difficulty"], 0.0, 2.0))
        prior += jnp.sum(norm.logpdf(p["log_slope"], 0.0, 0.5))
        return prior + jnp.sum(right * logits - jax.nn.softplus(logits))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            ability = numpyro.sample("ability", dist.Normal(0.0, 1.0).expand([people]).to_event(1))
            difficulty = numpyro.sample(
                "difficulty", dist.Normal(0.0, 2.0).expand([items]).to_event(1)
            )
            slope = numpyro.sample("slope", dist.LogNormal(0.0, 0.5).expand([items]).to_event(1))
            logits = slope * (ability[:, None] - difficulty)
            numpyro.sample("right", dist.Bernoulli(logits=logits).to_event(2), obs=right)

        return model

    shapes = {"ability": (people,), "difficulty": (items,), "log_slope": (items,)}
    return Posterior("item response", logdensity, shapes, peer)


def robust() -> Posterior:
    """Regression with errors of Student's distribution, whose degrees of freedom are found too: 200 rows."""
    rng = np.random.default_rng(7)
    columns = rng.standard_normal((200, 5)).astype(np.float32)
    y = columns @ rng.standard_normal(5) + 0.5 * rng.standard_t(3.0, size=200)
    y = y.astype(np.float32)

    def logdensity(p: Position) -> Array:
        freedom, scale = jnp.exp(p["log_freedom"]), jnp.exp(p["log_scale"])
        error = (y - p["intercept"] - columns @ p["weights"]) / scale
        density = -0.5 * (freedom + 1.0) * jnp.log1p(error**2 / freedom)
        norming = gammaln(0.5 * (freedom + 1.0)) - gammaln(0.5 * freedom)
        norming -= 0.5 * jnp.log(jnp.pi * freedom) + p["log_scale"]
        prior = norm.logpdf(p["intercept"]) + jnp.sum(norm.logpdf(p["weights"]))
        prior += norm.logpdf(p["log_freedom"], 1.5, 1.0) + half_normal(p["log_scale"], 1.0)
        return prior + jnp.sum(density + norming)

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
            weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
            freedom = numpyro.sample("freedom", dist.LogNormal(1.5, 1.0))
            scale = numpyro.sample("scale", dist.HalfNormal(1.0))
            with numpyro.plate("rows", 200):
                center = intercept + columns @ weights
                numpyro.sample("y", dist.StudentT(freedom, center, scale), obs=y)

        return model

    shapes = {"intercept": (), "weights": (5,), "log_freedom": (), "log_scale": ()}
    return Posterior("robust regression", logdensity, shapes, peer)


MODELS: dict[str, Callable[[], Posterior]] = {
    make.__name__: make
    for make in (
        eight_schools,
        poisson,
        logistic,
        gaussian,
        funnel,
        mixture,
        gaussian_process,
        volatility,
        item_response,
        robust,
    )
}
