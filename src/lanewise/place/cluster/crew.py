"""The workers of one stream: started, checked, replaced when they die.

A worker that dies takes all its tasks along, and nothing shows which of them killed it: all are blamed, and from then
on each is run alone on a worker, so a task that is blamed again has earned it. One that takes longer than the caller
allows is ended, and counts as dead: only the caller knows how long examples may take. A worker that dies while it
starts is started again, `MOST_STARTS` times in a row; one that dies at work always, since a task that kills workers is
tried a few times only (`chunked.py`).

Answers must not depend on which worker gave them. All run the same program, by a hash of what they traced; the same
versions of Lanewise and JAX; and the same carrier, as carriers round differently: a worker that would carry the program
otherwise than the first (its machine has no C++ compiler, say) is left out with a warning.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from lanewise.core.errors import ClusterError
from lanewise.place.cluster.engine import (
    TASKS_AT_ONCE,
    Answers,
    Engine,
    Finished,
    Greeting,
    Lost,
    Raised,
    Ready,
    Refused,
    Task,
)

MOST_STARTS = 3
# How long there is no sign of any worker before a warning says what the cluster has.
PATIENCE_SECONDS = 30.0


class Done(NamedTuple):
    """A task was done."""

    ticket: int
    answers: Answers


class Failed(NamedTuple):
    """A task was not done, perhaps by its own fault."""

    ticket: int
    why: str


class Crew:
    """Workers under way.

    `carrier` is the one that all must have, if that is decided already. `limit`: how many seconds a task may take.
    """

    def __init__(
        self,
        engine: Engine,
        expected: Greeting,
        carrier: str | None = None,
        limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.expected = expected
        self.carrier = carrier
        self.limit = limit
        self.tickets = itertools.count()
        # The tasks of each worker that has started, with the times they were given; those that have one task and get no
        # other; how often workers that have not started were begun; which are left out.
        self.has: dict[int, dict[int, float]] = {}
        self.alone: set[int] = set()
        self.starts = dict.fromkeys(range(engine.workers), 0)
        self.left_out: dict[int, str] = {}
        self._clock = clock
        self._began: float | None = clock()
        for worker in range(engine.workers):
            self._start(worker)

    def with_room(self, alone: bool) -> int | None:
        """A worker that can take a task, the one with the fewest; `alone`: one that has none."""
        able = [worker for worker in self.has if worker not in self.alone]
        worker = min(able, key=lambda w: len(self.has[w]), default=None)
        if worker is None or len(self.has[worker]) >= (1 if alone else TASKS_AT_ONCE):
            return None
        return worker

    def give(self, worker: int, task: Task, alone: bool) -> int:
        """Have a worker run a task, with no other if it is to be `alone`; gives its ticket."""
        ticket = next(self.tickets)
        self.has[worker][ticket] = self._clock()
        if alone:
            self.alone.add(worker)
        self.engine.give(worker, ticket, task)
        return ticket

    def wait(self, seconds: float) -> list[Done | Failed]:
        """What became of tasks, as soon as it is known of any, or nothing after this time."""
        found: list[Done | Failed] = []
        for event in self.engine.wait(seconds):
            match event:
                case Ready(worker, greeting):
                    self._meet(worker, greeting)
                case Refused(worker, why):
                    raise ClusterError(
                        f"worker {worker} cannot run the program: {why}\nWhat the program needs must be installed on"
                        " every machine of the cluster. A module that is not can travel with the program:"
                        " `ray.cloudpickle.register_pickle_by_value(module)`."
                    )
                case Finished(worker, ticket, answers):
                    self._ended(worker, ticket)
                    found.append(Done(ticket, answers))
                case Raised(worker, ticket, why):
                    self._ended(worker, ticket)
                    found.append(Failed(ticket, why))
                case Lost(worker, why):
                    found += self._lose(worker, why)
        self._warn_if_no_worker_starts()
        return found + self._stop_those_that_hang()

    def close(self) -> None:
        """End all workers."""
        self.engine.close()

    def _start(self, worker: int) -> None:
        self.starts[worker] += 1
        self.engine.start(worker)

    def _meet(self, worker: int, greeting: Greeting) -> None:
        self._began = None
        self.starts[worker] = 0
        expected = self.expected
        if greeting.versions != expected.versions:
            raise ClusterError(
                f"the worker on {greeting.where} has {greeting.versions}, and this process {expected.versions}: install"
                " the same everywhere, or answers would depend on which worker gives them."
            )
        if greeting.digest != expected.digest:
            raise ClusterError(
                f"the worker on {greeting.where} finds another program under this name than this process: the modules"
                " it is written in differ there. Bring them up to date on every machine of the cluster."
            )
        if self.carrier is None:
            self.carrier = greeting.carrier
        if greeting.carrier == self.carrier:
            self.has[worker] = {}
            return
        why = f"it would run the program on {greeting.carrier}, and others do on {self.carrier}"
        warnings.warn(
            f"the worker on {greeting.where} is left out: {why}, and answers must not depend on which worker"
            " gives them. Give that machine what it lacks (`lanewise doctor` there says what), or say which carrier"
            ' all are to use (carrier="ticks").',
            stacklevel=2,
        )
        self.engine.stop(worker)
        self._leave_out(worker, why)

    def _ended(self, worker: int, ticket: int) -> None:
        del self.has[worker][ticket]
        self.alone.discard(worker)

    def _stop_those_that_hang(self) -> list[Done | Failed]:
        found: list[Done | Failed] = []
        if self.limit is not None:
            late = self._clock() - self.limit
            for worker in [w for w, has in self.has.items() if has and min(has.values()) < late]:
                self.engine.stop(worker)
                found += self._lose(worker, f"it had not ended after {self.limit:g} seconds")
        return found

    def _lose(self, worker: int, why: str) -> list[Done | Failed]:
        tickets = self.has.pop(worker, {})
        self.alone.discard(worker)
        if self.starts[worker] < MOST_STARTS:
            self._start(worker)
        else:
            self._leave_out(worker, f"it died {MOST_STARTS} times as it started: {why}")
        return [Failed(ticket, why) for ticket in tickets]

    def _leave_out(self, worker: int, why: str) -> None:
        self.left_out[worker] = why
        if len(self.left_out) == self.engine.workers:
            raise ClusterError(
                "no worker of the cluster can be used: "
                + "; ".join(f"worker {number}: {text}" for number, text in self.left_out.items())
                + ". Lanewise must be installed on every machine of the cluster."
            )

    def _warn_if_no_worker_starts(self) -> None:
        if self._began is not None and self._clock() - self._began > PATIENCE_SECONDS:
            self._began = None
            warnings.warn(
                f"no worker has started after {PATIENCE_SECONDS:.0f} seconds: {self.engine.room()}. The stream waits"
                " until one does.",
                stacklevel=2,
            )
