"""How far the ranks of a chain may stray by chance: a simultaneous band for the ECDF of its ranks.

If all chains draw from one distribution, how many of a chain's n draws are among the m smallest of all N = L n draws is
hypergeometric, and from one m to a larger one these counts are a Markov chain. So the probability that a chain stays
between given bounds at every one of K places is found exactly, by dynamic programming over the counts. The bounds are
pointwise quantiles, all of one level, and that level is found by bisection such that a chain stays within them with the
probability wanted. This is the band of Säilynoja, Bürkner and Vehtari (2022), "Graphical test for discrete uniformity
and its applications in goodness-of-fit evaluation and multiple sample comparison", with hypergeometric steps in
place of binomial ones; where they find the level for L chains by simulation, we take chains as independent
of each other (Šidák), which is a little cautious. The tests compare the coverage with a simulation.

The band is for independent draws: thin a chain by its autocorrelation time first.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.special import gammaln

MOST_PLACES = 50
BISECTIONS = 14


@functools.lru_cache(64)
def band(draws: int, chains: int, probability: float = 0.95) -> tuple[np.ndarray, ...]:
    """Places from 0 to 1, and the least and the greatest ECDF there of `chains` that agree.

    All chains stay within it everywhere with this probability.

    >>> places, low, high = band(100, 4)
    >>> bool((low <= places).all() and (places <= high).all())
    True
    """
    counts = _counts(draws, chains)
    # Two chains are one another's mirror.
    wanted = probability ** (1.0 / (chains if chains > 2 else 1))
    points = [_pmf(int(m), draws * chains, draws) for m in counts[1:-1]]
    inside, outside = 0.0, 1.0 - wanted
    low, high = _bounds(points, draws, inside)
    for _ in range(BISECTIONS):
        level = (inside + outside) / 2
        tried = _bounds(points, draws, level)
        if _stays(counts, draws, *tried) >= wanted:
            inside, (low, high) = level, tried
        else:
            outside = level
    return counts / counts[-1], low / draws, high / draws


def _counts(draws: int, chains: int) -> np.ndarray:
    """How many of the smallest of all draws are counted, from none to all."""
    whole = draws * chains
    return np.unique(np.linspace(0, whole, min(draws, MOST_PLACES) + 1).round().astype(int))


def _pmf(taken: int, whole: int, marked: int) -> np.ndarray:
    """How many marked ones are among those taken: the probabilities of 0 to `marked`."""
    k = np.arange(marked + 1)
    return np.exp(
        _choose(marked, k) + _choose(whole - marked, taken - k) - _choose(whole, np.array(taken))
    )


def _choose(n: int | np.ndarray, k: np.ndarray) -> np.ndarray:
    """The logarithm of how many ways there are."""
    possible = (k >= 0) & (k <= n)
    k = np.where(possible, k, 0)
    return np.where(possible, gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0), -np.inf)


def _bounds(points: list[np.ndarray], draws: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Pointwise bounds on counts that a count is beyond with at most this probability on each side, at each place."""
    low, high = np.zeros(len(points) + 2, int), np.zeros(len(points) + 2, int)
    low[-1] = high[-1] = draws
    for i, pmf in enumerate(points, 1):
        below, above = np.cumsum(pmf), np.cumsum(pmf[::-1])
        low[i] = int(np.searchsorted(below, level / 2, side="right"))
        high[i] = draws - int(np.searchsorted(above, level / 2, side="right"))
    return low, np.maximum(high, low)


def _stays(counts: np.ndarray, draws: int, low: np.ndarray, high: np.ndarray) -> float:
    """The probability that a chain's counts are within bounds at every place."""
    whole = int(counts[-1])
    now, chance = np.array([0]), np.array([1.0])
    for i in range(1, len(counts)):
        step, left = int(counts[i] - counts[i - 1]), whole - int(counts[i - 1])
        then = np.arange(low[i], high[i] + 1)
        more, marked = then[:, None] - now, draws - now
        ways = _choose(marked, more) + _choose(left - marked, step - more)
        chance = np.exp(ways - _choose(left, np.array(step))) @ chance
        now = then
    return float(chance.sum())
