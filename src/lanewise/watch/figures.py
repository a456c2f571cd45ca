"""From what a run recorded to what is shown of it: nothing here draws, and nothing is made up.

What a run of the carrier `ticks` recorded is in bins of equally many ticks (`machine/observe.py`). `TickFigures` has it
by bin; the time of a bin's edges is interpolated between readings of the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.watch.recording import Run

# Examples that ended; of those that are shown one by one, at most this many.
MOST_SHOWN = 48
# With fewer, a line between them would say more than is known.
FEWEST_READINGS = 4


@dataclass(frozen=True)
class BlockRow:
    """A block of the machine: its pc, its label (None for a return point), its words, and the operations of a lane."""

    pc: int
    label: int | None
    words: str
    operations: float


@dataclass(frozen=True, eq=False)
class TickFigures:
    """A run by ticks. Arrays are by bin, `advanced` and `ran` by bin and block."""

    run: Run
    linked: Linked
    ticks: int
    stride: int
    advanced: np.ndarray
    ran: np.ndarray
    busy: np.ndarray
    room: np.ndarray
    depth: np.ndarray
    taken: np.ndarray
    ended: np.ndarray

    @cached_property
    def edges(self) -> np.ndarray:
        """The ticks at which bins begin, and the last one's end."""
        return np.append(np.arange(len(self.busy)) * self.stride, self.ticks).astype(float)

    @cached_property
    def seconds(self) -> np.ndarray:
        """The same in seconds that the run had gone on."""
        known = [(reading.tick, self.run.clock(reading.time)) for reading in self.run.readings]
        return self._at_edges([(0, 0.0), *known, (self.ticks, self.run.seconds or 0.0)])

    @cached_property
    def times(self) -> np.ndarray:
        """The same in seconds since the recording was opened."""
        known = [(reading.tick, reading.time) for reading in self.run.readings]
        start, end = self.run.machine_span
        return self._at_edges([(0, start), *known, (self.ticks, end)])

    def _at_edges(self, known: Sequence[tuple[int, float]]) -> np.ndarray:
        ticks, times = np.array(known).T
        return np.interp(self.edges, ticks, np.maximum.accumulate(times))

    @property
    def occupancy(self) -> np.ndarray:
        return self.busy / np.maximum(self.room, 1)

    @property
    def widths(self) -> np.ndarray:
        """How many lanes the machine had."""
        ticks = np.diff(self.edges)
        return self.room / np.maximum(ticks, 1)

    @cached_property
    def blocks(self) -> list[BlockRow]:
        """The blocks that a lane was ever at."""
        rows = []
        for pc, item in enumerate(self.linked.order):
            operations = self.linked.costs[pc].operations
            if isinstance(item, Block):
                rows.append(BlockRow(pc, item.label, f"{item.label}  {item.note}", operations))
            else:
                rows.append(BlockRow(pc, None, item.note, operations))
        return [row for row in rows if self.advanced[:, row.pc].any()]

    @cached_property
    def work(self) -> np.ndarray:
        """The share of all work for a lane that each block did; a block that only jumps is a little work, too."""
        costs = np.array([1.0 + cost.operations for cost in self.linked.costs])
        work = self.advanced.sum(0) * costs
        return work / max(work.sum(), 1)

    def work_by_label(self) -> dict[int, float]:
        return {row.label: float(self.work[row.pc]) for row in self.blocks if row.label is not None}


def tick_figures(run: Run) -> TickFigures | None:
    """The figures of a run, if it was by ticks and recorded any."""
    arrays, linked = run.arrays, run.info.plan.linked
    if "sums" not in arrays or linked is None or not int(arrays["ticks"]):
        return None
    ticks, stride = int(arrays["ticks"]), int(arrays["stride"])
    bins = -(-ticks // stride)
    sums, peaks, blocks = arrays["sums"][:bins], arrays["peaks"][:bins], linked.halt
    return TickFigures(
        run,
        linked,
        ticks,
        stride,
        advanced=sums[:, :blocks],
        ran=sums[:, blocks : 2 * blocks],
        busy=sums[:, 2 * blocks],
        room=sums[:, 2 * blocks + 1],
        depth=peaks[:, 0],
        # Lanes that move to a narrower machine wait there once more.
        taken=np.maximum.accumulate(peaks[:, 1]),
        ended=peaks[:, 2],
    )


@dataclass(frozen=True, eq=False)
class Lives:
    """When examples began and ended, in ticks, by their numbers; and how many steps each took."""

    number: np.ndarray
    born: np.ndarray
    died: np.ndarray
    steps: np.ndarray

    @property
    def ticks(self) -> np.ndarray:
        return self.died - self.born

    def few(self) -> Lives:
        """Some of them, evenly chosen."""
        chosen = np.unique(np.linspace(0, len(self.number) - 1, MOST_SHOWN).astype(int))
        return Lives(self.number[chosen], self.born[chosen], self.died[chosen], self.steps[chosen])


def lives_of(run: Run) -> Lives | None:
    """The lives of the examples of a run that are known: of those that have ended, the first 65,536."""
    if "lives" not in run.arrays:
        return None
    born, died, steps = run.arrays["lives"]
    known = np.flatnonzero(died >= 0)
    return Lives(known, born[known], died[known], steps[known]) if len(known) else None


def steps_of(run: Run) -> np.ndarray | None:
    """The steps of each example, of the first 65,536, on whatever carrier."""
    if "steps" in run.arrays:
        return run.arrays["steps"]
    lives = lives_of(run)
    return None if lives is None else lives.steps


def depths_of(run: Run) -> np.ndarray | None:
    """The most frames that each example had pending, where lanes run by themselves and anything is called."""
    deepest = run.arrays.get("deepest")
    return deepest if deepest is not None and deepest.any() else None


def outcomes_of(run: Run) -> dict[str, int]:
    """How many examples ended in each way."""
    counts = run.arrays.get("outcomes")
    if counts is None:
        return {}
    return {outcome.phrase: int(counts[outcome]) for outcome in Outcome if counts[outcome]}


def ended_over_time(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Seconds since the run began, and how many examples had ended then, where that was asked often enough."""
    if run.ended is None or len(run.readings) < FEWEST_READINGS:
        return None
    readings = [(run.clock(r.time), run.examples - r.left) for r in run.readings]
    seconds, ended = np.array([(0.0, 0), *readings, (run.clock(run.ended), run.examples)]).T
    return seconds, np.maximum.accumulate(ended)
