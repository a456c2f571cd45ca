"""Which of many variables are worst, cheaply: the full summary is then computed for those alone.

A summary sorts all draws of a variable and takes several Fourier transforms. A screen needs two passes: draws become
`arctan((x - median) / IQR)`, which is bounded, so that R-hat exists whatever the tails (a summary's ranks do the
same), and split R-hat of these and of their distances from the median is read off means and variances of half chains.
The more the means of halves vary beside the draws within them, the fewer effective draws there are, so R-hat orders by
ESS too. Median and IQR are those of some of the draws.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Summaries of this many numbers take about two seconds.
MOST_NUMBERS = 8_000_000
FEWEST_VARIABLES = 16
_SOME = 2000


def worth_a_summary(variables: Mapping[str, np.ndarray]) -> list[str]:
    """All names, in their order, or if these are too many draws, those that look worst.

    >>> worth_a_summary({"x": np.zeros((4, 10)), "y": np.ones((4, 10))})
    ['x', 'y']
    """
    size = max((values.size for values in variables.values()), default=1)
    most = max(MOST_NUMBERS // max(size, 1), FEWEST_VARIABLES)
    if len(variables) <= most:
        return list(variables)
    scores = {name: split_rhat(values) for name, values in variables.items()}
    worst = set(sorted(scores, key=lambda name: -scores[name])[:most])
    return [name for name in variables if name in worst]


def split_rhat(values: np.ndarray) -> float:
    """The larger split R-hat, of place and of scale; zero for what never varies."""
    half = values.shape[1] // 2
    if half < 2:
        return 0.0
    values = np.asarray(values, float)
    some = values.reshape(-1)[:: max(values.size // _SOME, 1)]
    low, median, high = (float(q) for q in np.quantile(some, (0.25, 0.5, 0.75)))
    scale = (high - low) or float(np.std(values)) or 1.0
    bounded = np.arctan((values[:, : 2 * half] - median) / scale)
    return max(_rhat(bounded, half), _rhat(np.abs(bounded), half))


def _rhat(values: np.ndarray, half: int) -> float:
    halves = values.reshape(len(values), 2, half)
    within = float(halves.var(axis=2, ddof=1).mean())
    between = float(halves.mean(axis=2).var(ddof=1))
    if not within > 0:
        return float("inf") if between > 0 else 0.0
    return float(np.sqrt(between / within + (half - 1) / half))
