"""R-hat and ESS are ArviZ's, and chains that agree stay in the band of the rank plot as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

import needs
from lanewise.watch.chance import band
from lanewise.watch.convergence import summary


def correlated(chains: int, draws: int, by: float) -> np.ndarray:
    noise = np.random.default_rng(3).normal(size=(chains, draws))
    for draw in range(1, draws):
        noise[:, draw] += by * noise[:, draw - 1]
    return noise


@pytest.mark.parametrize(("chains", "draws", "by"), [(4, 400, 0.0), (4, 400, 0.9), (50, 20, 0.9)])
def test_figures_are_those_of_arviz(chains: int, draws: int, by: float) -> None:
    arviz = needs.library("arviz")
    values = correlated(chains, draws, by)
    data, said = arviz.convert_to_dataset({"x": values}), summary(values)
    assert said.rhat == pytest.approx(float(arviz.rhat(data)["x"]), rel=1e-6)
    assert said.ess_bulk == pytest.approx(float(arviz.ess(data)["x"]), rel=1e-6)
    tail = arviz.ess(data, method="tail", prob=(0.05, 0.95))
    assert said.ess_tail == pytest.approx(float(tail["x"]), rel=1e-6)
    assert said.mcse == pytest.approx(float(arviz.mcse(data)["x"]), rel=1e-6)


def test_rhat_falls_without_the_chain_that_is_elsewhere() -> None:
    values = correlated(6, 200, 0.0)
    values[4] += 3.0
    said = summary(values)
    assert said.rhat > 1.2 and said.rhat_without.argmin() == 4 and said.rhat_without[4] < 1.05
    assert np.abs(said.distances).argmax() == 4


@pytest.mark.parametrize(("draws", "chains"), [(100, 4), (50, 2), (20, 8)])
def test_the_band_holds_chains_that_agree(draws: int, chains: int) -> None:
    places, low, high = band(draws, chains)
    counts = np.round(places * draws * chains).astype(int)
    random, inside, trials = np.random.default_rng(0), 0, 600
    for _ in range(trials):
        owner = random.permutation(np.repeat(np.arange(chains), draws))
        below = np.cumsum(owner[:, None] == np.arange(chains), axis=0) / draws
        ecdf = np.vstack([np.zeros((1, chains)), below])[counts].T
        inside += bool(((ecdf >= low - 1e-9) & (ecdf <= high + 1e-9)).all())
    # Three standard errors of 600 trials are 0.027.
    assert 0.92 < inside / trials < 0.99
