"""What a worker of a cluster runs: the program of a stream, traced and compiled there, once.

A program travels as Python code (`cloudpickle`), with one example for the types, and is traced again by the
process that gets it: what JAX traced in one process means nothing in another. So that it is the same program all the
same, JAX's settings travel along, and a hash of the traced text and the captured values is compared (`crew.py`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.api.fed_by import fed_by
from lanewise.core.program import Function, Program, program_p
from lanewise.feed.batches import InBatches
from lanewise.feed.fed import NONE_ENDED, Ended, Example, Fed
from lanewise.feed.segments import InLanes
from lanewise.place.cluster.engine import Answers, Greeting, Task
from lanewise.tracing.decorator import ProgramFunction

# How long a thread waits for the one that takes turns, before it checks whether to take over.
LOOKING_SECONDS = 2e-3

# JAX's settings that decide what a program computes.
SETTINGS = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}


def settings_here() -> dict[str, Any]:
    """The settings of this process, at this moment."""
    return {name: getattr(jax.config, name) for name in SETTINGS}


@contextlib.contextmanager
def with_settings(settings: dict[str, Any]) -> Iterator[None]:
    """The settings of another process."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(SETTINGS[name](value))
        yield


@dataclass(frozen=True, eq=False)
class Traveling:
    """What travels to a worker: a program, arguments that all examples share, one example's, and JAX's settings."""

    program: ProgramFunction
    shared: tuple[Any, ...]
    example: tuple[Any, ...]
    settings: dict[str, Any]

    def __call__(self) -> ClusterWorker:
        return ClusterWorker(self)


@dataclass(eq=False)
class _UnderWay:
    """A task whose examples have the numbers from `first` on; it has ended when all are there, or when it failed."""

    first: int
    count: int
    entered: float
    parts: list[Ended] = field(default_factory=list)
    there: int = 0
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, found: Ended) -> None:
        """Take what belongs to this task."""
        own = (found.index >= self.first) & (found.index < self.first + self.count)
        if own.any():
            columns = [column[own] for column in found.columns]
            self.parts.append(Ended(found.index[own], columns, found.code[own], found.site[own]))
            self.there += int(own.sum())
        if self.there == self.count:
            self.ended.set()

    def answers(self, seconds: float) -> Answers:
        order = np.argsort(np.concatenate([part.index for part in self.parts]), kind="stable")
        columns = zip(*(part.columns for part in self.parts), strict=True)
        code, site = (
            np.concatenate([getattr(part, name) for part in self.parts])[order]
            for name in ("code", "site")
        )
        return Answers([np.concatenate(column)[order] for column in columns], code, site, seconds)


class ClusterWorker:
    """A program that runs the examples of tasks, of several at a time.

    A thread for each task calls `run`. All feed the same lanes; one of them at a time takes turns with these, for all,
    until its own task has ended, and then another does.
    """

    def __init__(self, given: Traveling) -> None:
        self.given = given
        self.options = given.program.options
        with with_settings(given.settings):
            staged, operands = given.program.stage(*given.shared, *given.example)
            first = len(staged.captures)
            shared = operands[first : first + len(jax.tree.leaves(given.shared))]
            self.captures = list(staged.captures)
            self.program = with_shared(staged.program, len(shared))
            self.avals = self.program.operand_avals[first : first + len(shared)]
            # What is compiled ahead is compiled here, so that the carrier is known.
            self.fed: Fed | None = self._fed_with(shared)
            carrier = _carrier(self.fed)
            digest = digest_of_program(self.program, staged.captures)
        where = f"{socket.gethostname()} (process {os.getpid()})"
        self.greeting = Greeting(carrier, digest, versions(), where)
        self.session: int | None = None
        self.waiting: deque[Example] = deque()
        self.under_way: list[_UnderWay] = []
        self.next_number = 0
        self.last_ended = 0.0
        # Held to enter a task, and to take turns.
        self.entering, self.turning = threading.Lock(), threading.Lock()

    def run(self, task: Task) -> Answers:
        """The answers of some examples."""
        with with_settings(self.given.settings), _jax.our_transfers():
            mine = self._entered(task)
            try:
                self._wait(mine)
            finally:
                with self.entering:
                    self.under_way.remove(mine)
        if mine.error is not None:
            raise RuntimeError(f"{type(mine.error).__name__}: {mine.error}") from mine.error
        now = time.perf_counter()
        began, self.last_ended = max(mine.entered, self.last_ended), now
        return mine.answers(now - began)

    def _entered(self, task: Task) -> _UnderWay:
        """Have the examples of a task wait for lanes; those of another session come when it is over."""
        while True:
            with self.entering:
                fits = self.fed is not None and (not task.shared or task.session == self.session)
                if fits or not self.under_way:
                    if not fits:
                        self._begin(task)
                    mine = _UnderWay(self.next_number, task.count, time.perf_counter())
                    self.next_number += task.count
                    self.under_way.append(mine)
                    for i in range(task.count):
                        rows = [column[i] for column in task.columns]
                        self.waiting.append(Example(mine.first + i, rows))
                    return mine
            time.sleep(LOOKING_SECONDS)

    def _begin(self, task: Task) -> None:
        """Have lanes for the task's session; what is compiled for one serves all."""
        if self.fed is not None:
            self.fed.close()
        pairs = zip(task.shared, self.avals, strict=True)
        shared = [_jax.loaded(jax.numpy.asarray(x), aval) for x, aval in pairs]
        self.fed, self.session = self._fed_with(shared), task.session

    def _wait(self, mine: _UnderWay) -> None:
        """Until a task has ended, take turns, or wait for the thread that does."""
        while not mine.ended.is_set():
            if self.turning.acquire(blocking=False):
                try:
                    while not mine.ended.is_set():
                        self._turn()
                finally:
                    self.turning.release()
            else:
                mine.ended.wait(LOOKING_SECONDS)

    def _turn(self) -> None:
        """Give lanes what waits, and hand over what has ended."""
        fed = self.fed
        assert fed is not None
        try:
            found = fed.ended() if fed.start(self.waiting) else NONE_ENDED
            for one in list(self.under_way):
                one.take(found)
        except BaseException as error:
            # Examples of all tasks may be left in the lanes: others are made for the next.
            with self.entering:
                self.fed = None
                self.waiting.clear()
                for one in self.under_way:
                    one.error = error
                    one.ended.set()

    def _fed_with(self, shared: Sequence[Any]) -> Fed:
        lanes = self.options.lanes or 1
        return fed_by(self.program, [*self.captures, *shared], lanes, self.options)


def _carrier(fed: Fed) -> str:
    """What carries the program, and on which platform."""
    if isinstance(fed, InBatches):
        carrier = fed.options.carrier
    else:
        carrier = "ticks" if isinstance(fed, InLanes) else "native"
    return f"{carrier} on {_jax.default_platform()}"


def with_shared(program: Program, count: int) -> Program:
    """The program with its first parameters as captures, which all lanes share. Its entry may not call itself."""
    if not count:
        return program
    entry = program.functions[program.entry]
    captures = tuple(range(program.num_captures, program.num_captures + count))
    changed = replace(entry, captures=(*entry.captures, *captures))
    return replace(
        program,
        functions={**program.functions, program.entry: changed},
        num_captures=program.num_captures + count,
    )


@functools.cache
def versions() -> str:
    """What answers depend on beside the program. Lanewise by its sources: the version of a checkout says little."""
    own = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*")):
        if path.suffix in (".py", ".h", ".cpp"):
            own.update(path.read_bytes())
    return f"Lanewise (sources {own.hexdigest()[:8]}) with JAX {jax.__version__}"


def digest_of_program(program: Program, captures: Sequence[Any]) -> str:
    """A hash of what a program computes, the same in every process that traces it.

    Names of functions have a number that depends on what was traced before, and some parameters of JAX's primitives are
    shown by their address: neither counts.
    """
    found = hashlib.sha256(_text_of(program).encode())
    for capture in captures:
        array = np.asarray(_jax.stored(capture, _jax.aval_of(capture)))
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def _text_of(program: Program) -> str:
    """The text of a program and of all it calls, without addresses and the numbers of traces."""
    programs: dict[Program, None] = {}
    _gather(program, programs)
    text = "\n".join(f"{one.name}: {f.jaxpr}" for one in programs for f in _in_order(one))
    for pattern in (r"(?<=<program) [^>]*", r"(?<=0x)[0-9a-f]+"):
        text = re.sub(pattern, "", text)
    return re.sub(r"\b((?:name|jvp_of)=[^\s\]]*?)\.\d+(?=[)']*[\s\],])", r"\1", text)


def _gather(program: Program, found: dict[Program, None]) -> None:
    """Note a program and those that are called inside it, in order."""
    if program in found:
        return
    found[program] = None
    for function in _in_order(program):
        for eqn in _jax.equations(function.jaxpr.eqns):
            if eqn.primitive is program_p:
                _gather(eqn.params["program"], found)


def _in_order(program: Program) -> list[Function]:
    """The functions of a program by their names: which of those that call each other is first, depends on the calls."""
    return sorted(program.functions.values(), key=lambda f: re.sub(r"\.\d+(?=\)*$)", "", f.name))
