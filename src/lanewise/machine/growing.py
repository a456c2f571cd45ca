"""Machines whose host has a part in the run: outside `jit`.

It makes room: stacks and tapes start small and grow.

A machine by `ticks` stops when no lane can go on. Lanes that wait for a stack get one with more frames; lanes that wait
for a tape go on in a machine of the same program with larger tapes (`larger.py`). The state stays what it was: nothing
is lost and nothing is run again. Both sizes are remembered, so that the next call starts with enough room.

And it lets interrupts end the run: the machine has fuel for a number of ticks, a fraction of a second by what the last
ones took, and stops when that is spent. Python then runs the handlers of signals that have come, one of which may
raise `KeyboardInterrupt`, before the machine goes on.
"""

from __future__ import annotations

import math
import time
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
# The machine has fuel for this many operations of its lanes at first (a tenth of a second, or less) and for at most
# this many ticks; then for four times as many if it took less than the one, for fewer if it took more than the other.
FIRST_OPERATIONS = 5e7
MOST_FIRST_TICKS = 2048
SOON_SECONDS, LATE_SECONDS = 0.05, 0.3
MOST_FUEL = 1 << 28


class Phases(NamedTuple):
    """How a machine starts, runs and finishes, and how a host that makes room in it sees its state."""

    start: Callable[..., Any]
    run: Callable[..., Any]
    finish: Callable[[Any], list[Any]]
    machine: Callable[[Any], State]
    with_machine: Callable[[Any, State], Any]
    grown: Callable[[Any, Linked, int], Any]
    moved: Callable[[Any, Linked, Linked, Counterparts, int], Any]


# What is put around a compiled function, so that an interrupt ends its runs.
Around = Callable[[Callable[..., list[Any]]], Callable[..., list[Any]]]


class Whole:
    """A program compiled in one piece, which has nothing to grow."""

    def __init__(self, run: Callable[..., list[Any]], around: Around | None = None) -> None:
        self.run = jax.jit(run) if around is None else around(jax.jit(run))

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        return self.run(*operands)


class Larger(NamedTuple):
    """A machine of the same program with larger tapes: its operands, from those of the smaller one."""

    machine: Growing
    operands: Callable[[Sequence[Any]], Sequence[Any]]
    pairs: Counterparts


class Fuel:
    """How many ticks a machine runs before Python has its turn, by how long such runs took."""

    def __init__(self, linked: Linked, lanes: int) -> None:
        operations = lanes * sum(cost.operations + cost.shared / lanes for cost in linked.costs)
        self.ticks = max(1, min(MOST_FIRST_TICKS, int(FIRST_OPERATIONS / max(operations, 1.0))))
        self._placed: tuple[int, Any] = (0, None)
        self._compiled: set[int] = set()

    def given(self) -> Any:
        """The fuel, on the device."""
        if self._placed[0] != self.ticks:
            self._placed = (self.ticks, jax.device_put(np.int32(self.ticks)))
        return self._placed[1]

    def spent(self, seconds: float, capacity: int) -> None:
        """Note how long the fuel lasted; the first time with stacks of a size, the machine was compiled as well."""
        compiled = capacity not in self._compiled
        self._compiled.add(capacity)
        if seconds < SOON_SECONDS:
            self.ticks = min(4 * self.ticks, MOST_FUEL)
        elif seconds > LATE_SECONDS and not compiled:
            self.ticks = max(1, int(self.ticks * SOON_SECONDS / seconds))


class Growing:
    """A program compiled in three pieces, so that the host has its turn between runs.

    `most` is how many frames stacks may ever hold, `num_dear` how many blocks the machine keeps an account of. `larger`
    makes a machine of the same program with larger tapes, and says how to give it its operands.
    """

    def __init__(
        self,
        phases: Phases,
        linked: Linked,
        lanes: int,
        most: int,
        num_dear: int,
        larger: Callable[[], tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]] | None,
    ) -> None:
        self.start = jax.jit(self._start, static_argnums=0)
        self.run = jax.jit(self._run, donate_argnums=0)
        self.finish = jax.jit(phases.finish)
        self.phases = phases
        self.linked = linked
        self.fuel = Fuel(linked, lanes)
        self.capacity = min(FIRST_DEPTH, most)
        self.most = most
        self.num_dear = num_dear
        self._make_larger = larger
        self._larger: Larger | None = None

    def _start(self, capacity: int, *operands: Any) -> Any:
        # Operands may have weak types, and a state that has run has none: the machine would be compiled twice.
        state = self.phases.start(capacity, *operands)
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)

    def _run(self, state: Any, fuel: Any, *operands: Any) -> tuple[Any, Any]:
        """The state when no lane can go on, or the fuel is spent; and what is left of it."""
        machine, with_machine = self.phases.machine, self.phases.with_machine
        state = self.phases.run(with_machine(state, machine(state).with_(fuel=fuel)), *operands)
        return with_machine(state, machine(state).with_(fuel=())), machine(state).fuel

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        if self._larger is not None:
            return self._larger.machine.run_growing(self._larger.operands(operands))
        return self._go_on(self.start(self.capacity, *operands), operands)

    def _go_on(self, state: Any, operands: Sequence[Any]) -> list[Any]:
        """Run, and make room, until all lanes have ended, or those that wait will have none."""
        began = time.perf_counter()
        state, left = self.run(state, self.fuel.given(), *operands)
        if np.all(_jax.to_host(self.phases.machine(state).pc) == self.linked.halt):
            return self.finish(state)
        with _jax.our_transfers():
            return self._with_host(state, left, began, operands)

    def _with_host(self, state: Any, left: Any, began: float, operands: Sequence[Any]) -> list[Any]:
        while True:
            machine = self.phases.machine(state)
            pc, code = np.asarray(machine.pc), np.asarray(machine.code)
            seen = machine.with_(pc=pc, code=code)
            can_deepen = self.linked.has_calls and machine.returns.shape[0] < self.most
            if int(left) <= 0 and np.any((pc >= 0) & (pc < self.linked.halt)):
                self.fuel.spent(time.perf_counter() - began, machine.returns.shape[0])
            elif can_deepen and np.any(waits_for_stack(seen)):
                # Remembered for the next call, so that it starts with enough room and compiles nothing.
                self.capacity = min(self.capacity * GROWTH, self.most)
                state = self.phases.grown(state, self.linked, self.capacity)
            elif np.any(waits_for_tape(seen)) and self._can_move():
                assert self._larger is not None
                larger, theirs, pairs = self._larger
                larger.capacity = max(larger.capacity, self.capacity)
                state = self.phases.moved(state, self.linked, larger.linked, pairs, larger.num_dear)
                return larger._go_on(state, theirs(operands))
            else:
                return self.finish(state)
            began = time.perf_counter()
            state, left = self.run(state, self.fuel.given(), *operands)
            jax.block_until_ready(left)

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
