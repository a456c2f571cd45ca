"""Parallel tempering, for posteriors with several modes apart.

A chain is a row of replicas at inverse temperatures from 0 to 1. At 1 a replica has the posterior, at 0 a normal
reference, and between them `reference ** (1 - beta) * posterior ** beta`. Each makes an HMC move of random length at
its own temperature, that of the reference an independent draw; then neighbours propose to swap places. So a state that
is drawn anew at the reference travels to the posterior, in any mode, and modes have their weights: by single moves no
chain would cross between them.

* Neighbours swap in turns, even pairs and odd pairs (Okabe et al. 2001), which is not reversible: states travel in one
  direction rather than diffuse (Syed, Bouchard-Côté, Deligiannidis and Doucet 2022, "Non-reversible parallel
  tempering").
* Temperatures are such that every pair rejects as often, by the same paper: rejections add up to the barrier between
  the reference and the posterior, and each pair gets as much of it.
* The reference has the mean and, somewhat widened, the standard deviations of what replicas at 1 have drawn
  (Surjanovic, Syed, Bouchard-Côté and Campbell 2022, "Parallel tempering with a variational reference"), at first those
  of the starts.

All three are learned at the ends of the windows of the warm-up, by all chains together, and step sizes for each
temperature with dual averaging. After the warm-up nothing changes, so draws leave the posterior invariant.

The program of a chain loops over its replicas: each has a trajectory of its own length, and chains do not wait for each
other. The program evaluates the density at one place of its code.

Limits: a mode that neither the starts nor the reference come near is not found. With more dimensions the barrier grows,
about as their square root for a posterior that differs from the reference in each; replicas must grow with it. Where
modes differ much in width, states at middle temperatures prefer the wide ones, and chains change modes less often. A
draw costs the gradients of all replicas.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float, Int

from lanewise.core.errors import OptionError
from lanewise.mcmc.adapt import (
    Moments,
    StepSize,
    moments_with,
    no_moments,
    pooled,
    step_after,
    step_from,
    windows,
)
from lanewise.mcmc.chain import task
from lanewise.mcmc.diagnosis import Finding
from lanewise.mcmc.drawn import kept_row, no_info, room, with_draw
from lanewise.mcmc.loop import Loop, Plan, State
from lanewise.mcmc.samplers import DIVERGED, Info, must_be_count, must_be_share
from lanewise.mcmc.space import KEPT, Density, Place, with_gradient
from lanewise.mcmc.stretches import MOST_DRAWS, Stretched
from lanewise.tracing.decorator import ProgramFunction, program

# The reference's standard deviations are this many times those of the draws.
WIDER = 1.5
# The first temperatures are equally spaced numbers to this power: the reference changes fastest at its hot end.
POWER = 3.0
# The step size at which adaptation begins, in units of the reference.
FIRST_STEP = 0.3
# A pair counts as rejecting at least this much, so that temperatures stay apart.
LEAST_REJECTION = 1e-3
# States seldom pass through pairs that reject more often than this.
MOST_REJECTION = 0.9


@dataclass(frozen=True)
class Tempering:
    """Parallel tempering with `replicas` replicas a chain; their moves take from 1 to `2 * steps - 1` leapfrog steps.

    >>> Tempering(replicas=12)
    Tempering(replicas=12, steps=8, target_accept=0.8)
    """

    replicas: int = 10
    steps: int = 8
    target_accept: float = 0.8

    def __post_init__(self) -> None:
        must_be_count("replicas", self.replicas, 2)
        must_be_count("steps", self.steps, 1)
        must_be_share("target_accept", self.target_accept)

    @property
    def most_draws(self) -> int:
        return MOST_DRAWS

    def must_fit(self, settings: Any) -> None:
        if settings.warmup < 1:
            raise OptionError(
                "warmup=0 tunes nothing: Tempering needs a warm-up (a few hundred draws)."
            )
        for name, known in (("mass_matrix", "diagonal"), ("adaptation", "pooled")):
            if getattr(settings, name) != known:
                raise OptionError(
                    f"{name}={getattr(settings, name)!r} is not for Tempering, which has {name}={known!r}."
                )

    def program(self, density: Density, capacity: int) -> ProgramFunction:
        return chain_of(self, density, capacity)

    def loop(self) -> type[Loop]:
        return Tempered


class Path(NamedTuple):
    """From the reference, a normal with this center and these scales, to the posterior."""

    center: Float[Array, " d"]
    scale: Float[Array, " d"]
    betas: Float[Array, " k"]


class Carried(NamedTuple):
    """What a chain carries. `place` has an axis of replicas, the posterior's last, in coordinates of the reference.

    `rejected` is a sum over `tried` draws, for each pair; `moments` are those of the posterior's replica.
    `from_reference` marks states that were last at the reference, not at the posterior; `trips` counts these when they
    arrive.
    """

    place: Place
    step: Float[Array, " k"]
    adapting: StepSize
    moments: Moments
    rejected: Float[Array, " k-1"]
    tried: Float[Array, ""]
    from_reference: Bool[Array, " k"]
    trips: Int[Array, ""]


@program(static_argnames=("density", "steps"))
def explored(density, path, key, place, beta, step, fresh, steps):
    """A replica after an HMC move at its temperature, or an independent draw at that of the reference.

    A `fresh` replica, whose density is not known, stays where it is and gets it.
    """
    momentum_key, length_key, accept_key = random.split(key, 3)
    still = fresh | (beta == 0.0)
    normal = random.normal(momentum_key, place.position.shape, place.position.dtype)
    position = jnp.where(still & ~fresh, normal, place.position)
    momentum = jnp.where(still, 0.0, normal)
    value, gradient = place.logdensity, jnp.where(still, 0.0, place.gradient)
    step = jnp.where(still, 0.0, step)
    length = jnp.where(still, 1, random.randint(length_key, (), 1, 2 * steps))
    cold = 1.0 - beta
    before = 0.5 * momentum @ momentum - beta * value + 0.5 * cold * (position @ position)
    gain = jnp.zeros_like(before)
    taken = jnp.int32(0)
    while taken < length and gain >= -DIVERGED:
        momentum = momentum + 0.5 * step * (beta * gradient - cold * position)
        position = position + step * momentum
        value, gradient = with_gradient(density)(path.center + path.scale * position)
        gradient = path.scale * gradient
        momentum = momentum + 0.5 * step * (beta * gradient - cold * position)
        after = 0.5 * momentum @ momentum - beta * value + 0.5 * cold * (position @ position)
        gain = before - after
        gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
        taken += 1
    acceptance = jnp.where(still, 1.0, jnp.exp(jnp.minimum(gain, 0.0)))
    accepts = random.uniform(accept_key, (), acceptance.dtype) < acceptance
    new = Place(position, value, gradient)
    place = Place(*(jnp.where(accepts, n, o) for n, o in zip(new, place)))
    return place, Info(acceptance, before, jnp.int32(0), taken, ~still & (gain < -DIVERGED))


@program
def swapped(path, key, place, number):
    """For each replica the one whose state it takes, itself or a neighbour; and how likely each pair rejects."""
    count = path.betas.size
    value = jnp.where(jnp.isnan(place.logdensity), -jnp.inf, place.logdensity)
    weight = value + 0.5 * jnp.sum(place.position**2, axis=1)
    gain = (path.betas[1:] - path.betas[:-1]) * (weight[:-1] - weight[1:])
    acceptance = jnp.exp(jnp.minimum(jnp.where(jnp.isnan(gain), -jnp.inf, gain), 0.0))
    turn = jnp.arange(count - 1) % 2 == number % 2
    swaps = turn & (random.uniform(key, (count - 1,), gain.dtype) < acceptance)
    up, none = swaps.astype(jnp.int32), jnp.zeros(1, jnp.int32)
    taken = jnp.arange(count) + jnp.concatenate([up, none]) - jnp.concatenate([none, up])
    return taken, 1.0 - acceptance


@functools.lru_cache(KEPT)
def chain_of(sampler: Tempering, density: Density, capacity: int) -> ProgramFunction:
    """The program of one stretch of a chain, of `draws` draws; it has room for `capacity` that are kept.

    `space` is a `Path`, and the task that of `chain.py`.
    """
    target_accept, steps = sampler.target_accept, sampler.steps

    @program
    def chain(key, carried, draws, space, task):
        place, step, adapting, moments, rejected, tried, from_reference, trips = carried
        dtype = place.position.dtype
        replicas = space.betas.size
        if task.begins:
            adapting = step_from(step)
            moments = no_moments(space.center, False)
            rejected, tried = jnp.zeros_like(rejected), jnp.zeros_like(tried)
        number, thin = task.number, jnp.maximum(task.thin, 1)
        last = number + draws
        before = (number - task.origin) // thin
        kept = room(capacity, space.center.size, dtype)
        while number < last:
            size_of_steps = jnp.where(task.tunes, jnp.exp(adapting.log_step), step)
            move_key, swap_key = random.split(random.fold_in(key, number))
            acceptances = jnp.zeros(replicas, dtype)
            leapfrogs, replica = jnp.int32(0), jnp.int32(0)
            latest = no_info(dtype)
            while replica < replicas:
                own = Place(*(leaf[replica] for leaf in place))
                moved, latest = explored(
                    density,
                    space,
                    random.fold_in(move_key, replica),
                    own,
                    space.betas[replica],
                    size_of_steps[replica],
                    task.fresh,
                    steps,
                )
                place = Place(*(leaf.at[replica].set(new) for leaf, new in zip(place, moved)))
                acceptances = acceptances.at[replica].set(latest.acceptance)
                leapfrogs += latest.leapfrogs
                replica += 1
            if ~task.fresh:
                from_reference = from_reference.at[0].set(True)
                taken, rejects = swapped(space, swap_key, place, number)
                place = Place(*(leaf[taken] for leaf in place))
                from_reference = from_reference[taken]
                trips += from_reference[-1].astype(jnp.int32)
                from_reference = from_reference.at[-1].set(False)
                rejected, tried = rejected + rejects, tried + 1.0
            position = space.center + space.scale * place.position[-1]
            if task.tunes:
                # An independent draw has no step size.
                wanted = acceptances.at[0].set(target_accept)
                adapting = step_after(adapting, wanted, target_accept)
                moments = moments_with(moments, position)
            number += 1
            row = kept_row(task, number - task.origin, thin, before, capacity)
            latest = latest._replace(leapfrogs=leapfrogs)
            value = place.logdensity[-1]
            kept = with_draw(kept, row, position, value, size_of_steps[-1], latest)
        found = Carried(place, step, adapting, moments, rejected, tried, from_reference, trips)
        return found, kept

    return chain


def spaced(betas: np.ndarray, rejection: np.ndarray) -> np.ndarray:
    """Inverse temperatures whose pairs have equal parts of the barrier.

    >>> spaced(np.array([0.0, 0.5, 1.0]), np.array([0.6, 0.2])).round(3).tolist()
    [0.0, 0.333, 1.0]
    """
    barrier = np.concatenate([[0.0], np.cumsum(np.maximum(rejection, LEAST_REJECTION))])
    found = np.interp(np.linspace(0.0, barrier[-1], len(betas)), barrier, betas)
    found[0], found[-1] = 0.0, 1.0
    return found


class Tempered(Loop):
    """One call; chains learn together at the ends of the windows of the warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.windows = windows(self.settings.warmup)

    @property
    def sampler(self) -> Tempering:
        return cast(Tempering, self.settings.sampler)

    def first(self, positions: np.ndarray) -> State:
        lanes, dtype = len(positions), positions.dtype
        replicas, chains = self.sampler.replicas, self.settings.chains
        center = positions[:chains].mean(axis=0)
        scale = positions[:chains].std(axis=0)
        scale = np.where(np.isfinite(scale) & (scale > 0.0), scale, 1.0).astype(dtype)
        betas = (np.linspace(0.0, 1.0, replicas) ** POWER).astype(dtype)
        replicated = np.repeat(((positions - center) / scale)[:, None], replicas, axis=1)
        many = np.zeros((lanes, replicas), dtype)
        place: Any = Place(replicated, many, np.zeros_like(replicated))  # type: ignore[arg-type]
        zero = np.zeros(lanes, dtype)
        chains_: Any = Carried(
            place,
            np.full_like(many, self.settings.step_size or FIRST_STEP),  # type: ignore[arg-type]
            StepSize(many, many, many, many, many),  # type: ignore[arg-type]
            Moments(zero, np.zeros_like(positions), np.zeros_like(positions)),  # type: ignore[arg-type]
            many[:, 1:],  # type: ignore[arg-type]
            zero,  # type: ignore[arg-type]
            np.zeros((lanes, replicas), bool),  # type: ignore[arg-type]
            np.zeros(lanes, np.int32),  # type: ignore[arg-type]
        )
        no, yes = np.zeros(lanes, bool), np.ones(lanes, bool)
        path: Any = Path(center, scale, betas)  # type: ignore[arg-type]
        return State(np.array(0), chains_, np.array(True), path, no, yes, no)

    def asked(self, state: State) -> Stretched:
        one = np.ones(len(state.failed), np.int32)
        return self.stretches(state.carried, one, state.space, task(fresh=True, thin=0))

    def started(self) -> State:
        """Chains with no finite density begin where the reference draws anew for them."""
        state = super().started()
        place = state.carried.place
        finite = state.finite[:, None]
        values = np.where(finite, place.logdensity, -np.inf).astype(place.logdensity.dtype)
        place = place._replace(logdensity=values)
        return state._replace(carried=state.carried._replace(place=place), fresh=np.array(False))

    def planned(self, state: State) -> Plan:
        settings, number = self.settings, int(state.number)
        tunes, ends, begin, which = number < settings.warmup, self.last, settings.warmup, None
        if tunes:
            limits = np.cumsum([window.draws for window in self.windows])
            which = int(np.searchsorted(limits, number, side="right"))
            ends = int(limits[which])
            begin = ends - self.windows[which].draws
        origin = 0 if tunes else settings.warmup
        thin = settings.thin if not tunes or settings.keep_warmup else 0
        draws = self.left(number, origin, ends, thin)
        what = task(number, origin=origin, tunes=tunes, begins=number == begin, thin=thin)
        return Plan(draws, what, which if number + draws == ends else None)

    def learn(self, state: State, ran: Stretched, plan: Plan) -> State:
        if plan.window is None:
            return state
        chains, path = state.carried, state.space
        well = np.flatnonzero(self._well(state))
        step = np.exp(np.median(chains.adapting.log_average[well], axis=0))
        step[0] = step[1]
        if plan.window < len(self.windows) - 1:
            betas = spaced(path.betas, self._rejection(state)).astype(step.dtype)
            step = np.interp(betas, path.betas, step).astype(step.dtype)
            path = path._replace(betas=betas)
        if self.windows[plan.window].renews:
            found = pooled(jax.tree.map(lambda leaf: np.asarray(leaf)[well], chains.moments))
            spread = np.sqrt(found.squares / np.maximum(found.count - 1.0, 1.0))
            scale = np.where(spread > 0.0, WIDER * spread, path.scale).astype(step.dtype)
            path = path._replace(center=found.mean.astype(step.dtype), scale=scale)
        chains = chains._replace(
            place=relaid(chains.place, state.space, path),
            step=np.broadcast_to(step, chains.step.shape).copy(),
        )
        return state._replace(carried=chains, space=path)

    def step_sizes(self, state: State, tunes: bool) -> np.ndarray:
        chains = state.carried
        return np.exp(chains.adapting.log_step[:, -1]) if tunes else chains.step[:, -1]

    def scale(self, state: State) -> np.ndarray:
        return state.space.scale

    def attributes(self, state: State) -> dict[str, Any]:
        chains = self.settings.chains
        return {
            "inverse_temperatures": np.asarray(state.space.betas, float).tolist(),
            "swap_rejection": self._rejection(state).tolist(),
            "round_trips": int(np.sum(state.carried.trips[:chains])),
        }

    def findings(self, state: State) -> tuple[Finding, ...]:
        most, trips = self._rejection(state).max(), self.attributes(state)["round_trips"]
        if most <= MOST_REJECTION and trips >= self.settings.chains:
            return ()
        replicas = self.sampler.replicas
        return (
            Finding(
                "tempering",
                f"States came from the reference to the posterior {trips:,} times in {self.settings.chains:,} chains,"
                f" and a pair of replicas rejects {most:.0%} of its swaps: modes may not have their weights.",
                f"Use more replicas, Tempering(replicas={2 * replicas}), or more draws.",
            ),
        )

    def _well(self, state: State) -> np.ndarray:
        return ~state.failed & (np.arange(len(state.failed)) < self.settings.chains)

    def _rejection(self, state: State) -> np.ndarray:
        """The rejections of each pair, since the window or the draws began."""
        well = self._well(state)
        tried = np.maximum(state.carried.tried[well].sum(), 1.0)
        return np.asarray(state.carried.rejected[well].sum(axis=0) / tried, float)


def relaid(place: Place, old: Path, new: Path) -> Place:
    """Places in the coordinates of another reference."""
    position, gradient = np.asarray(place.position), np.asarray(place.gradient)
    there = (old.center + old.scale * position - new.center) / new.scale
    found: Any = place._replace(
        position=there.astype(position.dtype),
        gradient=(gradient / old.scale * new.scale).astype(position.dtype),
    )
    return found
