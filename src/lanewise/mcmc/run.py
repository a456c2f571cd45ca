"""One call of `sample`: chains start, warm up and draw, in stretches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from lanewise.api.vmap import vmap
from lanewise.core.errors import LaneError, OptionError, Outcome
from lanewise.core.events import labelled
from lanewise.core.outcomes import Outcomes
from lanewise.mcmc.adapt import Window, pooled, scale_from, windows
from lanewise.mcmc.chain import Ran, Stretches, chain_of, keeping, tuning
from lanewise.mcmc.inference import Drawn
from lanewise.mcmc.samplers import Info, Sampler, must_be_count
from lanewise.mcmc.saved import Saved
from lanewise.mcmc.space import Place, rewhitened
from lanewise.mcmc.spread import Spread
from lanewise.mcmc.start import Starts

MASS_MATRICES = ("diagonal", "dense", "unit")
ADAPTATIONS = ("pooled", "chain")
# The structure of draws on disk.
_DRAWN = Drawn(0, 0, Info(0, 0, 0, 0, 0))  # type: ignore[arg-type]
# How often a start with no finite density is drawn anew.
TRIES = 100


@dataclass(frozen=True)
class Settings:
    """What decides the draws, beside the density and the key."""

    chains: int
    warmup: int
    sampler: Sampler
    mass_matrix: str
    adaptation: str
    step_size: float | None

    def __post_init__(self) -> None:
        must_be_count("chains", self.chains, 1)
        must_be_count("warmup", self.warmup, 0)
        if isinstance(self.sampler, type) or not callable(getattr(self.sampler, "draw", None)):
            raise OptionError(
                f"sampler={self.sampler!r} must be NUTS(...), HMC(...), MCLMC(...) or a Sampler."
            )
        for name, value, allowed in (
            ("mass_matrix", self.mass_matrix, MASS_MATRICES),
            ("adaptation", self.adaptation, ADAPTATIONS),
        ):
            if value not in allowed:
                known = ", ".join(map(repr, allowed))
                raise OptionError(f"{name}={value!r} is not known; choose one of {known}.")
        if self.step_size is not None and not _is_positive(self.step_size):
            raise OptionError(f"step_size={self.step_size!r} must be a positive number.")
        if self.warmup == 0 and self.step_size is None:
            raise OptionError("warmup=0 adapts nothing: give step_size= as well.")

    @property
    def dense(self) -> bool:
        return self.mass_matrix == "dense"

    @property
    def alone(self) -> bool:
        return self.adaptation == "chain"


class State(NamedTuple):
    """Where chains are between stretches, the scale of their coordinates (of each if alone) and their step sizes.

    `fresh`: the density at their places is not known.
    """

    place: Place
    fresh: np.ndarray
    space: Any
    step: np.ndarray


@dataclass(eq=False)
class Run:
    """One call of `sample`."""

    settings: Settings
    begin: Starts
    capacity: int
    options: dict[str, Any]
    saved: Saved
    cluster: Any = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.failed = np.zeros(settings.chains, bool)
        self.finite = np.ones(settings.chains, bool)
        self.windows = windows(settings.warmup)
        # Chains that adapt alone go through all windows at once.
        self.room = max(len(self.windows), 1) if settings.alone else 1
        self.alone = settings.alone and settings.mass_matrix != "unit"
        self.program = chain_of(
            settings.sampler, self.begin.density, self.capacity, settings.dense, self.alone
        )
        space_axis = 0 if self.alone else None
        axes = (0, 0, None, space_axis, 0, None, None)
        self.vmapped = vmap(self.program, in_axes=axes, **self.options)
        self.spread: Spread | None = None
        if self.cluster is not None:
            self.spread = Spread(
                self.program, self.cluster, settings.chains, self.alone, **self.options
            )

    def started(self) -> State:
        """Chains at their starts; those with no finite density are drawn anew, where they are drawn."""
        again, chains = self.begin.again, self.settings.chains
        state = self._first(self.begin.positions)
        last = TRIES if again is not None else 0
        for attempt in range(last + 1):
            ran, outcomes = self._run("starts", state, 0, keeping(0, self.room))
            place = jax.tree.map(np.asarray, ran.place)
            self.finite = np.asarray(outcomes.code) == int(Outcome.DONE)
            self.finite &= np.isfinite(place.logdensity) & np.isfinite(place.gradient).all(axis=1)
            if again is None or attempt == last or self.finite.all():
                break
            renewed = np.where(self.finite[:, None], state.place.position, again(attempt))
            state = self._first(renewed)
        if self.finite.any():
            return state
        tried = f" in {TRIES} tries each" if again is not None else ""
        raise OptionError(
            f"logdensity or its gradient is not a finite number at the start of any of the {chains} chains{tried}:"
            " check the density, or start elsewhere with init=."
        )

    def _first(self, positions: np.ndarray) -> State:
        settings, (chains, dimensions), dtype = self.settings, positions.shape, positions.dtype
        space: Any = None
        if settings.mass_matrix != "unit":
            one = np.eye(dimensions, dtype=dtype) if settings.dense else np.ones(dimensions, dtype)
            space = np.broadcast_to(one, (chains, *one.shape)) if self.alone else one
        arrays: Any = positions, np.zeros(chains, dtype), np.zeros_like(positions)
        step = np.full(chains, settings.step_size or 1.0, dtype)
        return State(Place(*arrays), np.array(True), space, step)

    def _run(
        self, label: str, state: State, number: int, stretches: Stretches
    ) -> tuple[Ran, Outcomes]:
        """One call of the program, the same one for everything."""
        arguments: Any = (self.begin.keys, *state, np.int32(number), stretches)
        if self.spread is not None:
            return self.spread(label, *arguments)
        with labelled(label):
            return self.vmapped(*arguments)

    def close(self) -> None:
        """Release the workers of a cluster."""
        if self.spread is not None:
            self.spread.close()

    def warm_up(self, state: State) -> State:
        """Chains after the warm-up."""
        parts = (self.windows,) if self.settings.alone and self.windows else ()
        parts = parts or tuple((window,) for window in self.windows)
        number = 0
        for count, part in enumerate(parts):
            name = f"warmup-{count:02}"
            found = self.saved.load(name, (state, self.failed))
            if found is None:
                label = f"warm-up {count + 1}/{len(parts)}"
                found = self._stretch(label, state, number, part), self.failed
                self.saved.save(name, found)
            state, self.failed = found
            number += sum(window.draws for window in part)
        return state

    def _stretch(self, label: str, state: State, number: int, part: tuple[Window, ...]) -> State:
        ran, outcomes = self._run(label, state, number, tuning(part, self.room))
        self._note(outcomes)
        fine = ~self.failed
        taken = (ran.place, ran.space, ran.step) if self.alone else (ran.place, None, ran.step)
        before = (state.place, state.space if self.alone else None, state.step)
        place, space, step = jax.tree.map(lambda new, old: _where(fine, new, old), taken, before)
        if self.settings.alone:
            return State(place, np.array(False), space, step)
        well = fine & self.finite
        step = np.full_like(step, np.exp(np.log(step[well]).mean()))
        if state.space is None or not part[-1].renews:
            return State(place, np.array(False), state.space, step)
        moments = jax.tree.map(lambda leaf: np.asarray(leaf)[well], ran.moments)
        space = np.asarray(scale_from(pooled(moments), np))
        moved = rewhitened(np.asarray(state.space), space, place.position)
        return State(place._replace(position=moved), np.array(True), space, step)

    def draw(self, state: State, draws: int) -> tuple[Drawn, np.ndarray]:
        """All draws, in calls of at most `capacity`; a chain that failed has NaN from that call on."""
        parts: list[Drawn] = []
        done = 0
        while done < draws:
            name = f"draws-{done:08}"
            found = self.saved.load(name, (_DRAWN, state.place, self.failed))
            if found is None:
                count = min(self.capacity, draws - done)
                number = self.settings.warmup + done
                ran, outcomes = self._run("draws", state, number, keeping(count, self.room))
                self._note(outcomes)
                kept = Drawn(*jax.tree.map(np.asarray, (ran.positions, ran.logdensity, ran.info)))
                place = jax.tree.map(np.asarray, ran.place)
                found = _first(count, kept), place, self.failed
                self.saved.save(name, found)
            part, place, self.failed = found
            state = state._replace(place=place, fresh=np.array(False))
            positions = np.where(self.failed[:, None, None], np.nan, part.positions)
            parts.append(_first(draws - done, part._replace(positions=positions)))
            done += part.positions.shape[1]
        drawn = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        return drawn, state.step

    def _note(self, outcomes: Any) -> None:
        self.failed = self.failed | (np.asarray(outcomes.code) != int(Outcome.DONE))
        if self.failed.all():
            raise LaneError(outcomes.describe("every chain failed"), outcomes)


def _where(fine: np.ndarray, new: Any, old: Any) -> np.ndarray:
    """The new values of chains that are fine, on the host."""
    new = np.asarray(new)
    return np.where(fine.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _first(count: int, histories: Drawn) -> Drawn:
    """The first draws of each chain."""
    return jax.tree.map(lambda leaf: leaf[:, :count], histories)


def _is_positive(value: Any) -> bool:
    """Whether a value is one number above zero; one of JAX's counts."""
    try:
        return not isinstance(value, str) and float(value) > 0.0
    except (TypeError, ValueError):
        return False
