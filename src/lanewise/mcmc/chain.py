"""The program of one chain: stretches of draws, some to adapt by and some to keep.

One program does the warm-up and the draws. What differs is data (`Stretches`): how many draws, whether the step size
and the moments follow them, whether the scale is renewed at their end. So the density and its gradient are compiled for
one program, however many windows a warm-up has. The density is asked at two places of it: in a sampler's step, and
where a stretch begins (`settled`).

It is a loop over draws, so that a chain that has a draw goes on to the next whatever the others do. The key of a draw
is made of the chain's key and the draw's number: it is the same draw however many are asked for at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float, Int

from lanewise.mcmc.adapt import (
    Moments,
    Window,
    moments_with,
    no_moments,
    scale_from,
    step_after,
    step_from,
)
from lanewise.mcmc.samplers import Info, Sampler
from lanewise.mcmc.space import (
    KEPT,
    Density,
    Place,
    Point,
    Space,
    energy,
    leapfrog,
    unknown,
    unwhitened,
    whitened,
)
from lanewise.tracing.decorator import ProgramFunction, program

# The first step is doubled or halved at most this often.
MOST_HALVINGS = 50


class Stretches(NamedTuple):
    """What a chain does, one stretch after another; the arrays may be longer than `count`.

    Draws of a stretch that `tunes` are adapted by, those of one that does not are kept.
    """

    count: Int[Array, ""]
    draws: Int[Array, " stretches"]
    tunes: Bool[Array, " stretches"]
    renews: Bool[Array, " stretches"]


def tuning(windows: Sequence[Window], room: int = 1) -> Stretches:
    """The windows of a warm-up; `room` is how many the arrays have room for."""
    draws, renews = np.zeros(room, np.int32), np.zeros(room, bool)
    for i, window in enumerate(windows):
        draws[i], renews[i] = window
    return Stretches(np.int32(len(windows)), draws, np.ones(room, bool), renews)  # type: ignore[arg-type]


def keeping(draws: int, room: int = 1) -> Stretches:
    """One stretch of draws that are kept; of no draws, it asks for the density where a chain is."""
    none = np.zeros(room, bool)
    return Stretches(np.int32(1), np.full(room, draws, np.int32), none, none)  # type: ignore[arg-type]


class Ran(NamedTuple):
    """A chain after its stretches.

    Draws that were kept are along the first axis, with what is reported of each; `moments` are those of the last
    stretch; `space` is the scale of a chain that adapts alone, else None.
    """

    place: Place
    space: Space
    step: Float[Array, ""]
    moments: Moments
    positions: Float[Array, "draws d"]
    logdensity: Float[Array, " draws"]
    info: Info


@program(static_argnames=("density", "target_accept"))
def settled(density, space, key, place, fresh, step, tunes, target_accept):
    """The place with its density, which is asked for if it is `fresh`; and if the chain `tunes` a step size.

    The step size is of about the right magnitude: one at which a single step's acceptance crosses `target_accept`.
    Both are one loop, in which the density is asked at one place: a fresh place is where a step of length zero leads.
    """
    momentum = random.normal(key, place.position.shape, place.position.dtype)
    before = energy(Point(place, momentum))
    asks, goes_on, grows = fresh, fresh | tunes, jnp.array(False)
    tries = jnp.int32(0)
    while goes_on:
        point = leapfrog(density, space, Point(place, momentum), jnp.where(asks, 0.0, step))
        if asks:
            place = point.place
            before = energy(Point(place, momentum))
            asks, goes_on = jnp.array(False), tunes
        else:
            accepts = before - energy(point) > jnp.log(target_accept)
            grows = jnp.where(tries == 0, accepts, grows)
            goes_on = (accepts == grows) & (tries < MOST_HALVINGS)
            step = jnp.where(goes_on, step * jnp.where(grows, 2.0, 0.5), step)
            tries += 1
    return place, step


@functools.lru_cache(KEPT)
def chain_of(
    sampler: Sampler, density: Density, capacity: int, dense: bool = False, alone: bool = False
) -> ProgramFunction:
    """The program of a chain from the draw with this `number` on; it keeps at most `capacity` draws.

    The density at a `fresh` place is not known yet. A chain that adapts `alone` renews its scale at the end of each
    stretch that `renews`.
    """
    target_accept = sampler.target_accept

    @program
    def chain(key, place, fresh, space, step, number, stretches):
        dtype = place.position.dtype
        positions = jnp.zeros((capacity, place.position.size), dtype)
        logdensity = jnp.zeros(capacity, dtype)
        info = Info(
            acceptance=jnp.zeros(capacity, dtype),
            energy=jnp.zeros(capacity, dtype),
            tree_depth=jnp.zeros(capacity, jnp.int32),
            leapfrogs=jnp.zeros(capacity, jnp.int32),
            diverging=jnp.zeros(capacity, bool),
        )
        moments = no_moments(place.position, dense)
        stretch = jnp.int32(0)
        while stretch < stretches.count:
            tunes = stretches.tunes[stretch]
            begin_key = random.fold_in(key, -1 - number)
            place, step = settled(
                density, space, begin_key, place, fresh, step, tunes, target_accept
            )
            fresh = jnp.array(False)
            adapting = step_from(step)
            moments = no_moments(place.position, dense)
            first = number
            while number < first + stretches.draws[stretch]:
                tried = jnp.where(tunes, jnp.exp(adapting.log_step), step)
                draw_key = random.fold_in(key, number)
                place, latest = sampler.draw(density, space, draw_key, place, tried)
                position = unwhitened(space, place.position)
                if tunes:
                    adapting = step_after(adapting, latest.acceptance, target_accept)
                    moments = moments_with(moments, position)
                # What is written beyond the end is dropped.
                row = jnp.where(tunes, capacity, number - first)
                positions = positions.at[row].set(position)
                logdensity = logdensity.at[row].set(place.logdensity)
                info = Info(*(history.at[row].set(value) for history, value in zip(info, latest)))
                number += 1
            step = jnp.where(tunes, jnp.exp(adapting.log_average), step)
            if alone and stretches.renews[stretch]:
                position = unwhitened(space, place.position)
                space = scale_from(moments)
                place, fresh = unknown(whitened(space, position)), jnp.array(True)
            stretch += 1
        return Ran(place, space if alone else None, step, moments, positions, logdensity, info)

    return chain
