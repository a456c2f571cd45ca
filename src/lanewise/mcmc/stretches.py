"""One stretch of draws of all chains, compiled once for any number of draws and nearly any number of chains.

Compiled code depends on array shapes alone, so these come from a few sizes: room for `capacity` draws, of which a
stretch fills as many as it has, and `bucket(chains)` lanes, of which those beyond the chains make no draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise.api.vmap import vmap
from lanewise.core.errors import LaneError, Outcome
from lanewise.core.outcomes import Outcomes
from lanewise.mcmc.drawn import Kept
from lanewise.mcmc.spread import Spread
from lanewise.tracing.decorator import ProgramFunction

# The draws of one stretch take at most this much memory, and are at most this many.
MOST_BYTES, MOST_DRAWS = 2**25, 4**7
# The workers of a cluster send all of that room back.
MOST_DRAWS_SENT = 4**4


def bucket(chains: int) -> int:
    """How many lanes are compiled for this many chains: at most an eighth more.

    >>> [bucket(n) for n in (1, 4, 9, 17, 100, 1000)]
    [1, 4, 9, 18, 104, 1024]
    """
    unit = 2 ** max(0, chains.bit_length() - 4)
    return -(-chains // unit) * unit


def room(chains: int, dimensions: int, itemsize: int) -> int:
    """How many draws a stretch has room for; a power of four, so that few programs differ in it.

    >>> room(4, 10, 4), room(1000, 10, 4), room(1000, 1000, 4)
    (16384, 256, 4)
    """
    row = chains * ((dimensions + 4) * itemsize + 9)
    most = MOST_DRAWS
    while most > 1 and most * row > MOST_BYTES:
        most //= 4
    return most


@dataclass(frozen=True)
class Stretched:
    """Chains after a stretch, the draws they kept (`rows`), and how each ended; along the axis of lanes."""

    carried: Any
    kept: Kept
    rows: np.ndarray
    outcomes: Outcomes

    @property
    def failed(self) -> np.ndarray:
        return np.asarray(self.outcomes.code) != int(Outcome.DONE)

    def must_go_on(self, failed: np.ndarray) -> None:
        """Raise if every chain has failed."""
        if failed.all():
            found, chains = self.outcomes, len(failed)
            outcomes = Outcomes(found.code[:chains], found.site[:chains], found.sites)
            raise LaneError(outcomes.describe("every chain failed"), outcomes)


class Stretches:
    """The compiled program of a stretch, for chains with these keys. `alone`: each has a scale of its own.

    `program_of` makes it, with room for a number of draws, at most `most`.
    """

    def __init__(
        self,
        program_of: Callable[[int], ProgramFunction],
        keys: Any,
        like: np.ndarray,
        *,
        alone: bool,
        cluster: Any,
        most: int = MOST_DRAWS,
        **options: Any,
    ) -> None:
        lanes, dimensions = like.shape
        self.keys = keys
        self.capacity = min(room(lanes, dimensions, like.itemsize), most)
        if cluster is not None:
            self.capacity = min(self.capacity, MOST_DRAWS_SENT)
        program = program_of(self.capacity)
        axes = (0, 0, 0, 0 if alone else None, None)
        self.spread: Spread | None = None
        if cluster is not None:
            self.spread = Spread(program, cluster, lanes, alone, **options)
        self.vmapped = vmap(program, in_axes=axes, throw=False, **options)

    def __call__(self, carried: Any, draws: np.ndarray, space: Any, task: Any) -> Stretched:
        """Chains make `draws` each. The result has what a chain that fails had kept until then, too."""
        ran, kept, outcomes = self._run(carried, draws, space, task)
        rows = _rows(draws, task)
        failed = np.asarray(outcomes.code) != int(Outcome.DONE)
        if failed.any():
            fine = np.where(failed, 0, rows)
            if task.thin > 0 and rows.any():
                kept, fine = self._until_failure(carried, draws, space, task, kept, failed)
            rows = fine
        return Stretched(ran, kept, rows, outcomes)

    def close(self) -> None:
        """Release the workers of a cluster."""
        if self.spread is not None:
            self.spread.close()

    def _run(
        self, carried: Any, draws: np.ndarray, space: Any, task: Any
    ) -> tuple[Any, Kept, Outcomes]:
        run = self.vmapped if self.spread is None else self.spread
        (ran, kept), outcomes = run(self.keys, carried, draws.astype(np.int32), space, task)
        ran, kept = jax.tree.map(np.asarray, (ran, kept))
        return ran, kept, outcomes

    def _until_failure(
        self,
        carried: Any,
        draws: np.ndarray,
        space: Any,
        task: Any,
        kept: Kept,
        failed: np.ndarray,
    ) -> tuple[Kept, np.ndarray]:
        """The draws that chains made before they failed; bisection finds where that was.

        A chain that fails returns nothing. Without this, the number of its draws would depend on where a run is cut.
        """
        made, fails = np.zeros_like(draws), np.where(failed, draws, 0)
        while (fails - made > 1).any():
            tried = np.where(fails - made > 1, (made + fails) // 2, 0)
            codes = np.asarray(self._run(carried, tried, space, task)[2].code)
            well = codes == int(Outcome.DONE)
            made = np.where((tried > 0) & well, tried, made)
            fails = np.where((tried > 0) & ~well, tried, fails)
        before = self._run(carried, made, space, task)[1]
        kept = jax.tree.map(lambda new, old: _where(failed, new, old), before, kept)
        return kept, _rows(np.where(failed, made, draws), task)


def _rows(draws: np.ndarray, task: Any) -> np.ndarray:
    """How many of these draws are kept."""
    if task.thin <= 0:
        return np.zeros_like(draws)
    begin = int(task.number) - int(task.origin)
    return (begin + draws) // int(task.thin) - begin // int(task.thin)


def _where(which: np.ndarray, new: Any, old: Any) -> np.ndarray:
    """The new values of some chains."""
    new = np.asarray(new)
    return np.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
