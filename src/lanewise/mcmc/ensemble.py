"""What samplers need whose chains learn from each other at every step (`chees.py`).

`sample` (`sample.py`) runs chains that meet a few times in a warm-up. Here they meet after every draw of it, so the
host has a say each time: a call of a program moves all chains by one draw with parameters that are data, and NumPy
makes the next parameters of where they are. Nothing is compiled again for other parameters. Draws that are kept are
made several in a call, with parameters that no longer change. An interrupt (Ctrl-C) while draws are kept ends the run
with those that there are. `gathered.py` makes ArviZ data of a run.

What is not here yet: `resume=` and `cluster=`, which are refused, and dense mass matrices.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from lanewise.api.vmap import vmap
from lanewise.core.errors import LaneError, OptionError, Outcome
from lanewise.mcmc.models import Model
from lanewise.mcmc.samplers import must_be_count
from lanewise.mcmc.start import Starts, starts
from lanewise.watch.progress import Bar

MASS_MATRICES = ("diagonal", "unit")
# How often a start with no finite density is drawn anew.
TRIES = 100
# A program keeps at most this many draws a call: what it gives in the warm-up, where it keeps none, stays small.
CAPACITY = 16


@dataclass(frozen=True, eq=False)
class Asked:
    """A call of `sample`, as an ensemble has it."""

    model: Model
    key: Key[Array, ""]
    init: Any
    chains: int
    draws: int
    warmup: int
    mass_matrix: str = "diagonal"
    step_size: float | None = None
    lanes: int | None = None
    carrier: str = "auto"
    progress: bool = True
    device: Any = None

    def __post_init__(self) -> None:
        for name, least in (("chains", 1), ("draws", 1), ("warmup", 0)):
            must_be_count(name, getattr(self, name), least)
        if self.mass_matrix not in MASS_MATRICES:
            raise OptionError(
                f'mass_matrix={self.mass_matrix!r} is not for this sampler; choose "diagonal" or "unit".'
            )
        step = self.step_size
        if step is not None and not (isinstance(step, int | float | np.number) and step > 0):
            raise OptionError(f"step_size={step!r} must be a positive number.")

    @property
    def options(self) -> dict[str, Any]:
        return {"lanes": self.lanes, "carrier": self.carrier, "throw": False}

    def bar(self, total: int, label: str) -> Bar:
        """A bar, which stays silent unless it is asked for."""
        file = None if self.progress else io.StringIO()
        return Bar(total, label, unit="draws", file=file)


class Drawn(NamedTuple):
    """Draws on the host, along the axes of chains and draws, and what is reported of each."""

    positions: np.ndarray
    logdensity: np.ndarray
    info: Any


class Chains:
    """A program, called for all chains; which of them failed is remembered, and they stay where they were."""

    def __init__(self, program: Callable[..., Any], axes: Any, asked: Asked, count: int) -> None:
        self._vmapped = vmap(program, in_axes=axes, **asked.options)
        self.failed = np.zeros(count, bool)

    def __call__(self, *arguments: Any) -> Any:
        """What each chain gives, on the host."""
        ran, outcomes = self._vmapped(*arguments)
        self.failed = self.failed | (np.asarray(outcomes.code) != int(Outcome.DONE))
        if self.failed.all():
            raise LaneError(outcomes.describe("every chain failed"), outcomes)
        return jax.tree.map(np.asarray, ran)

    def kept(self, new: Any, old: Any) -> Any:
        """The new state of chains that are fine, the old one of those that failed."""
        if not self.failed.any():
            return new
        return jax.tree.map(lambda a, b: where(self.failed, b, a), new, old)


def where(which: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`numpy.where` by rows."""
    return np.where(which.reshape(-1, *(1,) * (np.ndim(first) - 1)), first, second)


def begun(
    begin: Starts, place: Callable[[np.ndarray], Any], finite: Callable[[Any], np.ndarray]
) -> Any:
    """Chains at their starts, where `place` asks for the density; those with none that is `finite` are drawn anew."""
    positions, again = begin.positions, begin.again
    state = place(positions)
    for attempt in range(TRIES if again is not None else 0):
        fine = finite(state)
        if fine.all():
            return state
        assert again is not None
        positions = np.where(fine[:, None], positions, again(attempt))
        state = place(positions)
    if not finite(state).any():
        tried = f" in {TRIES} tries each" if again is not None else ""
        raise OptionError(
            "logdensity or its gradient is not a finite number at the start of any of the"
            f" {len(positions)} chains{tried}: check the density, or start elsewhere with init=."
        )
    return state


def start_of(asked: Asked, least: int, sampler: str) -> Starts:
    """Where the chains of a call start; there must be enough of them to learn from each other."""
    if asked.chains < least:
        raise OptionError(
            f"chains={asked.chains}: {sampler} tunes itself by the differences between chains and needs {least} or"
            " more (hundreds are better); with few chains use NUTS()."
        )
    return starts(asked.model, asked.init, asked.chains, asked.key)


def in_stretches(draws: int, capacity: int) -> Iterator[tuple[int, int]]:
    """The number of the first draw of each stretch, and how many it has.

    >>> list(in_stretches(10, 4))
    [(0, 4), (4, 4), (8, 2)]
    """
    for first in range(0, draws, capacity):
        yield first, min(capacity, draws - first)


def collected(
    asked: Asked, stretch: Callable[[int, int], Drawn], failed: Callable[[], np.ndarray]
) -> Drawn:
    """All draws, a stretch at a time; after an interrupt those that there are, if there are any.

    Chains that failed have NaN from the stretch on in which they did.
    """
    parts: list[Drawn] = []
    with asked.bar(asked.draws * asked.chains, "draws") as bar, contextlib.suppress(_Stopped):
        for first, count in in_stretches(asked.draws, CAPACITY):
            with _stopping(bool(parts)):
                part = stretch(first, count)
            positions = np.where(failed()[:, None, None], np.nan, part.positions)
            part = part._replace(positions=positions)
            parts.append(jax.tree.map(lambda leaf, n=count: leaf[:, :n], part))
            diverged = sum(int(part.info.diverging.sum()) for part in parts)
            bar.update((first + count) * asked.chains, divergences=diverged)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)


class _Stopped(Exception):
    """An interrupt, with something to give."""


@contextlib.contextmanager
def _stopping(quietly: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if not quietly:
            raise
        raise _Stopped from None
