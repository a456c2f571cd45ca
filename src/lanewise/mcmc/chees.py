"""Hamiltonian Monte Carlo whose trajectory length is tuned across chains: ChEES and SNAPER.

NUTS decides at every draw how far to go. With many chains the length can be learned instead, once for all of them, and
a draw is then a plain trajectory with no tree: chains all take the same number of steps, a warm-up needs few draws, and
a gradient is worth more. The length is where a criterion is largest, climbed by Adam on the logarithm of the length,
with the gradient along each chain's trajectory averaged over chains by their acceptance:

* `criterion="chees"` (Hoffman, Radul and Sountsov 2021, "An adaptive-MCMC scheme for setting trajectory lengths in
  Hamiltonian Monte Carlo"): the expected squared change of the squared distance from the mean.
* `criterion="snaper"` (Sountsov and Hoffman 2021, "Focusing on difficult directions for learning HMC trajectory
  lengths"): the same along the principal component, the direction that mixes slowest, for each unit of time. The
  component is followed by power iteration over the chains; the gradient is taken at both ends of the trajectory.

A draw's length is `2 h length`, with `h` from a Halton sequence in base 2, so that no length fits a period. The step
size is dual averaging of the harmonic mean of the chains' acceptances, each no less than `LEAST_ACCEPTANCE` so that one
bad chain of a thousand does not stop all. Scales are moving averages over the draws of all chains, with the weights of
the second paper. All of it is data of one program: in the warm-up chains meet on the host after every draw; it makes
the next parameters from where they are, and nothing is compiled again. After the warm-up nothing changes any more,
so draws that are kept leave the density invariant exactly.

The default is "chees". "snaper" was to be the default if it had at least as many effective draws a gradient on four
posteriors (`benchmarks/many_chains.py`, 1,000 chains, a warm-up of 200): it has more on eight schools (0.132 for 0.089)
and radon (0.152 for 0.128), the same on a logistic regression (0.44), fewer on a Gaussian of 100 dimensions (0.067 for
0.073).

Limits: one length for all chains and places. Where a posterior needs different ones (funnels) NUTS is safer. Criteria
use second moments: chains that have not found the mass yet mislead them, and chains do not cross between modes far
apart.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float

from lanewise.core.errors import OptionError
from lanewise.mcmc.adapt import StepSize, step_after, step_from
from lanewise.mcmc.drawn import kept_row, room, with_draw
from lanewise.mcmc.loop import Loop, Plan, State
from lanewise.mcmc.samplers import DIVERGED, Info, must_be_count, must_be_share
from lanewise.mcmc.space import (
    KEPT,
    Density,
    Place,
    Point,
    energy,
    leapfrog,
    rewhitened,
    unwhitened,
)
from lanewise.mcmc.stretches import Stretched
from lanewise.tracing.decorator import ProgramFunction, program

CRITERIA = ("chees", "snaper")
# Adam on the logarithm of the length: its rate, how fast it forgets squares, and the most it moves in a draw. The
# length for kept draws is an average in which draw n counts about n ** -FORGETS of what comes before.
RATE, SQUARES, MOST_MOVE, FORGETS = 0.05, 0.95, 0.35, 0.5
# A chain's acceptance counts as at least this.
LEAST_ACCEPTANCE = 0.05
# The moving averages of moments: draw n has the weight 1 / (1 + ceil(n / SLOWNESS)).
SLOWNESS = 8.0
# The first step is doubled or halved at most this often.
MOST_HALVINGS = 50
LEAST_CHAINS = 4
# A stretch has room for this many draws: its result in the warm-up, where it has one draw, stays small.
CAPACITY = 16


@dataclass(frozen=True)
class ChEES:
    """HMC with a trajectory length tuned across chains, of at most `max_steps` steps; `criterion` "chees" or "snaper".

    >>> ChEES(criterion="snaper")
    ChEES(criterion='snaper', target_accept=0.651, max_steps=1000)
    """

    criterion: str = "chees"
    target_accept: float = 0.651
    max_steps: int = 1000

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise OptionError(f"criterion={self.criterion!r} must be 'chees' or 'snaper'.")
        must_be_share("target_accept", self.target_accept)
        must_be_count("max_steps", self.max_steps, 1)

    @property
    def most_draws(self) -> int:
        return CAPACITY

    def must_fit(self, settings: Any) -> None:
        if settings.chains < LEAST_CHAINS:
            raise OptionError(
                f"chains={settings.chains}: ChEES tunes itself by the differences between chains and needs"
                f" {LEAST_CHAINS} or more (hundreds are better); with few chains use NUTS()."
            )
        if settings.warmup < 1:
            raise OptionError(
                "warmup=0 tunes nothing: ChEES needs a warm-up (a few hundred draws)."
            )
        if settings.mass_matrix == "dense":
            raise OptionError(
                'mass_matrix=\'dense\' is not for this sampler; choose "diagonal" or "unit".'
            )
        if settings.adaptation != "pooled":
            raise OptionError(
                f"adaptation={settings.adaptation!r} is for NUTS, HMC and MCLMC: ChEES tunes all chains together."
            )

    def program(self, density: Density, capacity: int) -> ProgramFunction:
        return chain_of(density, capacity)

    def loop(self) -> type[Loop]:
        return Tuning


class Ended(NamedTuple):
    """A trajectory: its whitened ends, and with which probability its far end is accepted."""

    start: Point
    end: Point
    acceptance: Float[Array, ""]
    diverging: Bool[Array, ""]


class Carried(NamedTuple):
    """What a chain carries: its whitened place, and its latest trajectory."""

    place: Place
    last: Ended


class Task(NamedTuple):
    """What a stretch does: draws from `number` on, of `steps` leapfrog steps each; one in `thin` is kept, or none.

    `fresh`: the density where chains are is not known, and the end of the trajectory is accepted whatever its density.
    With a step size of zero that is where they are.
    """

    number: Any
    origin: Any
    thin: Any
    fresh: Any
    step: Any
    steps: Any


@program(static_argnames=("density",))
def trajectory(density, space, key, place, step, steps):
    """A trajectory of `steps` steps from a whitened place; it stops where it diverges."""
    momentum = random.normal(key, place.position.shape, place.position.dtype)
    start = Point(place, momentum)
    point, before = start, energy(start)
    gain = jnp.zeros_like(before)
    taken = jnp.int32(0)
    while taken < steps and gain >= -DIVERGED:
        point = leapfrog(density, space, point, step)
        gain = before - energy(point)
        gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
        taken += 1
    ended = Ended(start, point, jnp.exp(jnp.minimum(gain, 0.0)), gain < -DIVERGED)
    return ended, taken


@functools.lru_cache(KEPT)
def chain_of(density: Density, capacity: int) -> ProgramFunction:
    """The program of one stretch of a chain, of `draws` draws; it has room for `capacity` that are kept."""

    @program
    def chain(key, carried, draws, space, task):
        place, last = carried
        dtype = place.position.dtype
        thin = jnp.maximum(task.thin, 1)
        before = (task.number - task.origin) // thin
        kept = room(capacity, place.position.size, dtype)
        made = jnp.int32(0)
        while made < draws:
            number = task.number + made
            momentum_key, accept_key = random.split(random.fold_in(key, number))
            last, taken = trajectory(
                density, space, momentum_key, place, task.step, task.steps[made]
            )
            accepts = task.fresh | (random.uniform(accept_key, (), dtype) < last.acceptance)
            place = Place(
                *(jnp.where(accepts, new, old) for new, old in zip(last.end.place, place))
            )
            made += 1
            row = kept_row(task, number + 1 - task.origin, thin, before, capacity)
            info = Info(last.acceptance, energy(last.start), jnp.int32(0), taken, last.diverging)
            position = unwhitened(space, place.position)
            kept = with_draw(kept, row, position, place.logdensity, task.step, info)
        return Carried(place, last), kept

    return chain


class Moments(NamedTuple):
    """Moving averages over the draws of all chains, and the principal component times its variance."""

    mean: np.ndarray
    variance: np.ndarray
    component: np.ndarray


class Length(NamedTuple):
    """Adam's state: the logarithm of the length, its average, and the average of squared gradients."""

    log: float
    log_average: float
    squares: float


class Learned(NamedTuple):
    """What all chains have learned together."""

    averaging: StepSize
    length: Length
    moments: Moments


_step_after = jax.jit(step_after, static_argnums=2)


def halton(number: int) -> float:
    """The Halton sequence in base 2, which fills the numbers from 0 to 1 evenly.

    >>> [halton(n) for n in range(4)]
    [0.5, 0.25, 0.75, 0.125]
    """
    found, share, number = 0.0, 0.5, number + 1
    while number:
        found += share * (number & 1)
        number, share = number >> 1, share / 2
    return found


def chees_gradient(last: Any, time: float) -> np.ndarray:
    """Each chain's gradient of the ChEES criterion by the logarithm of the time of the trajectory."""
    start, end = (point.place.position for point in (last.start, last.end))
    start, end = start - start.mean(axis=0), end - end.mean(axis=0)
    change = (end**2).sum(axis=1) - (start**2).sum(axis=1)
    return time * change * (end * last.end.momentum).sum(axis=1)


def snaper_gradient(last: Any, time: float, mean: np.ndarray, component: np.ndarray) -> np.ndarray:
    """Each chain's gradient of SNAPER's criterion, the mean of those there and back. `mean` is whitened."""
    start, end = ((point.place.position - mean) @ component for point in (last.start, last.end))
    slow, fast = (point.momentum @ component for point in (last.start, last.end))
    change = end**2 - start**2
    return 2.0 * change * (end * fast + start * slow) - change**2 / time


def moments_after(moments: Moments, draw: int, positions: np.ndarray) -> Moments:
    """The moving averages after the draws of all chains."""
    weight = 1.0 / (1.0 + np.ceil((draw + 1) / SLOWNESS))
    mean = moments.mean + weight * (positions.mean(axis=0) - moments.mean)
    apart = positions - mean
    variance = moments.variance + weight * ((apart**2).mean(axis=0) - moments.variance)
    whitened = apart / np.sqrt(variance)
    size = np.linalg.norm(moments.component)
    turned = whitened.T @ (whitened @ (moments.component / size)) / len(whitened)
    return Moments(mean, variance, moments.component + weight * (turned - moments.component))


def length_after(
    length: Length, draw: int, gradients: np.ndarray, weights: np.ndarray, least: float, most: float
) -> Length:
    """Adam's next step, from the gradients of chains and their weights; the length stays between bounds."""
    fine = np.isfinite(gradients) & (weights > 0.0)
    if not fine.any():
        return length
    gradient = np.average(gradients[fine], weights=weights[fine])
    squares = SQUARES * length.squares + (1.0 - SQUARES) * gradient**2
    unbiased = squares / (1.0 - SQUARES ** (draw + 1))
    move = RATE * gradient / (np.sqrt(unbiased) + np.finfo(float).tiny)
    log = length.log + float(np.clip(move, -MOST_MOVE, MOST_MOVE))
    log = float(np.clip(log, np.log(least), np.log(most)))
    weight = (draw + 1.0) ** -FORGETS
    return Length(log, weight * log + (1.0 - weight) * length.log_average, squares)


class Tuning(Loop):
    """One call: chains meet after every draw of the warm-up."""

    @property
    def sampler(self) -> ChEES:
        return cast(ChEES, self.settings.sampler)

    def first(self, positions: np.ndarray) -> State:
        (lanes, size), dtype = positions.shape, positions.dtype
        zero = np.zeros(lanes, dtype)
        place: Any = Place(positions, zero, np.zeros_like(positions))  # type: ignore[arg-type]
        point = Point(place, np.zeros_like(positions))  # type: ignore[arg-type]
        carried = Carried(place, Ended(point, point, zero, np.zeros(lanes, bool)))  # type: ignore[arg-type]
        averaging = jax.tree.map(np.asarray, step_from(jnp.asarray(1.0, dtype)))
        component = np.random.default_rng(0).standard_normal(size)
        length = Length(*map(np.float64, (0.0, 0.0, 0.0)))
        learned = Learned(averaging, length, Moments(np.zeros(size), np.ones(size), component))
        no, yes = np.zeros(lanes, bool), np.ones(lanes, bool)
        space = np.ones(size, dtype)
        return State(np.array(0), carried, np.array(True), space, no, yes, no, learned)

    def asked(self, state: State) -> Stretched:
        return self._moved(state, 0.0, -1, fresh=True)

    def started(self) -> State:
        """Chains with no finite density move freely until there is one."""
        state = super().started()
        place, chains = state.carried.place, self.settings.chains
        values = np.where(state.finite, place.logdensity, -np.inf).astype(place.logdensity.dtype)
        place = place._replace(logdensity=values)
        state = state._replace(
            carried=state.carried._replace(place=place), fresh=np.array(False), failed=~state.finite
        )
        step = self._first_step(state)
        averaging = jax.tree.map(np.asarray, step_from(jnp.asarray(step, values.dtype)))
        length = Length(*map(np.float64, (np.log(step), np.log(step), 0.0)))
        found = state.finite & (np.arange(len(values)) < chains)
        mean = np.mean(place.position[found], axis=0, dtype=float)
        moments = state.learned.moments._replace(mean=mean)
        return state._replace(
            learned=Learned(averaging, length, moments), failed=np.zeros_like(state.failed)
        )

    def planned(self, state: State) -> Plan:
        settings, number = self.settings, int(state.number)
        tunes = number < settings.warmup
        origin, ends = (0, number + 1) if tunes else (settings.warmup, self.last)
        thin = settings.thin if not tunes or settings.keep_warmup else 0
        draws = min(self.left(number, origin, ends, thin), CAPACITY)
        step, length = self._tuned(state) if not tunes else self._tried(state)
        steps = self._steps(number, draws, step, length)
        return Plan(draws, self._task(number, origin, thin, step, steps))

    def learn(self, state: State, ran: Stretched, plan: Plan) -> State:
        draw = int(state.number) - 1
        if draw >= self.settings.warmup:
            return state
        well = self._well(state)
        averaging, length, moments = state.learned
        last = jax.tree.map(lambda leaf: np.asarray(leaf)[well], state.carried.last)
        averaging = _step_after(averaging, _mean(last.acceptance), self.sampler.target_accept)
        averaging = jax.tree.map(np.asarray, averaging)
        length = self._length_after(length, draw, last, state.space, moments, plan.task)
        place, old = state.carried.place, state.space
        positions = place.position * old
        moments = moments_after(moments, draw, np.asarray(positions[well], float))
        if self.settings.mass_matrix != "unit":
            new = np.sqrt(moments.variance).astype(old.dtype)
            moved = rewhitened(old, new, place.position).astype(old.dtype)
            place = place._replace(position=moved, gradient=place.gradient / old * new)
            state = state._replace(space=new, carried=state.carried._replace(place=place))
        return state._replace(learned=Learned(averaging, length, moments))

    def step_sizes(self, state: State, tunes: bool) -> np.ndarray:
        step, _ = self._tried(state) if tunes else self._tuned(state)
        return np.full(len(state.failed), step)

    def attributes(self, state: State) -> dict[str, Any]:
        return {"trajectory_length": self._tuned(state)[1]}

    def _well(self, state: State) -> np.ndarray:
        return ~state.failed & (np.arange(len(state.failed)) < self.settings.chains)

    def _tried(self, state: State) -> tuple[float, float]:
        """The step size and the length of a trajectory in the warm-up."""
        averaging, length, _ = state.learned
        return float(np.exp(averaging.log_step)), float(np.exp(length.log))

    def _tuned(self, state: State) -> tuple[float, float]:
        """The step size and the length for draws that are kept."""
        averaging, length, _ = state.learned
        return float(np.exp(averaging.log_average)), float(np.exp(length.log_average))

    def _task(self, number: int, origin: int, thin: int, step: float, steps: Any = 1) -> Task:
        padded = np.ones(CAPACITY, np.int32)
        padded[: np.size(steps)] = steps
        counts = np.int32(number), np.int32(origin), np.int32(thin)
        return Task(*counts, np.bool_(False), self.begin.positions.dtype.type(step), padded)

    def _steps(self, number: int, draws: int, step: float, length: float) -> np.ndarray:
        """Those of each draw."""
        lengths = [2.0 * halton(n) * length for n in range(number, number + draws)]
        return np.clip(np.ceil(np.array(lengths) / step), 1, self.sampler.max_steps)

    def _moved(self, state: State, step: float, number: int, fresh: bool = False) -> Stretched:
        """Chains after one leapfrog step, of which nothing is kept."""
        draws = np.where(self.idle(state), 0, 1).astype(np.int32)
        task = self._task(number, number, 0, step)._replace(fresh=np.bool_(fresh))
        return self.stretches(state.carried, draws, state.space, task)

    def _first_step(self, state: State) -> float:
        """About the step size at which the acceptance of a single step crosses the target."""
        step, grows, well = float(self.settings.step_size or 1.0), None, self._well(state)
        for attempt in range(MOST_HALVINGS):
            ran = self._moved(state, step, -1 - attempt)
            accepted = _mean(np.asarray(ran.carried.last.acceptance)[well])
            accepts = accepted > self.sampler.target_accept
            grows = accepts if grows is None else grows
            if accepts != grows:
                break
            step *= 2.0 if grows else 0.5
        return step

    def _length_after(
        self, length: Length, draw: int, last: Ended, space: Any, moments: Moments, task: Task
    ) -> Length:
        fine = ~last.diverging & np.isfinite(last.end.momentum).all(1)
        if not fine.any():
            return length
        last = jax.tree.map(lambda leaf: np.asarray(leaf, float)[fine], last)
        step = float(task.step)
        time = step * int(task.steps[0])
        if self.sampler.criterion == "chees":
            gradients = chees_gradient(last, time)
        else:
            component = moments.component / np.linalg.norm(moments.component)
            gradients = snaper_gradient(last, time, moments.mean / space, component)
        most = step * self.sampler.max_steps
        return length_after(length, draw, gradients, np.asarray(last.acceptance), step, most)


def _mean(acceptance: Any) -> float:
    """The harmonic mean of the chains' acceptances."""
    return float(1.0 / np.mean(1.0 / np.maximum(acceptance, LEAST_ACCEPTANCE)))
