"""R-hat, effective sample sizes and Monte Carlo standard errors, of one variable's draws (axes: chain, draw).

R-hat and ESS are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat": chains are split in half, draws replaced by the normal scores of their ranks. R-hat is
the larger of two, of the scores and of those of the distances from the median, so chains that differ in place or scale
are both found. Bulk ESS is that of the scores, tail ESS the smaller of those of "below the 5% quantile" and
"below the 95% quantile". The sum of autocorrelations ends by Geyer's initial monotone sequence. ArviZ and Stan's
`posterior` compute the same, and the tests compare with ArviZ; it is written here because a report of a thousand chains
needs them for hundreds of variables, and all figures of a variable come from two sorts and five transforms.

R-hat compares the spread of chain means with the spread inside a chain. In equilibrium it is near

    sqrt(1 + 1 / (ESS of half a chain)),

however many chains there are: R-hat below 1.01 asks for an ESS of 50 from every half, and a thousand chains of twenty
good draws fail it. Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2024, "Nested R-hat", Bayesian
Analysis) compare groups of chains instead, "superchains", each with one start: a group that has forgotten its start has
the mean of all others, up to the noise of the group. `nested_rhat` is theirs. Groups of chains with different starts
would hide what it should show (the mean of a large random group is always right), so where starts were all different,
`mixing` makes groups of chains whose *first draws* are close, and looks at the second halves of the chains: chains
that have forgotten their first draw have forgotten their start too. It also compares all first halves with all
second halves, since a drift that chains have in common does not show between them. A difference counts if it is
both large (as R-hat 1.01) and more than chance explains (an analysis of variance): groups of few draws differ anyway.
A group does not show one lost chain among a hundred; `lost` finds chains whose mean score is far from the others'.

Limits: like any R-hat, these see only what chains visit. A mode that no chain has found does not show.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import fdtrc, ndtri

QUANTILES = (0.05, 0.5, 0.95)
# With fewer draws of each chain nothing is said about convergence.
FEWEST_DRAWS = 4
# Superchains: at most this many, and at least this many chains in each.
SUPERCHAINS, LEAST_CHAINS = 16, 4
# A chain is lost if its mean score is this many standard deviations from the median chain; they are taken to be at
# least the second number, in units of a score.
LOST, LEAST_SPREAD = 6.0, 0.02
# Numbers in one block of Fourier transforms.
BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class Halves:
    """Means and variances of the halves of chains, axes (half, chain), of which R-hat is made."""

    means: np.ndarray
    variances: np.ndarray
    length: int

    def rhat(self) -> float:
        return float(_rhat(self.variances.mean(), self.means.var(ddof=1), self.length))

    def rhat_without(self) -> np.ndarray:
        """R-hat of all chains but one, for each."""
        if self.means.shape[1] < 2:
            return np.full(self.means.shape[1], np.nan)
        left = self.means.size - 2
        centred = self.means - self.means.mean()
        within = (self.variances.sum() - self.variances.sum(0)) / left
        total = -centred.sum(0)
        squares = (centred**2).sum() - (centred**2).sum(0)
        return _rhat(within, (squares - total**2 / left) / max(left - 1, 1), self.length)


def _rhat(within: Any, between: Any, length: int) -> Any:
    with np.errstate(all="ignore"):
        return np.sqrt(between / within + (length - 1) / length)


@dataclass(frozen=True, eq=False)
class Summary:
    """What a table says about a variable, and what its pictures are made of.

    `bulk` is of normal scores of the draws, `folded` of those of their distances from the median.
    """

    mean: float
    sd: float
    quantiles: tuple[float, ...]
    mcse: float
    ess_bulk: float
    ess_tail: float
    bulk: Halves
    folded: Halves

    @cached_property
    def rhat(self) -> float:
        return _largest(self.bulk.rhat(), self.folded.rhat())

    @cached_property
    def rhat_without(self) -> np.ndarray:
        """R-hat without each chain, of the scores that all chains gave."""
        return np.fmax(self.bulk.rhat_without(), self.folded.rhat_without())

    @cached_property
    def distances(self) -> np.ndarray:
        """How far each chain's mean is from that of all, in standard deviations of a draw; of normal scores."""
        means = self.bulk.means.mean(0)
        return means - means.mean()


@dataclass(frozen=True, eq=False)
class Scored:
    """The draws of a variable by halves of chains (`parts`), first halves first, and their normal scores."""

    quantiles: tuple[float, ...]
    parts: np.ndarray
    scores: np.ndarray

    @property
    def by_chain(self) -> np.ndarray:
        """The scores with both halves of a chain behind each other."""
        return np.concatenate(np.split(self.scores, 2), axis=1)

    @cached_property
    def ess_bulk(self) -> float:
        return ess(self.scores)

    @cached_property
    def ess_tail(self) -> float:
        low, *_, high = self.quantiles
        sizes = [ess((self.parts <= edge).astype(float)) for edge in (low, high)]
        # Where no draw is beyond an edge, or all are, nothing is uncertain.
        return float(min(self.parts.size if np.isnan(size) else size for size in sizes))


def scored(values: np.ndarray) -> Scored | None:
    """What R-hat and ESS are made of; None where all draws are the same, or there are too few."""
    values = np.asarray(values, float)
    if values.shape[1] < FEWEST_DRAWS or not values.std() > 0:
        return None
    parts = split(values)
    return Scored(_quantiles(values), parts, normal_scores(parts))


def _quantiles(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(q) for q in np.quantile(values, QUANTILES))


def summary(values: np.ndarray) -> Summary:
    """The summary of a variable. R-hat and ESS of a constant are NaN.

    >>> said = summary(np.random.default_rng(0).normal(size=(4, 500)))
    >>> bool(said.rhat < 1.01), bool(1500 < said.ess_bulk < 2600)
    (True, True)
    """
    values = np.asarray(values, float)
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else float("nan")
    found = scored(values)
    if found is None:
        chains = np.full((2, len(values)), np.nan)
        none = Halves(chains, chains, max(values.shape[1] // 2, 1))
        nan = float("nan")
        return Summary(mean, sd, _quantiles(values), nan, nan, nan, none, none)
    parts = found.parts
    folded = normal_scores(np.abs(parts - np.median(parts)))
    return Summary(
        mean,
        sd,
        found.quantiles,
        mcse=sd / float(np.sqrt(ess(parts))),
        ess_bulk=found.ess_bulk,
        ess_tail=found.ess_tail,
        bulk=halves(found.scores),
        folded=halves(folded),
    )


def split(values: np.ndarray) -> np.ndarray:
    """The first halves of chains, then the second; a draw in the middle is left out."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, values.shape[1] - half :]])


def halves(splitted: np.ndarray) -> Halves:
    shape = (2, len(splitted) // 2)
    means, variances = splitted.mean(1), splitted.var(1, ddof=1)
    return Halves(means.reshape(shape), variances.reshape(shape), splitted.shape[1])


def normal_scores(values: np.ndarray) -> np.ndarray:
    """The normal quantiles of the ranks of draws among all (Blom's offsets); equal draws share their mean rank."""
    ranks = mean_ranks(values)
    return ndtri((ranks - 0.375) / (values.size + 0.25))


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, of all draws together.

    >>> mean_ranks(np.array([[3.0, 1.0], [1.0, 9.0]]))
    array([[3. , 1.5],
           [1.5, 4. ]])
    """
    flat = values.reshape(-1)
    order = np.argsort(flat)
    ordered = flat[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    ends = np.append(starts[1:], flat.size)
    ranks = np.empty(flat.size)
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return ranks.reshape(values.shape)


def mean_autocovariance(values: np.ndarray) -> np.ndarray:
    """The autocovariances by lag, the mean of those of the chains: power spectra are averaged, and transformed once."""
    chains, draws = values.shape
    length = _room(draws)
    power = np.zeros(length // 2 + 1)
    rows = max(1, BLOCK // length)
    for at in range(0, chains, rows):
        block = values[at : at + rows]
        spectrum: Any = rfft(block - block.mean(1, keepdims=True), length, axis=1)
        power += np.einsum("cf,cf->f", spectrum.real, spectrum.real)
        power += np.einsum("cf,cf->f", spectrum.imag, spectrum.imag)
    covariance: Any = irfft(power, length)
    return covariance[:draws] / (draws * chains)


def _room(draws: int) -> int:
    length: Any = next_fast_len(2 * draws, real=True)
    return length


def ess(values: np.ndarray) -> float:
    """The effective number of draws, for their mean. NaN where nothing varies.

    >>> said = ess(np.random.default_rng(0).normal(size=(8, 1000)))
    >>> bool(7000 < said < 9000)
    True
    """
    chains, draws = values.shape
    if draws < FEWEST_DRAWS // 2 or not values.min() < values.max():
        return float("nan")
    covariance = mean_autocovariance(values)
    within = covariance[0] * draws / (draws - 1)
    whole = covariance[0] + (values.mean(1).var(ddof=1) if chains > 1 else 0.0)
    correlation = 1.0 - (within - covariance) / whole
    correlation[0] = 1.0
    time = _geyer(correlation)
    return chains * draws / max(time, 1.0 / np.log10(chains * draws))


def _geyer(correlation: np.ndarray) -> float:
    """The integrated autocorrelation time: pairs of lags as long as they are positive, and never growing."""
    length = len(correlation) // 2 * 2
    even = correlation[0:length:2]
    pairs = even + correlation[1:length:2]
    negative = np.flatnonzero(pairs <= 0.0)
    # The last lags, of few products each, are left out, as ArviZ does.
    known = max((len(correlation) - 3) // 2, 0)
    kept = min(int(negative[0]) if negative.size else known, known)
    total = 2.0 * np.minimum.accumulate(pairs[:kept]).sum() - 1.0 if kept else -1.0
    # Half of the next pair, for chains whose correlations are negative in turn.
    return float(total + (even[kept] if even[kept] > 0.0 or pairs[kept] >= 0.0 else 0.0))


def autocorrelation_time(values: np.ndarray) -> float:
    """How many draws of a chain count as one, by what varies within chains alone; at least one."""
    if values.shape[1] < 2:
        return 1.0
    covariance = mean_autocovariance(values)
    if not covariance[0] > 0:
        return 1.0
    return max(_geyer(covariance / covariance[0]), 1.0)


def autocorrelations(values: np.ndarray, lags: int) -> np.ndarray:
    """By chain and lag, from lag 0 on; zero for a chain that never moves."""
    draws = values.shape[1]
    length = _room(draws)
    spectrum: Any = rfft(values - values.mean(1, keepdims=True), length, axis=1)
    every: Any = irfft(spectrum.real**2 + spectrum.imag**2, length, axis=1)
    covariance = every[:, : lags + 1]
    first = covariance[:, :1]
    return np.divide(covariance, first, out=np.zeros_like(covariance), where=first > 0)


def e_bfmi(energy: np.ndarray) -> np.ndarray:
    """The estimated Bayesian fraction of missing information of each chain (Betancourt 2016, section 6.1)."""
    energy = np.asarray(energy, float)
    with np.errstate(all="ignore"):
        return (np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1)


def e_bfmi_of_all(energy: np.ndarray) -> float:
    """That of many chains together: one of many short ones is low by chance."""
    energy = np.asarray(energy, float)
    with np.errstate(all="ignore"):
        return float((np.diff(energy, axis=1) ** 2).mean() / energy.var(axis=1).mean())


def _largest(*numbers: float) -> float:
    known = [number for number in numbers if not np.isnan(number)]
    return max(known) if known else float("nan")


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
