"""Models of `_models.py` and `_models_more.py` as PyMC has them, on data of their own seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def eight_schools() -> Any:
    """Not centered."""
    import pymc as pm

    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 5.0)
        spread = pm.HalfCauchy("spread", 5.0)
        apart = pm.Normal("apart", 0.0, 1.0, shape=8)
        pm.Normal("effect", mean + spread * apart, errors, observed=effects)
    return model


def logistic() -> Any:
    """500 rows, 10 columns."""
    import pymc as pm

    rng = np.random.default_rng(1)
    columns = rng.standard_normal((500, 10))
    odds = columns @ (0.5 * rng.standard_normal(10))
    labels = (rng.uniform(size=500) < 1.0 / (1.0 + np.exp(-odds))).astype(int)
    with pm.Model() as model:
        weights = pm.Normal("weights", 0.0, 1.0, shape=10)
        pm.Bernoulli("label", logit_p=columns @ weights, observed=labels)
    return model


def radon() -> Any:
    """400 houses of 40 counties."""
    import pymc as pm

    rng = np.random.default_rng(11)
    county = np.sort(rng.integers(40, size=400))
    ground = rng.integers(2, size=400).astype(float)
    uranium = rng.standard_normal(40)
    levels = 1.3 + 0.4 * uranium + 0.5 * rng.standard_normal(40)
    y = levels[county] - 0.7 * ground + 0.7 * rng.standard_normal(400)
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 2.0)
        slope = pm.Normal("uranium", 0.0, 1.0)
        floor = pm.Normal("floor", 0.0, 1.0)
        spread = pm.HalfNormal("spread", 1.0)
        noise = pm.HalfNormal("noise", 1.0)
        level = pm.Normal("county", mean + slope * uranium, spread, shape=40)
        pm.Normal("y", level[county] + floor * ground, noise, observed=y)
    return model


def autoregression() -> Any:
    """A series of 200, each number from the five before it."""
    import pymc as pm

    rng = np.random.default_rng(16)
    truth, series = np.array([0.5, -0.2, 0.15, 0.1, -0.1]), np.zeros(205)
    for at in range(5, 205):
        series[at] = 0.3 + truth @ series[at - 5 : at][::-1] + 0.5 * rng.standard_normal()
    earlier = np.stack([series[5 - lag : -lag] for lag in range(1, 6)], axis=1)
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        lags = pm.Normal("lags", 0.0, 1.0, shape=5)
        noise = pm.HalfNormal("noise", 1.0)
        pm.Normal("y", level + earlier @ lags, noise, observed=series[5:])
    return model


MODELS: dict[str, Callable[[], Any]] = {
    make.__name__: make for make in (eight_schools, logistic, radon, autoregression)
}
