"""Warm-up: step sizes by dual averaging, and scales of the coordinates from what has been drawn.

The step size follows Nesterov's dual averaging as Hoffman and Gelman (2014) use it: each draw shows by how much its
acceptance misses `target_accept`. Scales are estimated in windows that double in length, after a first stretch
in which chains only find the typical set and before a last one for the step size, as in Stan (its reference manual,
"HMC algorithm parameters"). An estimate is shrunk towards a small multiple of the identity, the more the fewer draws it
is from.

Chains can adapt separately, or share: then moments of all chains are pooled at the end of a window, which with
many chains is a good estimate after few draws, and they take the median of their step sizes (`windows.py`). Chains
that are far from all others are left out of both: one in another mode, or one that has not found the typical set,
costs only itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lanewise.mcmc.space import Space

# Dual averaging: how strongly it is drawn to ten times the first step, how little the first draws count, and how fast
# the average forgets (Hoffman and Gelman 2014, section 3.2.1).
STRENGTH, EARLY, FORGETS = 0.05, 10.0, 0.75
# An estimate from n draws counts n, the small multiple of the identity this many.
PRIOR_DRAWS, PRIOR_VARIANCE = 5.0, 1e-3
# Draws before the first window and after the last one, and the length of the first; a warm-up too short for these has
# shares of its own length instead.
BEFORE, AFTER, FIRST = 75, 50, 25
SHARE_BEFORE, SHARE_AFTER = 0.15, 0.1
LEAST_WINDOW = 10
# A chain whose mean is this many standard deviations from the median chain's is not pooled with the others.
FAR = 6.0


class StepSize(NamedTuple):
    """The state of dual averaging."""

    log_step: Float[Array, ""]
    log_average: Float[Array, ""]
    drawn_to: Float[Array, ""]
    error: Float[Array, ""]
    count: Float[Array, ""]


def step_from(step: Float[Array, ""]) -> StepSize:
    """Dual averaging that begins at `step`."""
    log_step, zero = jnp.log(step), jnp.zeros_like(step)
    return StepSize(log_step, log_step, jnp.log(10.0) + log_step, zero, zero)


def step_after(state: StepSize, acceptance: Float[Array, ""], target_accept: float) -> StepSize:
    """The state after a draw with this acceptance."""
    count = state.count + 1.0
    weight = 1.0 / (count + EARLY)
    error = (1.0 - weight) * state.error + weight * (target_accept - acceptance)
    log_step = state.drawn_to - jnp.sqrt(count) / STRENGTH * error
    share = count**-FORGETS
    log_average = share * log_step + (1.0 - share) * state.log_average
    return StepSize(log_step, log_average, state.drawn_to, error, count)


class Moments(NamedTuple):
    """Moments of draws: their number, their mean, and the sum of squared differences from it (of products if dense)."""

    count: Float[Array, ""]
    mean: Float[Array, " d"]
    squares: Float[Array, " d"] | Float[Array, "d d"]


def no_moments(like: Float[Array, " d"], dense: bool) -> Moments:
    shape = (like.size, like.size) if dense else (like.size,)
    return Moments(jnp.zeros((), like.dtype), jnp.zeros_like(like), jnp.zeros(shape, like.dtype))


def moments_with(moments: Moments, position: Float[Array, " d"]) -> Moments:
    """The moments of one draw more (Welford 1962)."""
    count = moments.count + 1.0
    before = position - moments.mean
    mean = moments.mean + before / count
    after = position - mean
    dense = moments.squares.ndim > 1
    product = before[:, None] * after[None, :] if dense else before * after
    return Moments(count, mean, moments.squares + product)


def agreeing(chains: Moments) -> np.ndarray:
    """Which chains are not far from all others, by the means of their draws; all, of three or fewer.

    >>> chain = Moments(np.full(5, 10.0), np.array([[0.1], [-0.2], [0.0], [0.3], [50.0]]), np.full((5, 1), 10.0))
    >>> agreeing(chain).tolist()
    [True, True, True, True, False]
    """
    counts, means, squares = (np.asarray(leaf, float) for leaf in chains)
    if len(means) <= 3:
        return np.ones(len(means), bool)
    if squares.ndim > means.ndim:
        squares = np.diagonal(squares, axis1=1, axis2=2)
    within = np.sqrt(np.median(squares / np.maximum(counts - 1.0, 1.0)[:, None], axis=0))
    apart = np.abs(means - np.median(means, axis=0))
    spread = np.maximum(1.4826 * np.median(apart, axis=0), within)
    return np.asarray((apart <= FAR * spread).all(axis=1))


def pooled(chains: Moments) -> Moments:
    """The moments of the draws of all chains, which are along the first axis: on the host, by NumPy."""
    counts, means, squares = (np.asarray(leaf) for leaf in chains)
    count = counts.sum()
    mean = (counts[:, None] / count * means).sum(axis=0)
    apart = means - mean
    weighted = counts[:, None] * apart
    dense = squares.ndim > means.ndim
    between = weighted.T @ apart if dense else (weighted * apart).sum(axis=0)
    return Moments(count, mean, squares.sum(axis=0) + between)


def scale_from(moments: Moments, numpy: Any = jnp) -> Space:
    """The scale that makes these draws' covariance the identity, or near it; on the host if `numpy` is NumPy."""
    count, _, squares = moments
    share = count / (count + PRIOR_DRAWS)
    prior = PRIOR_VARIANCE * PRIOR_DRAWS / (count + PRIOR_DRAWS)
    covariance = share * squares / numpy.maximum(count - 1.0, 1.0)
    if squares.ndim == 1:
        return numpy.sqrt(covariance + prior)
    identity = numpy.eye(squares.shape[0], dtype=squares.dtype)
    return numpy.linalg.cholesky(covariance + prior * identity)


class Window(NamedTuple):
    """A stretch of the warm-up, and whether the scale is renewed at its end."""

    draws: int
    renews: bool


def windows(warmup: int) -> tuple[Window, ...]:
    """The stretches of a warm-up of this many draws.

    >>> [window.draws for window in windows(1000)]
    [75, 25, 50, 100, 200, 500, 50]
    >>> windows(15)
    (Window(draws=15, renews=False),)
    >>> windows(0)
    ()
    """
    if warmup == 0:
        return ()
    before, first, after = BEFORE, FIRST, AFTER
    if before + first + after > warmup:
        before, after = round(SHARE_BEFORE * warmup), max(LEAST_WINDOW, round(SHARE_AFTER * warmup))
        first = LEAST_WINDOW
    left = warmup - before - after
    if left < first:
        return (Window(warmup, False),)
    lengths = []
    while left:
        # The last one takes the rest, which is too short for another window of twice its length.
        taken = first if left >= 3 * first else left
        lengths.append(taken)
        left, first = left - taken, 2 * first
    stretches = [Window(before, False)] if before else []
    return (*stretches, *(Window(length, True) for length in lengths), Window(after, False))
