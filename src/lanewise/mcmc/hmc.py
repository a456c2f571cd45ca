"""Hamiltonian Monte Carlo with trajectories of random length (Duane et al. 1987; Neal 2011, section 5.4.2).

A trajectory of one fixed length can come back to where it began every time; a length drawn anew each time does not.
Chains then take different numbers of steps, and none waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import DIVERGED, Info, must_be_share
from lanewise.mcmc.space import Density, Place, Point, Space, energy, leapfrog
from lanewise.tracing.decorator import program


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo; a draw takes from 1 to `2 * steps - 1` leapfrog steps, each number as likely.

    >>> HMC(steps=8)
    HMC(steps=8, target_accept=0.8)
    """

    steps: int = 16
    target_accept: float = 0.8

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OptionError(f"steps={self.steps} must be a positive int.")
        must_be_share("target_accept", self.target_accept)

    def draw(
        self, density: Density, space: Space, key: Key[Array, ""], place: Place, step: Array
    ) -> tuple[Place, Info]:
        return draw(density, space, key, place, step, self.steps)


@program(static_argnames=("density", "steps"))
def draw(density, space, key, place, step, steps):
    """The next place of a chain, and the statistics of the draw."""
    momentum_key, length_key, accept_key = random.split(key, 3)
    momentum = random.normal(momentum_key, place.position.shape, place.position.dtype)
    point = Point(place, momentum)
    before = energy(point)
    gain = jnp.zeros_like(before)
    length = random.randint(length_key, (), 1, 2 * steps)
    taken = jnp.int32(0)
    while taken < length and gain >= -DIVERGED:
        point = leapfrog(density, space, point, step)
        gain = before - energy(point)
        gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
        taken += 1
    acceptance = jnp.exp(jnp.minimum(gain, 0.0))
    accepts = random.uniform(accept_key, (), acceptance.dtype) < acceptance
    place = jax.tree.map(lambda new, old: jnp.where(accepts, new, old), point.place, place)
    return place, Info(acceptance, before, jnp.int32(0), taken, gain < -DIVERGED)
