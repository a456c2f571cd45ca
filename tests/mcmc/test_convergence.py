"""R-hat and effective sample sizes: ArviZ's numbers."""

from __future__ import annotations

import numpy as np
import pytest

import needs
from lanewise.mcmc.convergence import ess, rhat


def autoregression(chains: int, draws: int, correlation: float) -> np.ndarray:
    rng = np.random.default_rng([chains, draws, round(100 * abs(correlation))])
    values = rng.standard_normal((chains, draws))
    for t in range(1, draws):
        values[:, t] *= np.sqrt(1.0 - correlation**2)
        values[:, t] += correlation * values[:, t - 1]
    return values


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.5, 0.99])
@pytest.mark.parametrize("draws", [4, 5, 10, 13, 51, 400])
@pytest.mark.parametrize("chains", [1, 2, 30])
def test_numbers_are_those_of_arviz(chains: int, draws: int, correlation: float) -> None:
    arviz = needs.library("arviz")
    drawn = autoregression(chains, draws, correlation)
    for values in (drawn, np.round(2.0 * drawn)):  # with ties too
        sizes = ess(values)
        np.testing.assert_allclose(sizes.bulk, arviz.ess(values, method="bulk"), rtol=1e-8)
        np.testing.assert_allclose(
            sizes.tail, arviz.ess(values, method="tail", prob=(0.05, 0.95)), rtol=1e-8
        )
        if chains > 1:
            np.testing.assert_allclose(rhat(values), arviz.rhat(values), rtol=1e-8)
