"""The program of one chain: one stretch of draws, to adapt by or to keep.

One program does the warm-up and the draws. What differs is data (`Task`): how many draws, whether the step size and the
moments follow them, which of them are kept. So the density and its gradient are compiled for one program, however many
windows a warm-up has and however many draws there are. The program evaluates the density at two places: in a sampler's
step, and where a window begins (`settled`).

It is a loop over draws, so that a chain that has a draw goes on to the next whatever the others do. Everything that a
chain carries from one draw to the next, the state of its adaptation included, goes in and comes out (`Carried`), and
the key of a draw is made from the chain's key and the draw's number: draws are the same wherever a run is cut into
stretches.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float, Int

from lanewise.mcmc.adapt import (
    Moments,
    StepSize,
    moments_with,
    no_moments,
    step_after,
    step_from,
)
from lanewise.mcmc.drawn import kept_row, room, with_draw
from lanewise.mcmc.samplers import Sampler
from lanewise.mcmc.space import (
    KEPT,
    Density,
    Place,
    Point,
    energy,
    leapfrog,
    unwhitened,
)
from lanewise.tracing.decorator import ProgramFunction, program

# The first step is doubled or halved at most this often.
MOST_HALVINGS = 50


class Carried(NamedTuple):
    """What a chain carries from one stretch to the next.

    `step` is that of draws that are kept, and where a window's adaptation begins; `adapting` and `moments` are those of
    the window that a chain is in.
    """

    place: Place
    step: Float[Array, ""]
    adapting: StepSize
    moments: Moments


class Task(NamedTuple):
    """What a stretch does, the same for all chains.

    * `number`: that of its first draw; `origin`: that of the first of its phase, the warm-up or the draws.
    * `fresh`: the density where chains are is not known.
    * `tunes`: draws adapt the step size and the moments; `begins`: from the start, since a window of the warm-up begins
      here.
    * `thin`: one draw of this many is kept; 0 keeps none.
    """

    number: Int[Array, ""]
    origin: Int[Array, ""]
    fresh: Bool[Array, ""]
    tunes: Bool[Array, ""]
    begins: Bool[Array, ""]
    thin: Int[Array, ""]


def task(
    number: int = 0,
    *,
    origin: int = 0,
    fresh: bool = False,
    tunes: bool = False,
    begins: bool = False,
    thin: int = 1,
) -> Task:
    """A stretch from the draw with this number on."""
    counts = (np.int32(value) for value in (number, origin, thin))
    number_, origin_, thin_ = counts
    flags = (np.bool_(fresh), np.bool_(tunes), np.bool_(begins))
    return Task(number_, origin_, *flags, thin_)  # type: ignore[arg-type]


def carried(place: Place, step: Any, dense: bool = False) -> Carried:
    """A chain before its first stretch, or chains along the first axis: by NumPy if their places are NumPy's."""
    numpy: Any = np if isinstance(place.position, np.ndarray) else jnp
    (*chains, d), dtype = place.position.shape, place.position.dtype
    step = numpy.broadcast_to(numpy.asarray(step, dtype), tuple(chains))
    zero = numpy.zeros(chains, dtype)
    squares = numpy.zeros((*chains, d, d) if dense else (*chains, d), dtype)
    moments = Moments(zero, numpy.zeros_like(place.position), squares)
    return Carried(place, step, StepSize(zero, zero, zero, zero, zero), moments)


@program(static_argnames=("density", "target_accept"))
def settled(density, space, key, place, fresh, step, tunes, target_accept):
    """The place with its density, which is evaluated if it is `fresh`; and a step size if the chain `tunes`.

    The step size is of about the right magnitude: one at which a single step's acceptance crosses `target_accept`. Both
    are one loop, which evaluates the density at one place of its code: a fresh place is where a step of length zero
    leads.
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
    sampler: Sampler, density: Density, capacity: int, dense: bool = False
) -> ProgramFunction:
    """The program of one stretch of a chain, of `draws` draws; it has room for `capacity` that are kept.

    It returns the chain after it (`Carried`) and the draws (`Kept`). Without draws, it evaluates the density where a
    chain is, if that is `fresh`.
    """
    target_accept = sampler.target_accept

    @program
    def chain(key, carried, draws, space, task):
        place, step, adapting, moments = carried
        number, tunes, thin = task.number, task.tunes, jnp.maximum(task.thin, 1)
        if task.fresh | task.begins:
            begin_key = random.fold_in(key, -1 - number)
            place, step = settled(
                density, space, begin_key, place, task.fresh, step, task.begins, target_accept
            )
            if task.begins:
                adapting = step_from(step)
                moments = no_moments(place.position, dense)
        last = number + draws
        before = (number - task.origin) // thin
        kept = room(capacity, place.position.size, place.position.dtype)
        while number < last:
            tried = jnp.where(tunes, jnp.exp(adapting.log_step), step)
            draw_key = random.fold_in(key, number)
            place, latest = sampler.draw(density, space, draw_key, place, tried)
            position = unwhitened(space, place.position)
            if tunes:
                adapting = step_after(adapting, latest.acceptance, target_accept)
                moments = moments_with(moments, position)
            number += 1
            row = kept_row(task, number - task.origin, thin, before, capacity)
            kept = with_draw(kept, row, position, place.logdensity, tried, latest)
        return Carried(place, step, adapting, moments), kept

    return chain
