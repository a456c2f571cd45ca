"""Six more models, in the two forms of `_models.py`: a plain log density, and a NumPyro model of the same data.

They are of the kinds that the posterior database has (Magnusson et al. 2024), with data made here. `shown` makes of a
position what a reader would look at. Both forms have the same unconstrained coordinates, in the order of `shapes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from _models import Position, Posterior, half_normal


def radon() -> Posterior:
    """Levels of radon in 400 houses of 40 counties: intercepts of counties around a line in their soil's uranium."""
    rng = np.random.default_rng(11)
    rows, counties = 400, 40
    county = np.sort(rng.integers(counties, size=rows))
    ground = rng.integers(2, size=rows).astype(np.float32)
    uranium = rng.standard_normal(counties).astype(np.float32)
    levels = 1.3 + 0.4 * uranium + 0.5 * rng.standard_normal(counties)
    y = (levels[county] - 0.7 * ground + 0.7 * rng.standard_normal(rows)).astype(np.float32)

    def logdensity(p: Position) -> Array:
        spread, noise = jnp.exp(p["log_spread"]), jnp.exp(p["log_noise"])
        prior = norm.logpdf(p["mean"], 0.0, 2.0) + norm.logpdf(p["uranium"])
        prior += norm.logpdf(p["floor"]) + half_normal(p["log_spread"], 1.0)
        prior += half_normal(p["log_noise"], 1.0)
        prior += jnp.sum(norm.logpdf(p["county"], p["mean"] + p["uranium"] * uranium, spread))
        return prior + jnp.sum(norm.logpdf(y, p["county"][county] + p["floor"] * ground, noise))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
            slope = numpyro.sample("uranium", dist.Normal(0.0, 1.0))
            floor = numpyro.sample("floor", dist.Normal(0.0, 1.0))
            spread = numpyro.sample("spread", dist.HalfNormal(1.0))
            noise = numpyro.sample("noise", dist.HalfNormal(1.0))
            with numpyro.plate("counties", counties):
                level = numpyro.sample("county", dist.Normal(mean + slope * uranium, spread))
            with numpyro.plate("rows", rows):
                numpyro.sample("y", dist.Normal(level[county] + floor * ground, noise), obs=y)

        return model

    scalars = dict.fromkeys(("mean", "uranium", "floor", "log_spread", "log_noise"), ())
    return Posterior("radon", logdensity, scalars | {"county": (counties,)}, peer)


def horseshoe() -> Posterior:
    """Regression of 100 rows on 20 columns, three of which count: the regularized horseshoe.

    Piironen and Vehtari (2017), with a slab of known width, and local scales of Student's distribution with 3 degrees
    of freedom, whose tails are lighter than those of half Cauchy ones.
    """
    rng = np.random.default_rng(12)
    rows, columns, slab, few = 100, 20, 2.0, 0.1
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    truth = np.zeros(columns)
    truth[:3] = 1.5, -1.0, 0.7
    y = (x @ truth + rng.standard_normal(rows)).astype(np.float32)

    def weights(whole: Array, local: Array, apart: Array) -> Array:
        squares = (whole * local) ** 2
        return apart * jnp.sqrt(slab**2 * squares / (slab**2 + squares))

    def shown(p: Position) -> Position:
        found = weights(jnp.exp(p["log_whole"]), jnp.exp(p["log_local"]), p["apart"])
        return {"log_whole": p["log_whole"], "log_noise": p["log_noise"], "weights": found}

    def logdensity(p: Position) -> Array:
        whole, local = jnp.exp(p["log_whole"]), jnp.exp(p["log_local"])
        prior = half_normal(p["log_whole"], few) + half_normal(p["log_noise"], 2.0)
        prior += jnp.sum(-2.0 * jnp.log1p(local**2 / 3.0) + p["log_local"])
        prior += jnp.sum(norm.logpdf(p["apart"]))
        center = x @ weights(whole, local, p["apart"])
        return prior + jnp.sum(norm.logpdf(y, center, jnp.exp(p["log_noise"])))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            whole = numpyro.sample("whole", dist.HalfNormal(few))
            noise = numpyro.sample("noise", dist.HalfNormal(2.0))
            student = dist.FoldedDistribution(dist.StudentT(3.0)).expand([columns])
            local = numpyro.sample("local", student.to_event(1))
            apart = numpyro.sample("apart", dist.Normal(0.0, 1.0).expand([columns]).to_event(1))
            with numpyro.plate("rows", rows):
                numpyro.sample("y", dist.Normal(x @ weights(whole, local, apart), noise), obs=y)

        return model

    shapes = {"log_whole": (), "log_noise": (), "log_local": (columns,), "apart": (columns,)}
    return Posterior("horseshoe", logdensity, shapes, peer, shown)


def lotka_volterra() -> Posterior:
    """Prey and predators of 20 years, noisy by a factor: a differential equation inside the density.

    It is solved by the classical Runge-Kutta method with 8 steps a year; data and density use the same steps.
    """
    rng = np.random.default_rng(13)
    years, substeps, noise = 20, 8, 0.25
    middle = np.log(np.array([1.0, 0.05, 1.0, 0.05, 10.0, 10.0], np.float32))
    width = np.array([0.5, 0.5, 0.5, 0.5, 1.0, 1.0], np.float32)
    truth = np.array([0.55, 0.028, 0.80, 0.024, 30.0, 5.0])

    def change(log_state: Any, rates: Any, numpy: Any) -> Any:
        """Of the logarithms, which stay finite where a population nearly dies out."""
        prey, predators = numpy.exp(log_state[0]), numpy.exp(log_state[1])
        return numpy.stack([rates[0] - rates[1] * predators, rates[3] * prey - rates[2]])

    def after(state: Any, rates: Any, numpy: Any = jnp) -> Any:
        step = 1.0 / substeps
        first = change(state, rates, numpy)
        second = change(state + 0.5 * step * first, rates, numpy)
        third = change(state + 0.5 * step * second, rates, numpy)
        fourth = change(state + step * third, rates, numpy)
        return state + step / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)

    states = [np.log(truth[4:])]
    for _ in range(years * substeps):
        states.append(after(states[-1], truth[:4], np))
    noiseless = np.stack(states[::substeps])
    data = (noiseless + noise * rng.standard_normal(noiseless.shape)).astype(np.float32)

    def log_states(log_rates: Array) -> Array:
        """Of each year, the first one's included."""
        rates = jnp.exp(log_rates[:4])

        def year(state: Array, _: None) -> tuple[Array, Array]:
            state = jax.lax.fori_loop(0, substeps, lambda _, s: after(s, rates), state)
            return state, state

        later = jax.lax.scan(year, log_rates[4:], None, length=years)[1]
        return jnp.concatenate([log_rates[None, 4:], later])

    def logdensity(p: Position) -> Array:
        prior = jnp.sum(norm.logpdf(p["log_rates"], middle, width))
        prior += jnp.sum(norm.logpdf(p["log_noise"], -1.0, 1.0))
        return prior + jnp.sum(
            norm.logpdf(data, log_states(p["log_rates"]), jnp.exp(p["log_noise"]))
        )

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            log_rates = numpyro.sample("log_rates", dist.Normal(middle, width).to_event(1))
            error = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("y", dist.Normal(log_states(log_rates), error).to_event(2), obs=data)

        return model

    shapes = {"log_rates": (6,), "log_noise": (2,)}
    return Posterior("Lotka-Volterra", logdensity, shapes, peer)


def lkj() -> Posterior:
    """The covariance of 80 vectors of 4: scales, and correlations by the distribution of Lewandowski et al. (2009)."""
    rng = np.random.default_rng(14)
    rows, size, shape = 80, 4, 2.0
    mixing = np.eye(size) + 0.5 * np.tril(rng.standard_normal((size, size)), -1)
    data = (rng.standard_normal((rows, size)) @ mixing.T).astype(np.float32)
    below = np.tril_indices(size, -1)

    def factor(raw: Array) -> tuple[Array, Array]:
        """The Cholesky factor of a correlation matrix, and the logarithm of the volume's change.

        A row is on the unit sphere: partial correlations take their shares of what the earlier ones leave.
        """
        partial = jnp.zeros((size, size), raw.dtype).at[below].set(jnp.tanh(raw))
        left = jnp.cumprod(jnp.sqrt(1.0 - partial**2), axis=1)
        before = jnp.concatenate([jnp.ones((size, 1), raw.dtype), left[:, :-1]], axis=1)
        lower = jnp.where(np.tri(size, k=-1, dtype=bool), partial * before, 0.0)
        diagonal = jnp.diag(before)
        change = jnp.sum(jnp.log(before[below])) + jnp.sum(jnp.log1p(-(jnp.tanh(raw) ** 2)))
        return lower + jnp.diag(diagonal), change

    def shown(p: Position) -> Position:
        triangle, _ = factor(p["raw"])
        return {"log_scales": p["log_scales"], "correlations": (triangle @ triangle.T)[below]}

    def logdensity(p: Position) -> Array:
        triangle, change = factor(p["raw"])
        powers = np.arange(size - 1, -1, -1, dtype=np.float32) + 2.0 * (shape - 1.0)
        logs = jnp.log(jnp.diag(triangle))
        prior = jnp.sum(half_normal(p["log_scales"], 2.0)) + jnp.sum(powers[1:] * logs[1:]) + change
        scaled = jnp.exp(p["log_scales"])[:, None] * triangle
        white = jax.scipy.linalg.solve_triangular(scaled, data.T, lower=True)
        return prior - 0.5 * jnp.sum(white**2) - rows * (jnp.sum(p["log_scales"]) + jnp.sum(logs))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            scales = numpyro.sample("scales", dist.HalfNormal(2.0).expand([size]).to_event(1))
            triangle = numpyro.sample("triangle", dist.LKJCholesky(size, shape))
            normal = dist.MultivariateNormal(jnp.zeros(size), scale_tril=scales[:, None] * triangle)
            with numpyro.plate("rows", rows):
                numpyro.sample("y", normal, obs=data)

        return model

    shapes = {"log_scales": (size,), "raw": (size * (size - 1) // 2,)}
    return Posterior("LKJ covariance", logdensity, shapes, peer, shown)


def ordered_mixture() -> Posterior:
    """Two normal components of 300 numbers, means in order, spreads of their own, the components summed out."""
    rng = np.random.default_rng(15)
    second = rng.uniform(size=300) < 0.6
    data = np.where(second, 2.0, -1.5) + np.where(second, 0.8, 1.1) * rng.standard_normal(300)
    data = data.astype(np.float32)

    def means_of(raw: Array) -> Array:
        return jnp.stack([raw[0], raw[0] + jnp.exp(raw[1])])

    def parts(means: Array, spreads: Array, logit: Array) -> Array:
        weights = jnp.stack([jax.nn.log_sigmoid(-logit), jax.nn.log_sigmoid(logit)])
        return jnp.sum(logsumexp(weights + norm.logpdf(data[:, None], means, spreads), axis=1))

    def shown(p: Position) -> Position:
        others = {name: p[name] for name in ("log_spreads", "logit")}
        return {"means": means_of(p["raw_means"]), **others}

    def logdensity(p: Position) -> Array:
        means = means_of(p["raw_means"])
        prior = jnp.sum(norm.logpdf(means, 0.0, 2.0)) + p["raw_means"][1]
        prior += jnp.sum(half_normal(p["log_spreads"], 2.0)) + norm.logpdf(p["logit"])
        return prior + parts(means, jnp.exp(p["log_spreads"]), p["logit"])

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            ordered = dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,))
            means = numpyro.sample("means", ordered)
            numpyro.factor("prior of means", jnp.sum(norm.logpdf(means, 0.0, 2.0)))
            spreads = numpyro.sample("spreads", dist.HalfNormal(2.0).expand([2]).to_event(1))
            logit = numpyro.sample("logit", dist.Normal(0.0, 1.0))
            numpyro.factor("likelihood", parts(means, spreads, logit))

        return model

    shapes = {"raw_means": (2,), "log_spreads": (2,), "logit": ()}
    return Posterior("ordered mixture", logdensity, shapes, peer, shown)


def autoregression() -> Posterior:
    """A series of 200, each number from the five before it."""
    rng = np.random.default_rng(16)
    order, length = 5, 200
    truth = np.array([0.5, -0.2, 0.15, 0.1, -0.1])
    series = np.zeros(length + order)
    for at in range(order, length + order):
        series[at] = 0.3 + truth @ series[at - order : at][::-1] + 0.5 * rng.standard_normal()
    series = series.astype(np.float32)
    earlier = np.stack([series[order - lag : -lag] for lag in range(1, order + 1)], axis=1)
    y = series[order:]

    def logdensity(p: Position) -> Array:
        center = p["level"] + earlier @ p["lags"]
        prior = norm.logpdf(p["level"]) + jnp.sum(norm.logpdf(p["lags"]))
        prior += half_normal(p["log_noise"], 1.0)
        return prior + jnp.sum(norm.logpdf(y, center, jnp.exp(p["log_noise"])))

    def peer() -> Callable[[], Any]:
        import numpyro
        from numpyro import distributions as dist

        def model() -> None:
            level = numpyro.sample("level", dist.Normal(0.0, 1.0))
            lags = numpyro.sample("lags", dist.Normal(0.0, 1.0).expand([order]).to_event(1))
            noise = numpyro.sample("noise", dist.HalfNormal(1.0))
            with numpyro.plate("rows", length):
                numpyro.sample("y", dist.Normal(level + earlier @ lags, noise), obs=y)

        return model

    shapes = {"level": (), "lags": (order,), "log_noise": ()}
    return Posterior("autoregression", logdensity, shapes, peer)


MORE: dict[str, Callable[[], Posterior]] = {
    make.__name__: make
    for make in (radon, horseshoe, lotka_volterra, lkj, ordered_mixture, autoregression)
}
