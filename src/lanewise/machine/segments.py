"""A machine that the host feeds: it runs in segments, and between them the host takes answers out and puts examples in.

`refill.py` does this on the device for a batch that is there from the start. Here examples come from the host one by
one, so a lane that has ended waits for the next segment. A segment ends when that waiting has cost as much as the
host takes for its part (the host measures and says how much that is), when its ticks are used up, so that the host
gets a word in, or when no lane can go on.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.blocks.flatten import operand_avals
from lanewise.errors import Outcome
from lanewise.machine.execute import FIRST_DEPTH, GROWTH, most_depth, plan
from lanewise.machine.refill import (
    WAITING_FOR_ROOM,
    input_registers,
    num_dear,
    refill_ticks,
    restarted,
)
from lanewise.machine.state import State, grown, initial_state, loaded, stored
from lanewise.machine.ticks import Pause, run_until
from lanewise.options import Options
from lanewise.program import Program


class Segments:
    """What is compiled for a program and a number of lanes; the state is the caller's."""

    def __init__(self, program: Program, lanes: int, options: Options) -> None:
        options = options.updated(carrier="ticks")
        mapped = tuple((i >= program.num_captures,) for i in range(program.num_operands))
        # One example more than lanes: all there is to know is that they will be refilled.
        chosen = plan(program, (lanes + 1,), mapped, options)
        assert chosen.linked is not None
        self.linked = chosen.linked
        self.lanes = lanes
        self.options = options
        self.schedule = chosen.schedule
        self.mapped = tuple(flags[0] for flags in mapped)
        self.avals = operand_avals(program)
        self.most = most_depth(self.linked, lanes, options)
        self.capacity = min(FIRST_DEPTH, self.most)
        self.patience = lanes * refill_ticks(self.linked, lanes, self.schedule)
        self._start = jax.jit(self._empty, static_argnums=0)
        self._run = jax.jit(self._segment, donate_argnums=0)

    def empty(self, captures: Sequence[Any]) -> State:
        """A state without examples."""
        # Copied, for the state is donated to every segment and must not be the caller's own arrays.
        return jax.tree.map(jnp.copy, self._start(self.capacity, tuple(captures)))

    def _empty(self, capacity: int, captures: tuple[Any, ...]) -> State:
        rows = [
            loaded(jnp.zeros((self.lanes, *self.row(aval).shape), self.row(aval).dtype), aval)
            for aval in self.avals[len(captures) :]
        ]
        dear = num_dear(self.linked, self.lanes, self.schedule)
        state = initial_state(
            self.linked, [*captures, *rows], self.mapped, self.lanes, capacity, dear
        )
        return state.with_(pc=jnp.full((self.lanes,), self.linked.halt, jnp.int32))

    @staticmethod
    def row(aval: Any) -> Any:
        """One example's part of an operand, as it is kept."""
        struct = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        return jax.eval_shape(lambda x: stored(x, aval), struct)

    def run(
        self,
        state: State,
        captures: Sequence[Any],
        rows: Sequence[Any],
        takes: Any,
        idle: float,
        ticks: float,
    ) -> tuple[State, Any]:
        """Start the lanes of `takes` with their rows (as kept, a row a lane), and run; gives the ticks it took, too."""
        return self._run(state, tuple(captures), tuple(rows), takes, idle, ticks)

    def _segment(
        self, state: State, captures: Any, rows: Any, takes: Any, idle: Any, ticks: Any
    ) -> tuple[State, Any]:
        given = [loaded(row, aval) for row, aval in zip(rows, self.avals[len(captures) :])]
        held = input_registers(self.linked, [*captures, *given])
        varies = dict(zip(self.linked.program.inputs, self.mapped, strict=True))
        inputs = {var: x if varies.get(var) else x[None] for var, x in held.items()}
        state = restarted(self.linked, state, takes, inputs)
        pause = Pause(idle, 0, ticks)
        state, spent = run_until(self.linked, state, self.lanes, self.options, self.schedule, pause)
        return state, spent[1]

    def ended(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Which lanes have ended, and the outcome of each."""
        pc = np.asarray(state.pc)
        full = (pc < 0) & (state.returns.shape[0] >= self.most)
        code = np.where(full, int(Outcome.STACK_OVERFLOW), np.asarray(state.code))
        return full | (pc == self.linked.halt), code

    def results(self, state: State, lanes: np.ndarray) -> list[np.ndarray]:
        """The results of these lanes, on the host, as they are kept."""
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
        return grown(state, self.linked, self.capacity)


@functools.lru_cache(maxsize=64)
def segments_of(program: Program, lanes: int, options: Options) -> Segments:
    """`Segments`, remembered, so that a second stream compiles nothing."""
    return Segments(program, lanes, options)
