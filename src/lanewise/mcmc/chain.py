"""The programs of one chain: its warm-up, and its draws.

They are loops over draws, so that a chain that has a draw goes on to the next whatever the others do. The key of a draw
is made of the chain's key and the draw's number: it is the same draw however many are asked for at once.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float

from lanewise.decorator import ProgramFunction, program
from lanewise.mcmc.adapt import (
    Moments,
    moments_with,
    no_moments,
    scale_from,
    step_after,
    step_from,
)
from lanewise.mcmc.samplers import Sampler, Told
from lanewise.mcmc.space import (
    Density,
    Place,
    Point,
    Space,
    energy,
    leapfrog,
    place_at,
    unwhitened,
    whitened,
)

# How many programs are kept for densities that may be sampled again.
KEPT = 32
# The first step is doubled or halved at most this often.
MOST_HALVINGS = 50


class Warmed(NamedTuple):
    """A chain after a stretch of warm-up. `moments` are those of the last window's draws."""

    position: Float[Array, " d"]
    space: Space
    step: Float[Array, ""]
    moments: Moments


class Drawn(NamedTuple):
    """Draws of one chain, along the first axis, and what is told of each; `place` is where it goes on."""

    place: Place
    positions: Float[Array, "draws d"]
    logdensity: Float[Array, " draws"]
    told: Told


@program(static_argnames=("density", "wanted"))
def first_step(density, space, key, place, step, wanted):
    """A step size of about the right magnitude: one at which a single step's acceptance crosses `wanted`."""
    momentum = random.normal(key, place.position.shape, place.position.dtype)
    start = Point(place, momentum)
    before = energy(start)
    gain = before - energy(leapfrog(density, space, start, step))
    grows = gain > jnp.log(wanted)
    factor = jnp.where(grows, 2.0, 0.5)
    goes_on = grows
    tries = 0
    while goes_on == grows and tries < MOST_HALVINGS:
        step = step * factor
        gain = before - energy(leapfrog(density, space, start, step))
        goes_on = gain > jnp.log(wanted)
        tries += 1
    return step


@functools.lru_cache(KEPT)
def warming(sampler: Sampler, density: Density, dense: bool, alone: bool) -> ProgramFunction:
    """The program of a chain's warm-up, through windows of `lengths` draws from the draw with this `number` on.

    A chain that adapts `alone` renews its scale at the end of each window that `renews`.
    """

    @program
    def warm_up(key, position, space, step, number, lengths, renews):
        moments = no_moments(position, dense)
        for window in range(lengths.shape[0]):
            place = place_at(density, space, whitened(space, position))
            step = first_step(
                density, space, random.fold_in(key, -1 - number), place, step, sampler.wanted
            )
            adapting = step_from(step)
            moments = no_moments(position, dense)
            last = number + lengths[window]
            while number < last:
                draw_key = random.fold_in(key, number)
                place, told = sampler.draw(
                    density, space, draw_key, place, jnp.exp(adapting.log_step)
                )
                adapting = step_after(adapting, told.acceptance, sampler.wanted)
                moments = moments_with(moments, unwhitened(space, place.position))
                number += 1
            position = unwhitened(space, place.position)
            step = jnp.exp(adapting.log_average)
            if alone and renews[window]:
                space = scale_from(moments)
        return Warmed(position, space, step, moments)

    return warm_up


@functools.lru_cache(KEPT)
def drawing(sampler: Sampler, density: Density, capacity: int) -> ProgramFunction:
    """The program of a chain's draws, `draws` of them and no more than `capacity`, from `number` on."""

    @program
    def draws_of(key, place, space, step, number, draws):
        dtype = place.position.dtype
        positions = jnp.zeros((capacity, place.position.size), dtype)
        logdensity = jnp.zeros(capacity, dtype)
        told = Told(
            acceptance=jnp.zeros(capacity, dtype),
            energy=jnp.zeros(capacity, dtype),
            tree_depth=jnp.zeros(capacity, jnp.int32),
            leapfrogs=jnp.zeros(capacity, jnp.int32),
            diverging=jnp.zeros(capacity, bool),
        )
        i = 0
        while i < draws:
            place, latest = sampler.draw(
                density, space, random.fold_in(key, number + i), place, step
            )
            positions = positions.at[i].set(unwhitened(space, place.position))
            logdensity = logdensity.at[i].set(place.logdensity)
            told = Told(*(history.at[i].set(value) for history, value in zip(told, latest)))
            i += 1
        return Drawn(place, positions, logdensity, told)

    return draws_of
