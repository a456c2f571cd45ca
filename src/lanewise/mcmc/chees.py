"""Hamiltonian Monte Carlo whose trajectory length is tuned across chains: ChEES and SNAPER.

NUTS decides at every draw how far to go. With many chains the length can be learnt instead, once for all of them, and a
draw is then a plain trajectory with no tree: chains all take the same number of steps, a warm-up needs few draws, and a
gradient is worth more. The length is where a criterion is largest, climbed by Adam on the logarithm of the length, with
the gradient along each chain's trajectory averaged over chains by their acceptance:

* `criterion="chees"` (Hoffman, Radul and Sountsov 2021, "An adaptive-MCMC scheme for setting trajectory lengths in
  Hamiltonian Monte Carlo"): the expected squared change of the squared distance from the mean.
* `criterion="snaper"` (Sountsov and Hoffman 2021, "Focusing on difficult directions for learning HMC trajectory
  lengths"): the same along the principal component, the direction that mixes slowest, for each unit of time. The
  component is followed by power iteration over the chains; the gradient is taken at both ends of the trajectory.

A draw's length is `2 h length`, with `h` from a Halton sequence in base 2, so that no length fits a period. The step
size is dual averaging of the harmonic mean of the chains' acceptances, each no less than `LEAST_ACCEPTANCE` so that one
bad chain of a thousand does not stop all. Scales are moving averages over the draws of all chains, with the weights of
the second paper. All of it is data of one program (`ensemble.py`); after the warm-up nothing changes any more, so
draws that are kept leave the density invariant exactly.

The default is "chees". "snaper" was to be it if it had at least as many effective draws a gradient on four posteriors
(`benchmarks/many_chains.py`, 1,000 chains, a warm-up of 200): it has more on eight schools (0.132 for 0.089) and radon
(0.152 for 0.128), the same on a logistic regression (0.44), fewer on a Gaussian of 100 dimensions (0.067 for 0.073).

Limits: one length for all chains and places. Where a posterior wants different ones (funnels) NUTS is safer. Criteria
look at second moments: chains that have not found the mass yet mislead them, and modes apart are not crossed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float

from lanewise.core.errors import OptionError
from lanewise.mcmc.adapt import StepSize, step_after, step_from
from lanewise.mcmc.ensemble import (
    CAPACITY,
    Asked,
    Chains,
    Drawn,
    begun,
    collected,
    start_of,
)
from lanewise.mcmc.gathered import Result, data_of
from lanewise.mcmc.samplers import DIVERGED, Info, must_be_count, must_be_share
from lanewise.mcmc.space import KEPT, Density, Place, Point, energy, leapfrog
from lanewise.tracing.decorator import ProgramFunction, program

CRITERIA = ("chees", "snaper")
# Adam on the logarithm of the length: its rate, how fast it forgets squares, and the most it moves in a draw. The
# length that is kept is an average in which draw n counts about n ** -FORGETS of what comes before.
RATE, SQUARES, MOST_MOVE, FORGETS = 0.05, 0.95, 0.35, 0.5
# A chain's acceptance counts as no less.
LEAST_ACCEPTANCE = 0.05
# The moving averages of moments: draw n has the weight 1 / (1 + ceil(n / SLOWNESS)).
SLOWNESS = 8.0
# The first step is doubled or halved at most this often.
MOST_HALVINGS = 50
LEAST_CHAINS = 4


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

    def sample(self, model: Any, key: Any, **asked: Any) -> Any:
        return data_of(self, Asked(model, key, **asked))

    def run(self, asked: Asked) -> Result:
        if asked.warmup < 1:
            raise OptionError(
                "warmup=0 tunes nothing: ChEES needs a warm-up (a few hundred draws)."
            )
        run = _Run(self, asked)
        tuned = run.warm_up()
        drawn = collected(
            asked, lambda first, n: run.draw(tuned, first, n), lambda: run.chains.failed
        )
        step = np.full(asked.chains, tuned.step, drawn.logdensity.dtype)
        attributes = {"trajectory_length": tuned.length, "scale": tuned.space.tolist()}
        return Result(run.begin, drawn, step, run.chains.failed, attributes)


class Ended(NamedTuple):
    """A trajectory: its whitened ends, and with which probability its far end is accepted."""

    start: Point
    end: Point
    acceptance: Float[Array, ""]
    diverging: Bool[Array, ""]


class Ran(NamedTuple):
    """A chain after some draws; what is kept of them is along the first axis. Positions are not whitened."""

    place: Place
    last: Ended
    positions: Float[Array, "draws d"]
    logdensity: Float[Array, " draws"]
    info: Info


@program(static_argnames=("density",))
def trajectory(density, space, key, place, step, steps):
    """A trajectory of so many steps from a whitened place; it stops where it diverges."""
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
    """The program of a chain: `count` draws from `number` on, of `steps` leapfrog steps each.

    A `fresh` place, whose density is not known, is accepted whatever it has: with a step size of zero it is where one
    step leads. `space` is a diagonal scale.
    """

    @program
    def chain(key, place, fresh, space, step, steps, number, count):
        dtype, size = place.position.dtype, place.position.size
        positions, logdensity = jnp.zeros((capacity, size), dtype), jnp.zeros(capacity, dtype)
        info = Info(
            acceptance=jnp.zeros(capacity, dtype),
            energy=jnp.zeros(capacity, dtype),
            tree_depth=jnp.zeros(capacity, jnp.int32),
            leapfrogs=jnp.zeros(capacity, jnp.int32),
            diverging=jnp.zeros(capacity, bool),
        )
        place = Place(place.position / space, place.logdensity, place.gradient * space)
        point = Point(place, jnp.zeros_like(place.position))
        last = Ended(point, point, jnp.zeros((), dtype), jnp.array(False))
        row = jnp.int32(0)
        while row < count:
            momentum_key, accept_key = random.split(random.fold_in(key, number + row))
            last, taken = trajectory(density, space, momentum_key, place, step, steps[row])
            accepts = fresh | (random.uniform(accept_key, (), dtype) < last.acceptance)
            place = Place(
                *(jnp.where(accepts, new, old) for new, old in zip(last.end.place, place))
            )
            reported = last.acceptance, energy(last.start), jnp.int32(0), taken, last.diverging
            positions = positions.at[row].set(place.position * space)
            logdensity = logdensity.at[row].set(place.logdensity)
            info = Info(*(history.at[row].set(value) for history, value in zip(info, reported)))
            row += 1
        place = Place(place.position * space, place.logdensity, place.gradient / space)
        return Ran(place, last, positions, logdensity, info)

    return chain


class Tuned(NamedTuple):
    """What draws are made with."""

    place: Place
    space: np.ndarray
    step: float
    length: float


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


class _Run:
    """One call: the program for all chains, and the host's part between its calls."""

    def __init__(self, sampler: ChEES, asked: Asked) -> None:
        self.sampler, self.asked = sampler, asked
        self.begin = start_of(asked, LEAST_CHAINS, "ChEES")
        chain = chain_of(self.begin.density, CAPACITY)
        axes = (0, 0, None, None, None, None, None, None)
        self.chains = Chains(chain, axes, asked, asked.chains)
        self.dtype = self.begin.positions.dtype

    def _moved(
        self, place: Place, space: Any, step: float, steps: Any, number: int, fresh: bool = False
    ) -> Ran:
        dtype, padded = self.dtype, np.ones(CAPACITY, np.int32)
        padded[: len(steps)] = steps
        numbers = np.int32(number), np.int32(len(steps))
        scale, size = np.asarray(space, dtype), dtype.type(step)
        ran = self.chains(self.begin.keys, place, np.array(fresh), scale, size, padded, *numbers)
        return ran._replace(place=self.chains.kept(ran.place, place))

    def _steps(self, number: int, step: float, length: float) -> int:
        return int(
            np.clip(np.ceil(2.0 * halton(number) * length / step), 1, self.sampler.max_steps)
        )

    def _started(self) -> Place:
        """Chains at their starts, with their densities."""

        def place(positions: np.ndarray) -> Place:
            zeros = np.zeros(len(positions), self.dtype)
            unknown: Any = Place(positions, zeros, np.zeros_like(positions))  # type: ignore[arg-type]
            return self._moved(unknown, np.ones(positions.shape[1]), 0.0, [1], 0, fresh=True).place

        return begun(self.begin, place, self._finite)

    def _finite(self, place: Place) -> np.ndarray:
        gradient = np.isfinite(place.gradient).all(axis=1)
        return np.isfinite(place.logdensity) & gradient & ~self.chains.failed

    def _accepted(self, ran: Ran) -> float:
        """The harmonic mean of the chains' acceptances."""
        fine = ~self.chains.failed
        return float(1.0 / np.mean(1.0 / np.maximum(ran.last.acceptance[fine], LEAST_ACCEPTANCE)))

    def _first_step(self, place: Place, space: np.ndarray) -> float:
        """About the step size at which the acceptance of a single step crosses what is asked for."""
        step, grows = self.asked.step_size or 1.0, None
        for attempt in range(MOST_HALVINGS):
            ran = self._moved(place, space, step, [1], -1 - attempt)
            accepts = self._accepted(ran) > self.sampler.target_accept
            grows = accepts if grows is None else grows
            if accepts != grows:
                break
            step *= 2.0 if grows else 0.5
        return step

    def warm_up(self) -> Tuned:
        place, size = self._started(), self.begin.positions.shape[1]
        unit, rng = self.asked.mass_matrix == "unit", np.random.default_rng(0)
        moments = Moments(np.mean(place.position, axis=0), np.ones(size), rng.standard_normal(size))
        space = np.ones(size)
        step = self._first_step(place, space)
        averaging: StepSize = step_from(jnp.asarray(step))
        length = Length(np.log(step), np.log(step), 0.0)
        with self.asked.bar(self.asked.warmup, "warm-up") as bar:
            for draw in range(self.asked.warmup):
                step = float(np.exp(averaging.log_step))
                steps = self._steps(draw, step, np.exp(length.log))
                ran = self._moved(place, space, step, [steps], draw)
                place, accepted = ran.place, self._accepted(ran)
                averaging = _step_after(averaging, accepted, self.sampler.target_accept)
                length = self._length_after(length, draw, ran, space, moments, step * steps, step)
                fine = ~self.chains.failed
                moments = moments_after(moments, draw, np.asarray(place.position, float)[fine])
                space = np.ones(size) if unit else np.sqrt(moments.variance)
                bar.update(draw + 1, step_size=step, trajectory_length=float(np.exp(length.log)))
        return Tuned(
            place, space, float(np.exp(averaging.log_average)), float(np.exp(length.log_average))
        )

    def _length_after(
        self,
        length: Length,
        draw: int,
        ran: Ran,
        space: Any,
        moments: Moments,
        time: float,
        step: float,
    ) -> Length:
        fine = ~self.chains.failed & ~ran.last.diverging & np.isfinite(ran.last.end.momentum).all(1)
        last = jax.tree.map(lambda leaf: np.asarray(leaf, float)[fine], ran.last)
        if not fine.any():
            return length
        if self.sampler.criterion == "chees":
            gradients = chees_gradient(last, time)
        else:
            component = moments.component / np.linalg.norm(moments.component)
            gradients = snaper_gradient(last, time, moments.mean / space, component)
        most = step * self.sampler.max_steps
        return length_after(length, draw, gradients, last.acceptance, step, most)

    def draw(self, tuned: Tuned, first: int, count: int) -> Drawn:
        """Draws that are kept; `tuned.place` is where the first of them begins."""
        place = tuned.place if first == 0 else self.place
        number = self.asked.warmup + first
        steps = [self._steps(number + i, tuned.step, tuned.length) for i in range(count)]
        ran = self._moved(place, tuned.space, tuned.step, steps, number)
        self.place = ran.place
        return Drawn(np.asarray(ran.positions), np.asarray(ran.logdensity), ran.info)
