"""Where a chain is, and how it moves: places, points, and one leapfrog step in whitened coordinates.

A sampler with a mass matrix is the sampler without one in coordinates in which the matrix is the identity (Neal 2011,
section 4.1). So positions here are whitened, `x = scale y`: the density is evaluated at `x`, its gradient comes back
through the same scale, and every sampler is written as if masses were one. A diagonal scale is a vector and costs two
products of vectors a step. A dense one is a lower triangle and costs two products with it, one more than a mass matrix
would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float

from lanewise import _jax
from lanewise.mcmc.precomputed import precomputed

# The log density at a position, which is a vector.
Density = Callable[[Float[Array, " d"]], Float[Array, ""]]
# A vector: a diagonal scale. A matrix, lower triangular: a dense one. None: all ones.
Space = Float[Array, " d"] | Float[Array, "d d"] | None
# For how many densities, which may be sampled again, traced and compiled code is cached.
KEPT = 32


class Place(NamedTuple):
    """A whitened position, and the log density and its gradient there."""

    position: Float[Array, " d"]
    logdensity: Float[Array, ""]
    gradient: Float[Array, " d"]


class Point(NamedTuple):
    """A place and a momentum."""

    place: Place
    momentum: Float[Array, " d"]


def unwhitened(space: Space, position: Float[Array, " d"]) -> Float[Array, " d"]:
    if space is None:
        return position
    return space * position if space.ndim == 1 else space @ position


def whitened(space: Space, position: Float[Array, " d"]) -> Float[Array, " d"]:
    if space is None:
        return position
    if space.ndim == 1:
        return position / space
    return jax.scipy.linalg.solve_triangular(space, position, lower=True)


def rewhitened(old: np.ndarray, new: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Whitened positions of chains, in the coordinates of another scale: on the host, by NumPy."""
    positions = positions * old if old.ndim == 1 else positions @ old.T
    return positions / new if new.ndim == 1 else np.linalg.solve(new, positions.T).T


@functools.lru_cache(KEPT)
def with_gradient(density: Density) -> Callable[[Array], tuple[Array, Array]]:
    """The density and its gradient as one function, traced once: the same code wherever it is called.

    Parts that neither needs, such as derivatives by constants, are left out of the functions that it calls, too.
    """
    both = jax.value_and_grad(precomputed(density))

    def run(position: Array) -> tuple[Array, Array]:
        traced: Any = jax.make_jaxpr(both)(position)
        code = _jax.without_unused(_jax.flat_jaxpr(traced))
        value, gradient = _jax.eval_jaxpr(code, *_jax.attached_consts(traced), position)
        return value, gradient

    return jax.jit(run)


def place_at(density: Density, space: Space, position: Float[Array, " d"]) -> Place:
    """The place at a whitened position."""
    value, gradient = with_gradient(density)(unwhitened(space, position))
    if space is not None:
        gradient = space * gradient if space.ndim == 1 else space.T @ gradient
    return Place(position, value, gradient)


def unknown(position: Float[Array, " d"]) -> Place:
    """The place at a whitened position at which the density has not been evaluated yet."""
    return Place(position, jnp.zeros((), position.dtype), jnp.zeros_like(position))


def energy(point: Point) -> Float[Array, ""]:
    return 0.5 * point.momentum @ point.momentum - point.place.logdensity


def leapfrog(density: Density, space: Space, point: Point, step: Float[Array, ""]) -> Point:
    """One step of the leapfrog integrator, backwards in time if `step` is negative."""
    momentum = point.momentum + 0.5 * step * point.place.gradient
    place = place_at(density, space, point.place.position + step * momentum)
    return Point(place, momentum + 0.5 * step * place.gradient)
