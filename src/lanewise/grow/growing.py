"""Machines whose host has a part in the run: outside `jit`.

It makes room: stacks and tapes start small and grow.

A machine by `ticks` stops when no lane can go on. Lanes that wait for a stack get one with more frames; lanes that wait
for a tape go on in a machine of the same program with larger tapes (`larger.py`). The state stays what it was: nothing
is lost and nothing is run again. Both sizes are cached, so that the next call starts with enough room.

It also lets interrupts end the run: the machine has fuel for a number of ticks, a fraction of a second by the time of
the last ones, and stops when that is spent. Python then runs the handlers of signals that have come, one of which may
raise `KeyboardInterrupt`, before the machine goes on.

A large machine is compiled in three pieces: one starts it, one runs it, one finishes it. Three calls that pass a state
on take a tenth of a millisecond, more than a small batch. So a small machine is one function. It takes a packed state,
or starts afresh, runs, and returns the state and the answers so far. If all lanes have ended, these are final. If not,
the same function goes on, so the machine is compiled once either way.

Packed (`Packing`): a call of a compiled function costs about a microsecond for each array that goes in or comes out,
whatever its size, and a state has some twenty of them. Concatenating a few kilobytes costs less: 32-bit values and
booleans become one array of words, other types an array each. For a large state this would be a copy that takes time
and memory.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.blocks.link import Linked
from lanewise.core.one_function import as_one_function
from lanewise.grow.larger import Counterparts, counterparts
from lanewise.grow.memory import FIRST_DEPTH, GROWTH
from lanewise.machine.state import State, waits_for_stack, waits_for_tape

# The machine has fuel for this many operations of its lanes at first (a tenth of a second, or less) and for at most
# this many ticks; then four times as many after a run shorter than the one, fewer after a run longer than the other.
FIRST_OPERATIONS = 5e7
MOST_FIRST_TICKS = 2048
SOON_SECONDS, LATE_SECONDS = 0.05, 0.3
MOST_FUEL = 1 << 28
# A machine whose state has more bytes than this is compiled in three pieces.
MOST_PACKED_BYTES = 1 << 18
WORD = np.dtype(np.int32)
_AS_WORDS = frozenset(map(np.dtype, (np.int32, np.uint32, np.float32)))


class Phases(NamedTuple):
    """How a machine starts, runs and finishes, and how a host that makes room in it reads its state."""

    start: Callable[..., Any]
    run: Callable[..., Any]
    finish: Callable[[Any], list[Any]]
    machine: Callable[[Any], State]
    with_machine: Callable[[Any, State], Any]
    grown: Callable[[Any, Linked, int], Any]
    moved: Callable[[Any, Linked, Linked, Counterparts, int], Any]


class Larger(NamedTuple):
    """A machine of the same program with larger tapes: its operands, from those of the smaller one."""

    machine: Growing
    operands: Callable[[Sequence[Any]], Sequence[Any]]
    pairs: Counterparts


class Fuel:
    """How many ticks a machine runs before Python has its turn, from how long such runs took."""

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
        """Record how long the fuel lasted; the first time with stacks of a size includes compilation."""
        compiled = capacity not in self._compiled
        self._compiled.add(capacity)
        if seconds < SOON_SECONDS:
            self.ticks = min(4 * self.ticks, MOST_FUEL)
        elif seconds > LATE_SECONDS and not compiled:
            self.ticks = max(1, int(self.ticks * SOON_SECONDS / seconds))


class Ran(NamedTuple):
    """Where a run has stopped: the state, the fuel left, whether all lanes have ended, and their answers.

    A machine in three pieces has no answers before it is finished.
    """

    state: Any
    left: Any
    ended: bool
    answers: list[Any] | None


class Packing:
    """How trees with leaves of these shapes and types are packed.

    >>> packing = Packing((jnp.int32(3), jnp.array([[1.0, 2.0]]), jnp.array([4, 5]), jnp.array(True)))
    >>> packed = packing.packed((np.int32(3), np.float32([[1, 2]]), np.int32([4, 5]), np.bool_(True)), np)
    >>> [x.tolist() for x in packed]
    [[3, 1065353216, 1073741824, 4, 5, 1]]
    >>> [x.tolist() for x in packing.unpacked(packed)]
    [3, [[1.0, 2.0]], [4, 5], True]
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._tree = jax.tree.flatten(tree)
        self._kinds = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        self._dtypes = list(dict.fromkeys(_packed_as(dtype) for _, dtype in self._kinds))

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(shape) * _packed_as(dtype).itemsize for shape, dtype in self._kinds)

    def packed(self, tree: Any, numpy: Any = jnp) -> list[Any]:
        """A tree as a few arrays, inside compiled code, or by NumPy."""
        groups: dict[np.dtype, list[Any]] = {dtype: [] for dtype in self._dtypes}
        for leaf, (_, dtype) in zip(jax.tree.leaves(tree), self._kinds, strict=True):
            flat = numpy.ravel(leaf)
            if dtype in _AS_WORDS:
                flat = flat.view(WORD)
            elif dtype == np.bool_:
                flat = flat.astype(WORD)
            groups[_packed_as(dtype)].append(flat)
        return [numpy.concatenate(group) for group in groups.values()]

    def unpacked(self, arrays: Sequence[Any]) -> Any:
        """The tree again; its leaves are arrays of the kind that these are."""
        whole = dict(zip(self._dtypes, arrays, strict=True))
        begins = dict.fromkeys(self._dtypes, 0)
        leaves = []
        for shape, dtype in self._kinds:
            group = _packed_as(dtype)
            begin, end = begins[group], begins[group] + math.prod(shape)
            flat = whole[group][begin:end]
            if dtype in _AS_WORDS:
                flat = flat.view(dtype)
            elif dtype == np.bool_:
                flat = flat != 0
            leaves.append(flat.reshape(shape))
            begins[group] = end
        return jax.tree.unflatten(self._tree, leaves)

    def zeros(self) -> list[np.ndarray]:
        """A packed tree of zeros."""
        return self.packed([np.zeros(shape, dtype) for shape, dtype in self._kinds], np)


def _packed_as(dtype: np.dtype) -> np.dtype:
    return WORD if dtype in _AS_WORDS or dtype == np.bool_ else dtype


class Small:
    """A machine of few bytes as one function, its state packed together with a request or a reply.

    The request is how much fuel there is and whether to start afresh; the reply is the fuel left and whether all lanes
    have ended.
    """

    def __init__(self, state: Any) -> None:
        self.packing = Packing((jax.ShapeDtypeStruct((2,), np.int32), state))
        self._first: tuple[int, list[Any]] = (0, [])

    def first(self, ticks: int) -> list[Any]:
        """The request to start the machine, on the device."""
        if self._first[0] != ticks:
            zeros = self.packing.unpacked(self.packing.zeros())
            self._first = (ticks, jax.device_put(self.given(zeros[1], ticks, afresh=True)))
        return self._first[1]

    def given(self, state: Any, ticks: int, *, afresh: bool = False) -> list[np.ndarray]:
        """The request to go on from a state."""
        return self.packing.packed((np.array([ticks, afresh], np.int32), state), np)

    @staticmethod
    def ended(packed: Sequence[Any]) -> bool:
        """Whether all lanes have ended."""
        return bool(_jax.to_host(packed[0])[1])

    def ran(self, answers: list[Any], packed: Sequence[Any]) -> Ran:
        """Where the machine has stopped."""
        (left, ended), state = self.packing.unpacked(list(map(np.asarray, packed)))
        return Ran(jax.device_put(state), left, bool(ended), answers)


class Growing:
    """A program compiled so that the host has its turn between runs.

    `most` is how many frames stacks may ever hold, `num_expensive` the number of blocks whose waiting lanes the machine
    counts. `larger` makes a machine of the same program with larger tapes, and says how to pass it its operands.
    `watched`: it reports to observers when it starts and finishes.
    """

    def __init__(
        self,
        phases: Phases,
        linked: Linked,
        lanes: int,
        most: int,
        num_expensive: int,
        larger: Callable[[], tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]] | None,
        *,
        watched: bool = False,
    ) -> None:
        self.start = jax.jit(self._start, static_argnums=0)
        self.run = jax.jit(self._run, donate_argnums=0)
        self.finish = jax.jit(phases.finish)
        self.at_once = jax.jit(self._at_once, static_argnums=0)
        self.phases = phases
        self.linked = linked
        self.fuel = Fuel(linked, lanes)
        self.capacity = min(FIRST_DEPTH, most)
        self.most = most
        self.num_expensive = num_expensive
        self._watched = watched
        self._small: dict[int, Small | None] = {}
        self._make_larger = larger
        self._larger: Larger | None = None

    def _start(self, capacity: int, *operands: Any) -> Any:
        # Operands may have weak types, and a state that has run has none: the machine would be compiled twice.
        state = self.phases.start(capacity, *operands)
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)

    def _run(self, state: Any, fuel: Any, *operands: Any) -> tuple[Any, Any]:
        """The state when no lane can go on, or the fuel is spent; and the fuel left."""
        machine, with_machine = self.phases.machine, self.phases.with_machine
        state = self.phases.run(with_machine(state, machine(state).with_(fuel=fuel)), *operands)
        return with_machine(state, machine(state).with_(fuel=())), machine(state).fuel

    def _at_once(
        self, capacity: int, packed: Sequence[Any], *operands: Any
    ) -> tuple[list[Any], list[Any]]:
        """The answers so far, and the packed state."""
        first = jax.eval_shape(functools.partial(self._start, capacity), *operands)
        packing = Small(first).packing

        def begun(*args: Any) -> list[Any]:
            (fuel, afresh), before = packing.unpacked(args[: len(packed)])
            first = self._start(capacity, *args[len(packed) :])
            chosen = jax.tree.map(lambda new, old: jnp.where(afresh != 0, new, old), first, before)
            return [fuel, *jax.tree.leaves(chosen)]

        # Separately they are a dozen tiny kernels on a CPU, which take half as long to compile as the machine itself.
        fuel, *leaves = as_one_function(begun, *packed, *operands)
        state, left = self._run(
            jax.tree.unflatten(jax.tree.structure(first), leaves), fuel, *operands
        )
        ended = (self.phases.machine(state).pc == self.linked.halt).all()
        done = jnp.stack([left, ended.astype(left.dtype)])
        return self.phases.finish(state), packing.packed((done, state))

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        if self._larger is not None:
            return self._larger.machine.run_growing(self._larger.operands(operands))
        began, capacity = time.perf_counter(), self.capacity
        small = self._if_small(capacity, operands)
        if small is None:
            ran = self._in_pieces(self.start(capacity, *operands), operands)
            return self.finish(ran.state) if ran.ended else self._with_host(ran, began, operands)
        answers, packed = self.at_once(capacity, small.first(self.fuel.ticks), *operands)
        if small.ended(packed):
            return answers
        with _jax.our_transfers():
            return self._with_host(small.ran(answers, packed), began, operands)

    def _if_small(self, capacity: int, operands: Sequence[Any]) -> Small | None:
        """The machine with stacks of this many frames as one function; None if it is not."""
        if capacity not in self._small:
            small = None
            if not self._watched:
                state = jax.eval_shape(functools.partial(self._start, capacity), *operands)
                small = Small(state)
                if small.packing.num_bytes > MOST_PACKED_BYTES:
                    small = None
            self._small[capacity] = small
        return self._small[capacity]

    def _in_pieces(self, state: Any, operands: Sequence[Any]) -> Ran:
        state, left = self.run(state, self.fuel.given(), *operands)
        pc = _jax.to_host(self.phases.machine(state).pc)
        return Ran(state, left, bool(np.all(pc == self.linked.halt)), None)

    def _go_on(self, state: Any, operands: Sequence[Any]) -> Ran:
        """Run on from a state."""
        frames = self.phases.machine(state).returns.shape[0]
        capacity = frames if self.linked.has_calls else self.capacity
        small = self._if_small(capacity, operands)
        if small is None:
            return self._in_pieces(state, operands)
        return small.ran(*self.at_once(capacity, small.given(state, self.fuel.ticks), *operands))

    def _with_host(self, ran: Ran, began: float, operands: Sequence[Any]) -> list[Any]:
        """Make room and go on, until all lanes have ended, or those that wait will have none."""
        with _jax.our_transfers():
            while not ran.ended:
                state, machine = ran.state, self.phases.machine(ran.state)
                pc, code = np.asarray(machine.pc), np.asarray(machine.code)
                seen = machine.with_(pc=pc, code=code)
                frames = machine.returns.shape[0]
                can_deepen = self.linked.has_calls and frames < self.most
                if int(ran.left) <= 0 and np.any((pc >= 0) & (pc < self.linked.halt)):
                    self.fuel.spent(time.perf_counter() - began, frames)
                elif can_deepen and np.any(waits_for_stack(seen)):
                    # Cached for the next call, so that it starts with enough room and compiles nothing.
                    self.capacity = min(self.capacity * GROWTH, self.most)
                    state = self.phases.grown(state, self.linked, self.capacity)
                elif np.any(waits_for_tape(seen)) and self._can_move():
                    assert self._larger is not None
                    larger, theirs, pairs = self._larger
                    larger.capacity = max(larger.capacity, self.capacity)
                    args = (self.linked, larger.linked, pairs, larger.num_expensive)
                    state = self.phases.moved(state, *args)
                    began, operands = time.perf_counter(), theirs(operands)
                    return larger._with_host(larger._go_on(state, operands), began, operands)
                else:
                    break
                began = time.perf_counter()
                ran = self._go_on(state, operands)
            return self.finish(ran.state) if ran.answers is None else ran.answers

    def _can_move(self) -> bool:
        """Whether the state can go on with larger tapes."""
        if self._larger is None and self._make_larger is not None:
            machine, operands = self._make_larger()
            pairs = counterparts(self.linked, machine.linked)
            self._larger = None if pairs is None else Larger(machine, operands, pairs)
            self._make_larger = None
        return self._larger is not None
