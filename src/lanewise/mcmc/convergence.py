"""Whether chains agree, and how many independent draws they are worth: numbers for one quantity.

`rhat` and `ess` are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021, "Rank-normalization, folding, and
localization", Bayesian Analysis 16), and give the numbers of ArviZ and of R's `posterior`: chains are split in halves,
draws are replaced by the normal scores of their ranks, and R-hat is the larger one of the draws and of their distances
from the median. They need no ArviZ, and average power spectra over chains before the one inverse transform.

R-hat compares the spread of chain means with the spread inside a chain. In equilibrium it is near

    sqrt(1 + 1 / (ESS of half a chain)),

however many chains there are: R-hat below 1.01 asks for an ESS of 50 from every half, and a thousand chains of twenty
good draws fail it. Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2024, "Nested R-hat", Bayesian
Analysis) compare groups of chains instead, "superchains", each with one start: a group that has forgotten its start has
the mean of all others, up to the noise of the group. `nested_rhat` is theirs. Groups of chains with different starts
would hide what it is to show (the mean of a large random group is always right), so where starts were all different,
`mixing` makes groups of chains whose *first draws* are close, and looks at the second halves of the chains: chains
that have forgotten their first draw have forgotten their start as well. It also compares all first halves with all
second halves, since a drift that chains have in common does not show between them. A difference counts if it is
both large (as R-hat 1.01) and more than chance explains (an analysis of variance): groups of few draws differ anyway.

A group does not show one lost chain among a hundred; `lost` finds chains whose mean score is far from the others'.

Limits: like any R-hat, these see only what chains visit. A mode that no chain has found does not show.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.fft import irfft, rfft
from scipy.fft import next_fast_len
from scipy.special import fdtrc, ndtri

# Fewer draws than this have no halves with a variance.
LEAST_DRAWS = 4
# Quantiles whose ESS is that of the tails.
TAILS = (0.05, 0.95)
# Superchains: at most this many, and at least this many chains in each.
SUPERCHAINS, LEAST_CHAINS = 16, 4
# A chain is lost if its mean score is this many standard deviations from the median chain; they are taken to be at
# least the second number, in units of a score.
LOST, LEAST_SPREAD = 6.0, 0.02
# Numbers in one block of Fourier transforms.
BLOCK = 1 << 20


def halves(values: np.ndarray) -> np.ndarray:
    """The first and the second halves of chains as chains; of an odd number of draws the middle one is left out."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, values.shape[1] - half :]])


def scores(values: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks of all values, equal ones sharing the average of their ranks.

    >>> scores(np.array([[3.0, 1.0], [1.0, 9.0]])).round(2).tolist()
    [[0.3, -0.63], [-0.63, 1.05]]
    """
    flat = values.ravel()
    order = np.argsort(flat)
    in_order = flat[order]
    begins = np.flatnonzero(np.concatenate([[True], in_order[1:] != in_order[:-1]]))
    size = flat.size
    if begins.size == size:
        ranks = np.arange(1.0, size + 1.0)
    else:
        counts = np.diff(np.append(begins, size))
        ranks = np.repeat(begins + 0.5 * (counts + 1.0), counts)
    result = np.empty(size)
    result[order] = ndtri((ranks - 0.375) / (size + 0.25))
    return result.reshape(values.shape)


def folded(values: np.ndarray) -> np.ndarray:
    """Distances from the median of all."""
    return np.abs(values - np.median(values))


def plain_rhat(values: np.ndarray) -> float:
    """The ratio of Gelman and Rubin (1992), of chains as they are."""
    draws = values.shape[1]
    within = values.var(axis=1, ddof=1).mean()
    between = values.mean(axis=1).var(ddof=1)
    if within == 0.0:
        return float("inf") if between > 0.0 else 1.0
    return float(np.sqrt(between / within + (draws - 1.0) / draws))


def rhat(values: np.ndarray) -> float:
    """Rank-normalized split R-hat of chains (rows) of at least 4 draws."""
    split = halves(values)
    return max(plain_rhat(scores(split)), plain_rhat(scores(folded(split))))


def autocovariance(values: np.ndarray) -> np.ndarray:
    """The autocovariance at every lag, averaged over chains."""
    chains, draws = values.shape
    length = int(next_fast_len(2 * draws, real=True))  # type: ignore[arg-type]
    power = np.zeros(length // 2 + 1)
    rows = max(1, BLOCK // length)
    for at in range(0, chains, rows):
        block = values[at : at + rows].astype(np.float64)
        spectrum = rfft(block - block.mean(axis=1, keepdims=True), length, axis=1)
        power += np.einsum("cf,cf->f", spectrum.real, spectrum.real)
        power += np.einsum("cf,cf->f", spectrum.imag, spectrum.imag)
    return irfft(power, length)[:draws] / (draws * chains)


def plain_ess(values: np.ndarray) -> float:
    """The effective sample size of chains as they are: Geyer's (1992) initial monotone sequence, of all chains."""
    chains, draws = values.shape
    if values.min() == values.max():
        return float(values.size)
    covariance = autocovariance(values)
    variance = covariance[0] * draws / (draws - 1.0)
    total = covariance[0]
    if chains > 1:
        total += values.mean(axis=1, dtype=np.float64).var(ddof=1)
    correlation = 1.0 - (variance - covariance) / total
    correlation[0] = 1.0
    time = max(_correlation_time(correlation), 1.0 / np.log10(values.size))
    return float(values.size / time)


def _correlation_time(correlation: np.ndarray) -> float:
    """The sum of correlations over lags of both signs, cut where the sum of a pair of them is not positive."""
    length = len(correlation) // 2 * 2
    even, odd = correlation[0:length:2], correlation[1:length:2]
    sums = even + odd
    negative = np.flatnonzero(sums <= 0.0)
    # The last lags, of few products each, are left out, as ArviZ does.
    pairs = max((len(correlation) - 3) // 2, 0)
    kept = min(int(negative[0]) if negative.size else pairs, pairs)
    total = 2.0 * np.minimum.accumulate(sums[:kept]).sum() - 1.0 if kept else -1.0
    # Half of the next pair, for chains whose correlations are negative in turn.
    return float(total + (even[kept] if even[kept] > 0.0 or sums[kept] >= 0.0 else 0.0))


class Sizes(NamedTuple):
    """Effective sample sizes: for means and medians, and for the 5% and 95% quantiles."""

    bulk: float
    tail: float


def ess(values: np.ndarray, normal: np.ndarray | None = None) -> Sizes:
    """Bulk and tail ESS of chains (rows) of at least 4 draws; `normal` are the scores of their halves, if known."""
    split = halves(values)
    bulk = plain_ess(scores(split) if normal is None else normal)
    low, high = np.quantile(values, TAILS)
    return Sizes(bulk, min(plain_ess(split <= limit) for limit in (low, high)))


def nested_rhat(values: np.ndarray, groups: np.ndarray) -> float:
    """Nested R-hat: `groups` has the number of each chain's superchain."""
    return _compared(values.mean(axis=1), _within(values), groups).rhat


class Mixing(NamedTuple):
    """A nested R-hat, and the probability of one as high between groups that do not differ."""

    rhat: float
    chance: float


def _within(values: np.ndarray) -> np.ndarray:
    return values.var(axis=1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))


def _compared(means: np.ndarray, within: np.ndarray, groups: np.ndarray) -> Mixing:
    """Nested R-hat of chains with these means and variances, and the chance of an F ratio as high as theirs."""
    _, groups, counts = np.unique(groups, return_inverse=True, return_counts=True)
    centers = np.bincount(groups, means) / counts
    squares = np.bincount(groups, (means - centers[groups]) ** 2)
    between, inside = (
        float(centers.var(ddof=1)),
        float((squares / np.maximum(counts - 1, 1)).mean()),
    )
    spread = inside + float((np.bincount(groups, within) / counts).mean())
    if spread == 0.0:
        return Mixing(float("inf"), 0.0) if between > 0.0 else Mixing(1.0, 1.0)
    freedom = len(means) - len(counts)
    ratio = between * float(counts.mean()) / inside if inside > 0.0 else float("inf")
    chance = float(fdtrc(len(counts) - 1, freedom, ratio)) if freedom > 0 else 1.0
    return Mixing(float(np.sqrt(1.0 + between / spread)), chance)


def superchains(first: np.ndarray) -> np.ndarray:
    """Groups of chains whose first draws are close; none for too few chains.

    >>> superchains(np.array([5.0, 1.0, 2.0, 8.0, 0.0, 7.0, 1.5, 6.0])).tolist()
    [1, 0, 0, 1, 0, 1, 0, 1]
    """
    chains = len(first)
    count = min(SUPERCHAINS, chains // LEAST_CHAINS)
    groups = np.empty(chains, int)
    groups[np.argsort(first, kind="stable")] = np.arange(chains) * count // chains
    return groups


def mixing(normal: np.ndarray, groups: np.ndarray | None = None) -> Mixing:
    """The worst nested R-hat of many chains of scores, of their superchains and of their first and second halves.

    With `groups`, chains that had the same start; else those whose first draws are close.
    """
    half = normal.shape[1] // 2
    early, late = normal[:, :half], normal[:, half:]
    if groups is None:
        between = _compared(late.mean(axis=1), _within(late), superchains(normal[:, 0]))
    else:
        between = _compared(normal.mean(axis=1), _within(normal), groups)
    return max(between, _drift(early, late), key=lambda found: found.rhat * (found.chance < 0.5))


def _drift(early: np.ndarray, late: np.ndarray) -> Mixing:
    """All first halves against all second ones, of the same chains: a nested R-hat of two groups."""
    moved = late.mean(axis=1) - early.mean(axis=1)
    spread = float((early.var() + late.var()) / 2.0)
    noise = float(moved.var(ddof=1)) / len(moved)
    mean = float(moved.mean())
    if spread == 0.0 or noise == 0.0:
        return Mixing(1.0, 1.0)
    chance = float(fdtrc(1, len(moved) - 1, mean**2 / noise))
    return Mixing(float(np.sqrt(1.0 + 0.5 * mean**2 / spread)), chance)


def lost(normal: np.ndarray) -> np.ndarray:
    """Which of many chains of scores are far from all others."""
    means = normal.mean(axis=1)
    apart = np.abs(means - np.median(means))
    spread = max(1.4826 * float(np.median(apart)), LEAST_SPREAD)
    return apart > LOST * spread


def missing_information(energy: np.ndarray) -> np.ndarray:
    """E-BFMI of each chain (Betancourt 2016): squared changes of the energy from draw to draw, by its variance."""
    changes = (np.diff(energy, axis=1) ** 2).mean(axis=1)
    variance = energy.var(axis=1, ddof=1)
    return np.divide(changes, variance, out=np.full(len(energy), np.nan), where=variance > 0.0)
