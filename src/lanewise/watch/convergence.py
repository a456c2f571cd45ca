"""R-hat, effective sample sizes and Monte Carlo standard errors, of one variable's draws (axes: chain, draw).

R-hat and ESS are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat": chains are split in half, draws replaced by the normal scores of their ranks. R-hat is
the larger of two, of the scores and of those of the distances from the median, so chains that differ in place or scale
are both found. Bulk ESS is that of the scores, tail ESS the smaller of those of "below the 5% quantile" and
"below the 95% quantile". The sum of autocorrelations ends by Geyer's initial monotone sequence. ArviZ and Stan's
`posterior` compute the same, and the tests compare with ArviZ; it is written here because a report of a thousand chains
needs them for hundreds of variables, and all that is asked of a variable comes from one sort and five transforms.

Not computed: nested R-hat (Margossian et al. 2024) for many chains of few draws, which needs chains that share a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

QUANTILES = (0.05, 0.5, 0.95)
# With fewer draws of each chain nothing is said about convergence.
FEWEST_DRAWS = 4


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


def _rhat(within: np.ndarray, between: np.ndarray, length: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.sqrt(between / within + (length - 1) / length)


@dataclass(frozen=True, eq=False)
class Summary:
    """What a table says of a variable, and what its pictures are made of.

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


def summary(values: np.ndarray) -> Summary:
    """What is said of a variable. Of a constant, R-hat and ESS are NaN.

    >>> said = summary(np.random.default_rng(0).normal(size=(4, 500)))
    >>> bool(said.rhat < 1.01), bool(1500 < said.ess_bulk < 2600)
    (True, True)
    """
    values = np.asarray(values, float)
    low, median, high = (float(q) for q in np.quantile(values, QUANTILES))
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else float("nan")
    if values.shape[1] < FEWEST_DRAWS or not sd > 0:
        chains = np.full((2, len(values)), np.nan)
        none = Halves(chains, chains, max(values.shape[1] // 2, 1))
        nan = float("nan")
        return Summary(mean, sd, (low, median, high), nan, nan, nan, none, none)
    scored = split(normal_scores(values))
    folded = split(normal_scores(np.abs(values - median)))
    tails = [ess(split((values <= edge).astype(float))) for edge in (low, high)]
    return Summary(
        mean,
        sd,
        (low, median, high),
        mcse=sd / float(np.sqrt(ess(split(values)))),
        ess_bulk=ess(scored),
        ess_tail=float(np.nanmin(tails)) if np.isfinite(tails).any() else float("nan"),
        bulk=halves(scored),
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
    """The autocovariances by lag, the mean of those of the chains."""
    draws = values.shape[1]
    length = next_fast_len(2 * draws, real=True)
    spectrum = rfft(values - values.mean(1, keepdims=True), length, axis=1)
    power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=0)
    return irfft(power, length)[:draws] / draws


def ess(values: np.ndarray) -> float:
    """The effective number of draws, for their mean. NaN where nothing varies.

    >>> said = ess(np.random.default_rng(0).normal(size=(8, 1000)))
    >>> bool(7000 < said < 9000)
    True
    """
    chains, draws = values.shape
    covariance = mean_autocovariance(values)
    within = covariance[0] * draws / (draws - 1)
    whole = covariance[0] + (values.mean(1).var(ddof=1) if chains > 1 else 0.0)
    if not whole > 0 or draws < FEWEST_DRAWS // 2:
        return float("nan")
    correlation = 1.0 - (within - covariance) / whole
    correlation[0] = 1.0
    time = _geyer(correlation)
    return chains * draws / max(time, 1.0 / np.log10(chains * draws))


def _geyer(correlation: np.ndarray) -> float:
    """The integrated autocorrelation time: pairs of lags as long as they are positive, and never growing."""
    even = correlation[: len(correlation) // 2 * 2 : 2]
    pairs = even + correlation[1 : 2 * len(even) : 2]
    # The last lags are of too few draws.
    known = max((len(correlation) - 3) // 2, 1)
    negative = np.flatnonzero(pairs[:known] <= 0)
    end = int(negative[0]) if len(negative) else min(known, len(pairs))
    beyond = max(float(even[end]), 0.0) if end < len(even) else 0.0
    if end == 0:
        return beyond
    return -1.0 + 2.0 * float(np.minimum.accumulate(pairs[:end]).sum()) + beyond


def autocorrelation_time(values: np.ndarray) -> float:
    """How many draws of a chain count as one, by what varies within chains alone; at least one."""
    covariance = mean_autocovariance(values)
    if not covariance[0] > 0:
        return 1.0
    return max(_geyer(covariance / covariance[0]), 1.0)


def autocorrelations(values: np.ndarray, lags: int) -> np.ndarray:
    """By chain and lag, from lag 0 on; zero for a chain that never moves."""
    draws = values.shape[1]
    length = next_fast_len(2 * draws, real=True)
    spectrum = rfft(values - values.mean(1, keepdims=True), length, axis=1)
    covariance = irfft(spectrum.real**2 + spectrum.imag**2, length, axis=1)[:, : lags + 1]
    first = covariance[:, :1]
    return np.divide(covariance, first, out=np.zeros_like(covariance), where=first > 0)


def e_bfmi(energy: np.ndarray) -> np.ndarray:
    """The estimated Bayesian fraction of missing information of each chain (Betancourt 2016, section 6.1)."""
    energy = np.asarray(energy, float)
    with np.errstate(all="ignore"):
        return (np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1)


def _largest(*numbers: float) -> float:
    known = [number for number in numbers if np.isfinite(number)]
    return max(known) if known else float(max(numbers))
