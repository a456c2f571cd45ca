"""The loop of one call of `sample`: chains start, warm up and draw, in stretches.

Between stretches the host has everything: it learns from the draws, keeps them, saves the state, shows how far the run
is, and stops where it is interrupted. Each way of sampling defines its stretches, and what it learns from them:
`run.py` has chains that adapt in windows, `chees.py` and `tempering.py` chains that learn from each other. Where
stretches end changes no draw.
"""

from __future__ import annotations

import abc
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.drawn import Kept
from lanewise.mcmc.interrupts import held
from lanewise.mcmc.keeping import Keeping
from lanewise.mcmc.pace import Pace
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.start import Starts
from lanewise.mcmc.stretches import Stretched, Stretches
from lanewise.mcmc.watching import Watching

# How often a start with no finite density is drawn anew.
TRIES = 100


class State(NamedTuple):
    """Where a run is between stretches, along the axis of lanes: each chain has made `number` draws.

    `fresh`: the density where chains are is not known. `space`: the scale of their coordinates, one for each if
    `alone`. `learned`: what chains have learned together.
    """

    number: np.ndarray
    carried: Any
    fresh: np.ndarray
    space: Any
    failed: np.ndarray
    finite: np.ndarray
    moved: np.ndarray
    learned: Any = None


class Plan(NamedTuple):
    """The next stretch: how many draws of each chain, what they are for, and the window that ends with them."""

    draws: int
    task: Any
    window: int | None = None


@dataclass(eq=False)
class Loop(abc.ABC):
    """One call of `sample`; `draws` are kept for each chain."""

    settings: Settings
    begin: Starts
    draws: int
    stretches: Stretches
    keeping: Keeping
    watching: Watching
    pace: Pace = field(default_factory=Pace)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.last = self.settings.warmup + self.draws * self.settings.thin

    @abc.abstractmethod
    def first(self, positions: np.ndarray) -> State:
        """Chains at these positions, where the density is not known."""

    @abc.abstractmethod
    def asked(self, state: State) -> Stretched:
        """Chains where they were, with the density there."""

    @abc.abstractmethod
    def planned(self, state: State) -> Plan:
        """The next stretch."""

    @abc.abstractmethod
    def learn(self, state: State, ran: Stretched, plan: Plan) -> State:
        """What the host does with a stretch that has ended in this state."""

    @abc.abstractmethod
    def step_sizes(self, state: State, tunes: bool) -> np.ndarray:
        """The step size of each lane after a stretch, to be shown."""

    def scale(self, state: State) -> Any:
        """The scale of the coordinates; None for none."""
        return state.space

    def attributes(self, state: State) -> dict[str, Any]:
        """What is reported of the whole run, besides its draws."""
        return {}

    def findings(self, state: State) -> tuple[Any, ...]:
        """What is wrong with it that draws do not show (`diagnosis.py`)."""
        return ()

    def go(self) -> State:
        """The run from its start, or from where it was saved, to its end, or to where it is interrupted."""
        state = self.keeping.opened(self.first(self.begin.positions))
        if state is None:
            state = self.started()
        try:
            with self.watching.open(int(state.number), self.last):
                while int(state.number) < self.last:
                    state = self._next(state)
            with held():
                self.keeping.save(int(state.number), state)
        except KeyboardInterrupt:
            self.keeping.save(int(state.number), state)
            if not any(self.keeping.rows(int(state.number)).values()):
                raise
            self.interrupted = True
        return state

    def started(self) -> State:
        """Chains at their starts; those with no finite density are drawn anew, where they are drawn."""
        again, chains = self.begin.again, self.settings.chains
        state = self.first(self.begin.positions)
        positions = self.begin.positions
        last = TRIES if again is not None else 0
        for attempt in range(last + 1):
            ran = self.asked(state)
            place = ran.carried.place
            finite = ~ran.failed & _finite(place.logdensity) & _finite(place.gradient)
            if again is None or attempt == last or finite[:chains].all():
                break
            positions = np.where(finite[:, None], positions, again(attempt))
            state = self.first(positions)
        if finite[:chains].any():
            kept = jax.tree.map(lambda n, o: where(finite, n, o), place, state.carried.place)
            begun = state.carried._replace(place=kept)
            return state._replace(carried=begun, finite=finite, fresh=np.array(not finite.all()))
        tried = f" in {TRIES} tries each" if again is not None else ""
        raise OptionError(
            f"logdensity or its gradient is not a finite number at the start of any of the {chains} chains{tried}:"
            " check the density, or start elsewhere with init=."
        )

    def idle(self, state: State) -> np.ndarray:
        """Which lanes make no draw."""
        return state.failed | (np.arange(len(state.failed)) >= self.settings.chains)

    def left(self, number: int, begin: int, ends: int, thin: int) -> int:
        """How many draws the next stretch has, in a phase from `begin` to `ends`."""
        draws = min(self.pace.draws, ends - number)
        if thin:
            draws = min(draws, self.stretches.capacity * thin - (number - begin) % thin)
        return min(draws, self.keeping.left(number) or draws)

    def _next(self, state: State) -> State:
        """The state after one stretch more, whose draws are kept and which is saved if that is due."""
        plan = self.planned(state)
        began, draws = time.perf_counter(), plan.draws
        each = np.where(self.idle(state), 0, draws).astype(np.int32)
        ran = self.stretches(state.carried, each, state.space, plan.task)
        self.pace.took(draws, time.perf_counter() - began)
        tunes = int(state.number) < self.settings.warmup
        after = self._after(state, ran, draws)
        with held():  # draws that are kept are counted
            self.keeping.add(int(state.number), draws, ran, self.settings.chains)
            state = self.learn(after, ran, plan)
            if self.keeping.is_due(int(state.number)):
                self.keeping.save(int(state.number), state)
            self.watching.add(int(state.number), ran, tunes, self.step_sizes(after, tunes))
        return state

    def _after(self, state: State, ran: Stretched, draws: int) -> State:
        failed = state.failed | ran.failed
        ran.must_go_on(failed[: self.settings.chains])
        chains = jax.tree.map(lambda n, o: where(~failed, n, o), ran.carried, state.carried)
        moved = state.moved
        if not moved[: self.settings.chains].all():
            known = ~np.asarray(state.fresh)
            moved = moved | _moves(ran.kept, ran.rows, state.carried.place.logdensity, known)
        number = np.array(int(state.number) + draws)
        return state._replace(
            number=number, carried=chains, failed=failed, moved=moved, fresh=np.array(False)
        )


def _finite(array: Any) -> np.ndarray:
    """Which chains have numbers only."""
    array = np.asarray(array)
    return np.isfinite(array).reshape(len(array), -1).all(axis=1)


def _moves(kept: Kept, rows: np.ndarray, before: Any, known: Any) -> np.ndarray:
    """Which chains have moved: by their positions, and by the density there, which may not be known."""
    most = rows.max(initial=0)
    lp, positions = np.asarray(kept.logdensity)[:, :most], np.asarray(kept.positions)[:, :most]
    if not most:
        return np.zeros(len(rows), bool)
    there = np.arange(most) < rows[:, None]
    other = (positions != positions[:, :1]).any(axis=2)
    if np.ndim(before) == 1:
        before = np.where(known & np.isfinite(before), before, lp[:, 0])
        other |= lp != before[:, None]
    return (other & np.isfinite(lp) & there).any(axis=1)


def where(which: np.ndarray, new: Any, old: Any) -> np.ndarray:
    """The new values of some chains, on the host."""
    new = np.asarray(new)
    return np.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
