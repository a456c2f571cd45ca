"""One call of `sample`: chains start, warm up and draw, in stretches.

Between stretches the host has everything: it ends windows, keeps what was drawn, saves the state, shows how far the run
is, and stops where it is interrupted. Where stretches end changes no draw (`chain.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.adapt import windows
from lanewise.mcmc.chain import Carried, Kept, Task, carried, task
from lanewise.mcmc.interrupts import held
from lanewise.mcmc.keeping import Keeping
from lanewise.mcmc.pace import Pace
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.space import Place
from lanewise.mcmc.start import Starts
from lanewise.mcmc.stretches import Stretched, Stretches
from lanewise.mcmc.watching import Watching
from lanewise.mcmc.windows import ended

# How often a start with no finite density is drawn anew.
TRIES = 100


class State(NamedTuple):
    """Where a run is between stretches, along the axis of lanes: `number` draws have been made of each chain.

    `fresh`: the density where chains are is not known. `space`: the scale of their coordinates, of each if alone.
    """

    number: np.ndarray
    carried: Carried
    fresh: np.ndarray
    space: Any
    failed: np.ndarray
    finite: np.ndarray
    moved: np.ndarray


@dataclass(eq=False)
class Run:
    """One call of `sample`; `draws` are kept of each chain."""

    settings: Settings
    begin: Starts
    draws: int
    stretches: Stretches
    keeping: Keeping
    watching: Watching
    pace: Pace = field(default_factory=Pace)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.windows = windows(self.settings.warmup)
        self.last = self.settings.warmup + self.draws * self.settings.thin

    def go(self) -> State:
        """The run from its start, or from where it was saved, to its end, or to where it is interrupted."""
        state = self.keeping.opened(self._first(self.begin.positions))
        if state is None:
            state = self.started()
        try:
            with self.watching.open(int(state.number), self.last):
                while int(state.number) < self.last:
                    state = self._next(state)
        except KeyboardInterrupt:
            self.keeping.save(int(state.number), state)
            if not any(self.keeping.rows(int(state.number)).values()):
                raise
            self.interrupted = True
            return state
        self.keeping.save(int(state.number), state)
        return state

    def started(self) -> State:
        """Chains at their starts; those with no finite density are drawn anew, where they are drawn."""
        again, chains = self.begin.again, self.settings.chains
        state = self._first(self.begin.positions)
        last = TRIES if again is not None else 0
        none = np.zeros(len(state.failed), np.int32)
        for attempt in range(last + 1):
            ran = self.stretches(state.carried, none, state.space, task(fresh=True, thin=0))
            place = ran.carried.place
            finite = ~ran.failed & np.isfinite(place.logdensity)
            finite &= np.isfinite(place.gradient).all(axis=1)
            if again is None or attempt == last or finite[:chains].all():
                break
            positions = np.asarray(state.carried.place.position)
            state = self._first(np.where(finite[:, None], positions, again(attempt)))
        if finite[:chains].any():
            kept = jax.tree.map(lambda n, o: _where(finite, n, o), place, state.carried.place)
            begun = state.carried._replace(place=kept)
            return state._replace(carried=begun, finite=finite, fresh=np.array(not finite.all()))
        tried = f" in {TRIES} tries each" if again is not None else ""
        raise OptionError(
            f"logdensity or its gradient is not a finite number at the start of any of the {chains} chains{tried}:"
            " check the density, or start elsewhere with init=."
        )

    def _first(self, positions: np.ndarray) -> State:
        settings, (lanes, dimensions), dtype = self.settings, positions.shape, positions.dtype
        space: Any = None
        if settings.mass_matrix != "unit":
            one = np.eye(dimensions, dtype=dtype) if settings.dense else np.ones(dimensions, dtype)
            space = np.broadcast_to(one, (lanes, *one.shape)) if settings.alone else one
        arrays: Any = positions, np.zeros(lanes, dtype), np.zeros_like(positions)
        chains = carried(Place(*arrays), settings.step_size or 1.0, settings.dense)
        no, yes = np.zeros(lanes, bool), np.ones(lanes, bool)
        return State(np.array(0), chains, np.array(True), space, no, yes, no)

    def _next(self, state: State) -> State:
        """The state after one stretch more, whose draws are kept and which is saved if that is due."""
        draws, window_ends, what = self._task(state)
        idle = state.failed | (np.arange(len(state.failed)) >= self.settings.chains)
        began = time.perf_counter()
        ran = self.stretches(
            state.carried, np.where(idle, 0, draws).astype(np.int32), state.space, what
        )
        self.pace.took(draws, time.perf_counter() - began)
        after = self._after(state, ran, draws)
        with held():  # draws that are kept are counted
            self.keeping.add(int(state.number), draws, ran, self.settings.chains)
            state = after if window_ends is None else self._window(after, window_ends)
            if self.keeping.is_due(int(state.number)):
                self.keeping.save(int(state.number), state)
            self.watching.add(int(state.number), ran, bool(what.tunes))
        return state

    def _task(self, state: State) -> tuple[int, int | None, Task]:
        """How many draws come next, which window ends with them, and what they are for."""
        settings, number = self.settings, int(state.number)
        tunes, ends, begin, which = number < settings.warmup, self.last, settings.warmup, None
        if tunes:
            limits = np.cumsum([window.draws for window in self.windows])
            which = int(np.searchsorted(limits, number, side="right"))
            ends = int(limits[which])
            begin = ends - self.windows[which].draws
        origin = 0 if tunes else settings.warmup
        thin = settings.thin if not tunes or settings.keep_warmup else 0
        draws = min(self.pace.draws, ends - number)
        if thin:
            draws = min(draws, self.stretches.capacity * thin - (number - origin) % thin)
        draws = min(draws, self.keeping.left(number) or draws)
        what = task(
            number,
            origin=origin,
            fresh=bool(state.fresh),
            tunes=tunes,
            begins=tunes and number == begin,
            thin=thin,
        )
        return draws, which if number + draws == ends else None, what

    def _after(self, state: State, ran: Stretched, draws: int) -> State:
        failed = state.failed | ran.failed
        ran.must_go_on(failed[: self.settings.chains])
        chains = jax.tree.map(lambda n, o: _where(~failed, n, o), ran.carried, state.carried)
        known = ~np.asarray(state.fresh)
        moved = state.moved | _moves(ran.kept, ran.rows, state.carried.place.logdensity, known)
        number = np.array(int(state.number) + draws)
        return state._replace(
            number=number, carried=chains, failed=failed, moved=moved, fresh=np.array(False)
        )

    def _window(self, state: State, which: int) -> State:
        settings = self.settings
        well = ~state.failed & state.finite & (np.arange(len(state.failed)) < settings.chains)
        shares = settings.adaptation == "pooled"
        window = self.windows[which]
        chains, space, fresh = ended(
            window, state.carried, state.space, well, shares, settings.alone
        )
        return state._replace(carried=chains, space=space, fresh=np.array(fresh))


def _moves(kept: Kept, rows: np.ndarray, before: Any, known: Any) -> np.ndarray:
    """Which chains are not where they were, by the density there; what it was before may not be known."""
    lp = np.asarray(kept.logdensity)[:, : rows.max(initial=0)]
    if not lp.shape[1]:
        return np.zeros(len(rows), bool)
    before = np.where(known & np.isfinite(before), before, lp[:, 0])
    there = np.arange(lp.shape[1]) < rows[:, None]
    return ((lp != before[:, None]) & np.isfinite(lp) & there).any(axis=1)


def _where(which: np.ndarray, new: Any, old: Any) -> np.ndarray:
    """The new values of some chains, on the host."""
    new = np.asarray(new)
    return np.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
