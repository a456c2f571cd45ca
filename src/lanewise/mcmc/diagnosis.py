"""Warnings of what went wrong in which chains."""

from __future__ import annotations

import warnings

import numpy as np

# At most this many chains are named in a warning.
NAMED = 8


class SamplingWarning(UserWarning):
    """Chains that failed, never moved or diverged."""


def warn_of(moved: np.ndarray, diverging: np.ndarray, failed: np.ndarray) -> None:
    """Warn of what went wrong in which chains; `diverging` has axes chain and draw."""
    stuck = ~moved & ~failed
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
