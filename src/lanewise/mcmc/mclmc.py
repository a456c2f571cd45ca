"""Microcanonical Langevin Monte Carlo (Robnik, De Luca, Silverstein and Seljak 2023), without an accept step.

The velocity has length one; the gradient only turns it, at a speed such that the positions of one long trajectory, on
which the energy stays the same, are distributed as the density. At each step the velocity also turns a
little at random, so that it forgets itself over a length of about `length * sqrt(dimensions)`.

Nothing corrects for the size of the step: draws are biased by the error of the integrator, which the step size is
adapted to keep small (the energy's mean squared error a dimension at `ENERGY_ERROR`). The reported acceptance stands
for that error: one for none, `target_accept` at `ENERGY_ERROR`. A density of one dimension has no direction to turn to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import DIVERGED, Info, must_be_share
from lanewise.mcmc.space import Density, Place, Space, place_at
from lanewise.tracing.decorator import program

# The mean squared error of the energy a dimension that keeps the bias small (Robnik et al. 2023, section 4).
ENERGY_ERROR = 5e-4


class Flight(NamedTuple):
    """A place and the direction of travel there."""

    place: Place
    direction: Float[Array, " d"]


@dataclass(frozen=True)
class MCLMC:
    """Microcanonical Langevin; a draw is a flight over `length * sqrt(dimensions)`, in at most `max_steps` steps.

    >>> MCLMC(length=0.5)
    MCLMC(length=0.5, max_steps=512, target_accept=0.8)
    """

    length: float = 1.0
    max_steps: int = 512
    target_accept: float = 0.8

    def __post_init__(self) -> None:
        if not self.length > 0.0:
            raise OptionError(f"length={self.length} must be a positive number.")
        if self.max_steps < 1:
            raise OptionError(f"max_steps={self.max_steps} must be a positive int.")
        must_be_share("target_accept", self.target_accept)

    def draw(
        self, density: Density, space: Space, key: Key[Array, ""], place: Place, step: Array
    ) -> tuple[Place, Info]:
        dimensions = place.position.size
        if dimensions < 2:
            raise OptionError(
                "MCLMC turns a direction, and a density of one dimension has only one; use NUTS or HMC."
            )
        length = self.length * math.sqrt(dimensions)
        return draw(density, space, key, place, step, length, self.max_steps, self.target_accept)


def normalized(vector: Float[Array, " d"]) -> Float[Array, " d"]:
    return vector / jnp.sqrt(vector @ vector)


def turned(flight: Flight, step: Array) -> tuple[Flight, Array]:
    """The direction after the gradient has turned it for `step`, and the kinetic energy that was gained."""
    place, direction = flight
    dimensions = direction.size
    size = jnp.sqrt(place.gradient @ place.gradient)
    along = place.gradient / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
    angle = step * size / (dimensions - 1)
    cosine = direction @ along
    fade = jnp.exp(-angle)
    new = along * (1 - fade) * (1 + fade + cosine * (1 - fade)) + 2 * fade * direction
    gained = angle - math.log(2.0) + jnp.log(1 + cosine + (1 - cosine) * fade**2)
    return Flight(place, normalized(new)), (dimensions - 1) * gained


def flown(density: Density, space: Space, flight: Flight, step: Array) -> tuple[Flight, Array]:
    """One step of the integrator, and the error of the energy."""
    before = flight.place.logdensity
    flight, first = turned(flight, step / 2)
    place = place_at(density, space, flight.place.position + step * flight.direction)
    flight, second = turned(Flight(place, flight.direction), step / 2)
    return flight, first + second - (place.logdensity - before)


@program(static_argnames=("density", "length", "max_steps", "target_accept"))
def draw(density, space, key, place, step, length, max_steps, target_accept):
    """The next place of a chain, and the statistics of the draw."""
    direction_key, key = random.split(key)
    shape, dtype, dimensions = place.position.shape, place.position.dtype, place.position.size
    flight = Flight(place, normalized(random.normal(direction_key, shape, dtype)))
    spread = jnp.sqrt(jnp.expm1(2 * step / length) / dimensions)
    steps = jnp.clip(jnp.ceil(length / step), 1, max_steps).astype(jnp.int32)
    taken = jnp.int32(0)
    squares = jnp.zeros_like(place.logdensity)
    fails = jnp.array(False)
    while taken < steps and not fails:
        ahead, error = flown(density, space, flight, step)
        fails = ~(jnp.abs(error) < DIVERGED)
        if not fails:
            kick = random.normal(random.fold_in(key, taken), shape, dtype)
            flight = Flight(ahead.place, normalized(ahead.direction + spread * kick))
            squares += error**2
        taken += 1
    error = squares / (taken * dimensions)
    acceptance = jnp.where(fails, 0.0, jnp.exp(math.log(target_accept) * error / ENERGY_ERROR))
    info = Info(acceptance, -flight.place.logdensity, jnp.int32(0), taken, fails)
    return flight.place, info
