"""A machine that the host feeds: it runs in segments, and between them the host takes answers out and puts examples in.

`refill.py` does this on the device for a batch that is there from the start. Here examples come from the host one by
one, so a lane that has ended waits for the next segment. A segment ends when that waiting has cost as much as the
host takes for its part (which is measured), when its ticks are used up, so that the host has its turn, or when no lane
can go on.
"""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise._jax import loaded, our_transfers
from lanewise.core.errors import Outcome
from lanewise.feed.fed import NONE_ENDED, Ended, Example, kept_row
from lanewise.feed.lanes import lanes_for
from lanewise.feed.refill import WAITING_FOR_ROOM, input_registers, refill_ticks
from lanewise.grow.memory import FIRST_DEPTH, GROWTH
from lanewise.job.plan import Plan
from lanewise.machine import observe
from lanewise.machine.state import State
from lanewise.machine.ticking import Pause, run_until

# How long a segment may take, in seconds: an interrupt, a slow source and a shown count wait no longer than this.
SEGMENT_SECONDS = 0.1
FEWEST_TICKS = 16


class InLanes:
    """A machine that a stream feeds, lane by lane."""

    def __init__(self, plan: Plan, captures: Sequence[Any]) -> None:
        self.segments = segments_of(plan)
        lanes = self.segments.lanes
        self.captures = tuple(captures)
        self.avals = self.segments.avals[len(self.captures) :]
        self.wanted = self.in_flight = lanes
        self.expects_more = False
        self.state = self.segments.empty(self.captures)
        self.pace = _Pace(self.segments.patience, lanes)
        # The example each lane runs, or -1, and how many ticks the segment took.
        self.index = np.full(lanes, -1)
        self.ticks: Any = None

    @our_transfers()
    def start(self, waiting: deque[Example]) -> bool:
        """Fill the lanes that are free, and run a segment."""
        takes, rows, index = self._filled(waiting)
        if not (index >= 0).any():
            return False
        # Without an example that waits or may come, there is nothing to stop for.
        idle = self.pace.idle if waiting or self.expects_more else math.inf
        self.state, self.ticks = self.segments.run(
            self.state, self.captures, rows, takes, idle, self.pace.ticks
        )
        self.index = index
        self.pace.segment_began()
        return True

    def _filled(self, waiting: deque[Example]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """Which lanes take an example, their rows, and the example each lane has then."""
        free = np.flatnonzero(self.index < 0)[: len(waiting)]
        examples = [waiting.popleft() for _ in free]
        takes = np.zeros(len(self.index), bool)
        takes[free] = True
        index = self.index.copy()
        index[free] = [example.index for example in examples]
        rows = []
        for place, aval in enumerate(self.avals):
            kept = kept_row(aval)
            row = np.zeros((len(self.index), *kept.shape), kept.dtype)
            if examples:
                row[free] = np.stack([example.rows[place] for example in examples])
            rows.append(row)
        return takes, rows, index

    def ready(self) -> bool:
        """Whether the segment has ended, so that its state is there."""
        return self.ticks.is_ready()

    @our_transfers()
    def ended(self) -> Ended:
        """The answers of the lanes that have ended, which are free then."""
        waited = not self.ready()
        self.pace.segment_ended(float(self.ticks), waited)
        found = self.so_far()
        self.state = self.segments.with_room(self.state)
        return found

    @our_transfers()
    def so_far(self) -> Ended:
        """The answers of the lanes that have ended, which are free then."""
        seen = self.segments.seen(self.state)
        ended, code = self.segments.ended(seen)
        lanes = np.flatnonzero(ended & (self.index >= 0))
        if len(lanes) == 0:
            return NONE_ENDED
        columns = self.segments.results(seen, lanes)
        found = Ended(self.index[lanes], columns, code[lanes], np.asarray(seen.site)[lanes])
        self.index[lanes] = -1
        return found

    def close(self) -> None:
        """No more examples will come: report that to observers."""
        self.segments.finish(self.state)


class Segments:
    """What is compiled for a plan; the state is the caller's."""

    def __init__(self, plan: Plan) -> None:
        job, options = plan.job, plan.job.options
        assert plan.linked is not None
        self.linked = plan.linked
        self.lanes = lanes = job.width
        self.options = options
        self.schedule = plan.schedule
        self.mapped = job.varying
        self.avals = job.program.operand_avals
        self.machine = lanes_for(self.linked, lanes, self.schedule, options)
        self.most = self.machine.most
        self.capacity = min(FIRST_DEPTH, self.most)
        self.patience = lanes * refill_ticks(self.linked, lanes, self.schedule)
        self._start = jax.jit(self._empty, static_argnums=0)
        self._run = jax.jit(self._segment, donate_argnums=0)
        # With stacks the state is one of lanes alone already; with slots, lanes are read out of it.
        self.seen = jax.jit(self._seen) if self.linked.forks else self.machine.seen
        self.info = plan.info
        self._finish = jax.jit(
            lambda state: observe.finished(
                state, self.machine.seen(state).code, lives_of_lanes=False
            )
        )

    def empty(self, captures: Sequence[Any]) -> State:
        """A state without examples."""
        # Copied, for the state is donated to every segment and must not be the caller's own arrays.
        return jax.tree.map(jnp.copy, self._start(self.capacity, tuple(captures)))

    def _empty(self, capacity: int, captures: tuple[Any, ...]) -> State:
        rows = [
            loaded(jnp.zeros((self.lanes, *kept_row(aval).shape), kept_row(aval).dtype), aval)
            for aval in self.avals[len(captures) :]
        ]
        state = self.machine.first([*captures, *rows], self.mapped, capacity)
        state = state.with_(pc=jnp.full_like(state.pc, self.linked.halt))
        return observe.watched(state, self.info, self.linked.halt, captures)

    def finish(self, state: State) -> None:
        """Report to observers that this state is the last."""
        if self.info is not None:
            self._finish(state)

    def run(
        self,
        state: State,
        captures: Sequence[Any],
        rows: Sequence[Any],
        takes: Any,
        idle: float,
        ticks: float,
    ) -> tuple[State, Any]:
        """Start the lanes of `takes` with their rows (as stored, a row a lane), and run; also returns its ticks."""
        return self._run(state, tuple(captures), tuple(rows), takes, idle, ticks)

    def _segment(
        self, state: State, captures: Any, rows: Any, takes: Any, idle: Any, ticks: Any
    ) -> tuple[State, Any]:
        given = [loaded(row, aval) for row, aval in zip(rows, self.avals[len(captures) :])]
        held = input_registers(self.linked, [*captures, *given])
        varies = dict(zip(self.linked.program.inputs, self.mapped, strict=True))
        inputs = {var: x if varies.get(var) else x[None] for var, x in held.items()}
        state = observe.given_more(self.machine.restarted(state, takes, inputs), takes)
        pause = Pause(idle, 0, ticks)
        state, spent = run_until(self.linked, state, self.lanes, self.options, self.schedule, pause)
        return state, spent[1]

    def ended(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Which lanes have ended, and the outcome of each; of a state of lanes alone."""
        pc = np.asarray(state.pc)
        full = (pc < 0) & (state.returns.shape[0] >= self.most)
        code = np.where(full, int(Outcome.STACK_OVERFLOW), np.asarray(state.code))
        return full | (pc == self.linked.halt), code

    def results(self, state: State, lanes: np.ndarray) -> list[np.ndarray]:
        """The results of these lanes, of a state of lanes alone, on the host, as they are stored."""
        registers = dict(zip(self.linked.registers, state.registers, strict=True))
        uniforms = dict(zip(self.linked.uniforms, state.uniforms, strict=True))
        return [
            np.broadcast_to(np.asarray(uniforms[var]), (len(lanes), *uniforms[var].shape))
            if var in uniforms
            else np.asarray(registers[var])[lanes]
            for var in self.linked.program.entry_function.results
        ]

    def with_room(self, state: State) -> State:
        """The state with larger stacks, if it is time for that."""
        pc = np.asarray(state.pc)
        waiting = int((pc < 0).sum())
        stuck = waiting and not ((pc >= 0) & (pc < self.linked.halt)).any()
        if state.returns.shape[0] >= self.most or not (
            stuck or waiting * WAITING_FOR_ROOM >= self.lanes
        ):
            return state
        self.capacity = min(max(self.capacity, state.returns.shape[0] * GROWTH), self.most)
        return self.machine.grown(state, self.capacity)

    def _seen(self, state: State) -> State:
        """The lanes of a state alone, with what the host reads: where each is, how it ended, and its results."""
        seen, kept = self.machine.seen(state), set(self.linked.program.entry_function.results)
        pairs = zip(self.linked.registers, seen.registers, strict=True)
        registers = tuple(x if var in kept else () for var, x in pairs)
        return seen.with_(registers=registers, sums=(), frames=(), watch=(), life=())


@functools.lru_cache(maxsize=64)
def segments_of(plan: Plan) -> Segments:
    """`Segments`, cached, so that a second stream compiles nothing."""
    return Segments(plan)


class _Pace:
    """How long segments should be, by what the last ones took.

    Idle lanes may lose as much as the host takes between two segments; and no segment should take so long that the host
    has no turn.
    """

    def __init__(self, least_idle: float, lanes: int) -> None:
        self.least_idle = self.idle = least_idle
        self.lanes = lanes
        self.ticks = float(FEWEST_TICKS)
        self.began: float | None = None
        self.ended: float | None = None
        self.tick_seconds: float | None = None

    def segment_began(self) -> None:
        self.began = time.perf_counter()
        if self.ended is not None and self.tick_seconds:
            host_ticks = (self.began - self.ended) / self.tick_seconds
            self.idle = max(self.least_idle, self.lanes * host_ticks)

    def segment_ended(self, ticks: float, waited: bool) -> None:
        """Record the end of a segment; one that the host did not wait for may have ended long ago."""
        self.ended = time.perf_counter()
        if waited and ticks and self.began is not None:
            self.tick_seconds = (self.ended - self.began) / ticks
            wanted = SEGMENT_SECONDS / self.tick_seconds
            # The first time includes compilation: its weight is gone after a few segments.
            self.ticks = max(FEWEST_TICKS, min(wanted, 16 * self.ticks))
        elif ticks >= self.ticks:
            self.ticks *= 2
