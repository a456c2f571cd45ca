"""Machines whose host makes room: stacks and tapes that start small and grow outside `jit`.

A machine by `ticks` stops when no lane can go on. Lanes that wait for a stack get one with more frames; lanes that wait
for a tape go on in a machine of the same program with larger tapes (`larger.py`). The state stays what it was: nothing
is lost and nothing is run again. Both sizes are remembered, so that the next call starts with enough room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lanewise import _jax
from lanewise.machine.larger import Counterparts, counterparts
from lanewise.machine.link import Linked
from lanewise.machine.rerun import GROWTH
from lanewise.machine.state import State, storage_struct, waits_for_stack, waits_for_tape
from lanewise.options import Options

FIRST_DEPTH = 32
# Without max_depth, growth ends here: a recursion this deep, or stacks this large, will not end by itself.
DEEPEST = 1 << 20
MOST_STACK_BYTES = 4 << 30


class Phases(NamedTuple):
    """How a machine starts, runs and finishes, and how a host that makes room in it sees its state."""

    start: Callable[..., Any]
    run: Callable[..., Any]
    finish: Callable[[Any], list[Any]]
    machine: Callable[[Any], State]
    grown: Callable[[Any, Linked, int], Any]
    moved: Callable[[Any, Linked, Linked, Counterparts, int], Any]


class Whole:
    """A program compiled in one piece, which has nothing to grow."""

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.run = jax.jit(run)

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        return self.run(*operands)


class Larger(NamedTuple):
    """A machine of the same program with larger tapes: its operands, from those of the smaller one."""

    machine: Growing
    operands: Callable[[Sequence[Any]], Sequence[Any]]
    pairs: Counterparts


class Growing:
    """A program compiled in three pieces, so that the host can make room between runs.

    `most` is how many frames stacks may ever hold, `num_dear` how many blocks the machine keeps an account of.
    `larger` makes a machine of the same program with larger tapes, and says how to give it its operands.
    """

    def __init__(
        self,
        phases: Phases,
        linked: Linked,
        most: int,
        num_dear: int,
        larger: Callable[[], tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]] | None,
    ) -> None:
        self.start = jax.jit(phases.start, static_argnums=0)
        self.run = jax.jit(phases.run, donate_argnums=0)
        self.finish = jax.jit(phases.finish)
        self.phases = phases
        self.linked = linked
        self.capacity = min(FIRST_DEPTH, most)
        self.most = most
        self.num_dear = num_dear
        self._make_larger = larger
        self._larger: Larger | None = None

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        if self._larger is not None:
            return self._larger.machine.run_growing(self._larger.operands(operands))
        return self._go_on(self.run(self.start(self.capacity, *operands), *operands), operands)

    def _go_on(self, state: Any, operands: Sequence[Any]) -> list[Any]:
        """Make room until all lanes have ended, or those that wait will have none."""
        if not np.any(_jax.to_host(self.phases.machine(state).pc) < 0):
            return self.finish(state)
        with _jax.our_transfers():
            return self._with_room(state, operands)

    def _with_room(self, state: Any, operands: Sequence[Any]) -> list[Any]:
        while True:
            machine = self.phases.machine(state)
            if not np.any(np.asarray(machine.pc) < 0):
                return self.finish(state)
            can_deepen = self.linked.has_calls and machine.returns.shape[0] < self.most
            if can_deepen and np.any(waits_for_stack(machine)):
                # Remembered for the next call, so that it starts with enough room and compiles nothing.
                self.capacity = min(self.capacity * GROWTH, self.most)
                state = self.phases.grown(state, self.linked, self.capacity)
            elif np.any(waits_for_tape(machine)) and self._can_move():
                assert self._larger is not None
                larger, theirs, pairs = self._larger
                larger.capacity = max(larger.capacity, self.capacity)
                state = self.phases.moved(state, self.linked, larger.linked, pairs, larger.num_dear)
                operands = theirs(operands)
                return larger._go_on(larger.run(state, *operands), operands)
            else:
                return self.finish(state)
            state = self.run(state, *operands)

    def _can_move(self) -> bool:
        """Whether the state can go on with larger tapes."""
        if self._larger is None and self._make_larger is not None:
            machine, operands = self._make_larger()
            pairs = counterparts(self.linked, machine.linked)
            self._larger = None if pairs is None else Larger(machine, operands, pairs)
            self._make_larger = None
        return self._larger is not None


def most_depth(linked: Linked, lanes: int, options: Options) -> int:
    """How deep stacks may grow outside `jit`."""
    if options.max_depth is not None:
        return options.max_depth
    frame = sum(
        math.prod(s.shape) * s.dtype.itemsize for s in map(storage_struct, linked.storage.stacks)
    )
    return max(FIRST_DEPTH, min(DEEPEST, MOST_STACK_BYTES // max((frame + 4) * lanes, 1)))
