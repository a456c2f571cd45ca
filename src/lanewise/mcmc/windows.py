"""The ends of the windows of a warm-up, on the host: new scales and step sizes from what chains have drawn."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from lanewise.mcmc.adapt import Moments, Window, agreeing, pooled, scale_from
from lanewise.mcmc.chain import Carried
from lanewise.mcmc.space import Place, rewhitened

# Chains share a step size, but one that needs steps this many times smaller than the others has its own: in the neck of
# a funnel every draw with their step would diverge, and the chain would never leave.
MUCH_SMALLER = 0.5


def ended(
    window: Window, carried: Carried, space: Any, well: np.ndarray, shares: bool, alone: bool
) -> tuple[Carried, Any, bool]:
    """Chains after a window, their scale, and whether it is new, so that the density must be evaluated again.

    Only chains that are `well` count. `shares`: they take one step size, but for those that need a much smaller one.
    `alone`: each has its own scale.
    """
    step = np.exp(carried.adapting.log_average)
    moments = jax.tree.map(np.asarray, carried.moments)
    if shares:
        used = np.flatnonzero(well)
        with np.errstate(all="ignore"):  # chains that overflow agree with none
            used = used[agreeing(jax.tree.map(lambda leaf: leaf[used], moments))]
        if not used.size:
            return carried._replace(step=step), space, False  # type: ignore[arg-type]
        shared = np.median(step[used])
        step = np.where(step < MUCH_SMALLER * shared, step, shared)
    place = carried.place
    if space is None or not window.renews:
        return carried._replace(step=step), space, False  # type: ignore[arg-type]
    if not alone:
        chosen = jax.tree.map(lambda leaf: leaf[used], moments)
        with np.errstate(all="ignore"):
            new = np.asarray(scale_from(pooled(chosen), np))
        if not np.isfinite(new).all():
            return carried._replace(step=step), space, False  # type: ignore[arg-type]
        moved = rewhitened(np.asarray(space), new, np.asarray(place.position))
    else:
        new, moved = _each(np.asarray(space), moments, place, well)
    renewed: Any = place._replace(position=moved.astype(step.dtype))
    return carried._replace(place=renewed, step=step), new.astype(step.dtype), True  # type: ignore[arg-type]


def _each(
    spaces: np.ndarray, moments: Moments, place: Place, well: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the whitened position of each chain, from its own moments."""
    new, moved = spaces.copy(), np.array(place.position)
    for i in np.flatnonzero(well):
        scale = np.asarray(scale_from(jax.tree.map(lambda leaf, i=i: leaf[i], moments), np))
        new[i], moved[i] = scale, rewhitened(spaces[i], scale, moved[i : i + 1])[0]
    return new, moved
