"""Warnings of what went wrong in which chains."""

from __future__ import annotations

import warnings

import numpy as np

from lanewise.mcmc.inference import Drawn
from lanewise.mcmc.start import Starts

# At most this many chains are named in a warning.
NAMED = 8


class SamplingWarning(UserWarning):
    """Chains that failed, never moved or diverged."""


def warn_of(begin: Starts, drawn: Drawn, failed: np.ndarray) -> None:
    """Warn of what went wrong in which chains."""
    positions, diverging = np.asarray(drawn.positions), np.asarray(drawn.info.diverging)
    starts = begin.positions[:, None]
    stays = (positions == positions[:, :1]) if positions.shape[1] > 1 else (positions == starts)
    stuck = (stays | np.isnan(positions)).all(axis=(1, 2)) & ~failed
    warned = [
        (failed, "failed: their draws are NaN from there on"),
        (stuck, "never moved (see init= and the density at their starts)"),
    ]
    for which, what in warned:
        if which.any():
            warnings.warn(f"{_chains(which)} {what}.", SamplingWarning, stacklevel=3)
    if diverging.any():
        warnings.warn(
            f"{int(diverging.sum())} of {diverging.size} draws diverged, in {int(diverging.any(axis=1).sum())} chains;"
            " a higher acceptance (NUTS(target_accept=0.95)) or other coordinates may help.",
            SamplingWarning,
            stacklevel=3,
        )


def _chains(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    named = ", ".join(map(str, numbers[:NAMED])) + (", ..." if numbers.size > NAMED else "")
    return f"{numbers.size} of {which.size} chains ({named})"
