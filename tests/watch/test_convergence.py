"""R-hat and ESS are ArviZ's, and chains that agree stay in the band of the rank plot as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

import needs
from lanewise.watch.chance import band
from lanewise.watch.convergence import lost, mixing, nested_rhat, normal_scores, summary


def correlated(chains: int, draws: int, by: float) -> np.ndarray:
    noise = np.random.default_rng(3).normal(size=(chains, draws))
    for draw in range(1, draws):
        noise[:, draw] += by * noise[:, draw - 1]
    return noise


@pytest.mark.parametrize("by", [-0.8, 0.0, 0.5, 0.99])
@pytest.mark.parametrize("draws", [4, 5, 10, 13, 51, 400])
@pytest.mark.parametrize("chains", [1, 2, 30])
def test_figures_are_those_of_arviz(chains: int, draws: int, by: float) -> None:
    arviz = needs.library("arviz")
    drawn = correlated(chains, draws, by)
    for values in (drawn, np.round(2.0 * drawn)):  # with ties too
        said = summary(values)
        np.testing.assert_allclose(said.ess_bulk, arviz.ess(values, method="bulk"), rtol=1e-8)
        tail = arviz.ess(values, method="tail", prob=(0.05, 0.95))
        np.testing.assert_allclose(said.ess_tail, tail, rtol=1e-8)
        np.testing.assert_allclose(said.mcse, arviz.mcse(values, method="mean"), rtol=1e-8)
        if chains > 1:
            np.testing.assert_allclose(said.rhat, arviz.rhat(values), rtol=1e-8)


def scored(chains: int, draws: int, by: float, seed: int = 0) -> np.ndarray:
    """Chains in equilibrium, as normal scores."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(chains, draws))
    for draw in range(1, draws):
        values[:, draw] = by * values[:, draw - 1] + np.sqrt(1 - by**2) * values[:, draw]
    return normal_scores(values)


def test_nested_rhat_of_many_short_chains() -> None:
    """Chains that agree do not differ beyond chance; those that remember their start, or drift together, do."""
    chances = [mixing(scored(256, 20, 0.3, seed)).chance for seed in range(40)]
    # The smaller one of two: uniform ones would have 20% below a tenth.
    assert min(chances) > 1e-4 and np.mean(np.array(chances) < 0.1) < 0.5
    remembers = scored(256, 20, 0.3)
    remembers += 2.0 * np.arange(256)[:, None] / 256
    found = mixing(normal_scores(remembers))
    assert found.rhat > 1.01 and found.chance < 1e-6
    drifts = mixing(normal_scores(scored(256, 20, 0.3) + np.linspace(0, 1, 20)))
    assert drifts.rhat > 1.01 and drifts.chance < 1e-6
    groups = np.arange(256) // 16
    assert nested_rhat(scored(256, 20, 0.3), groups) < 1.01
    assert nested_rhat(scored(256, 20, 0.3) + groups[:, None] / 8, groups) > 1.05


def test_a_lost_chain_is_found() -> None:
    values = scored(256, 20, 0.3)
    assert not lost(values).any()
    values[17] += 3.0
    assert np.flatnonzero(lost(normal_scores(values))).tolist() == [17]


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
