"""A cluster in one thread, whose workers die, raise and overtake each other as a test says."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lanewise as lw
from lanewise.place.cluster.engine import (
    Event,
    Finished,
    Greeting,
    Lost,
    Raised,
    Ready,
    Recipe,
    Refused,
    Task,
)

# What becomes of a task: None is that it is run.
Fault = Callable[[int, Task], str | None]
DIES, RAISES = "dies", "raises"


@dataclass
class Seen:
    """What happened: sizes of tasks; tasks that were run, by worker; workers started and stopped; how it ended."""

    sizes: list[int] = field(default_factory=list)
    ran: list[tuple[int, Task]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    closed: bool = False
    clock: float = 0.0


@dataclass(frozen=True)
class Simulated(lw.Cluster):
    """`seed` decides which worker is next. `fault(worker, task)` says what happens to a task before it runs.

    `greets(worker, greeting)` changes what a worker says it is, or gives an event in its place. `cost(task)` is how
    long a task takes: the worker that ends first is next then, and `seen.clock` is when the last ended.
    """

    workers: int | None = 2
    seed: int = 0
    fault: Fault = lambda worker, task: None
    greets: Callable[[int, Greeting], Greeting | Event | None] = lambda worker, greeting: greeting
    cost: Callable[[Task], float] | None = None
    seen: Seen = field(default_factory=Seen)

    def engine(self, recipe: Recipe) -> Engine:
        return Engine(self, recipe)


class Engine:
    """The workers of a `Simulated`."""

    def __init__(self, about: Simulated, recipe: Recipe) -> None:
        self.about = about
        self.recipe = recipe
        self.random = random.Random(about.seed)
        self.workers = about.workers or 1
        self.worker: Any = None
        # What each worker that is there is to do: to start (None), or tasks, each with its ticket and when it came.
        self.todo: dict[int, deque[tuple[int, Task, float] | None]] = {}
        self.free_at = dict.fromkeys(range(self.workers), 0.0)
        self.clock = 0.0

    def start(self, worker: int) -> None:
        self.about.seen.started.append(worker)
        self.todo[worker] = deque([None])

    def give(self, worker: int, ticket: int, task: Task) -> None:
        self.about.seen.sizes.append(task.count)
        copied = [column.copy() for column in task.columns]
        self.todo[worker].append((ticket, task._replace(columns=copied), self.clock))

    def wait(self, seconds: float) -> Sequence[Event]:
        busy = [worker for worker, tasks in self.todo.items() if tasks]
        if not busy or (seconds == 0.0 and self.random.random() < 0.5):
            return []
        if self.about.cost is None:
            worker = self.random.choice(busy)
        else:
            worker = min(busy, key=self._ends)
        self.clock = self.free_at[worker] = self._ends(worker)
        tasks = self.todo[worker]
        if self.about.cost is None and tasks[0] is not None:
            tasks.rotate(self.random.randrange(len(tasks)))  # a later one may end first
        first = tasks.popleft()
        event = self._begun(worker) if first is None else self._done(worker, *first[:2])
        return [] if event is None else [event]

    def _ends(self, worker: int) -> float:
        """When a worker has done the next thing."""
        first, cost = self.todo[worker][0], self.about.cost
        if first is None or cost is None:
            return self.free_at[worker]
        _, task, given = first
        return max(self.free_at[worker], given) + cost(task)

    def _begun(self, worker: int) -> Event | None:
        if self.worker is None:
            self.worker = self.recipe()
        said = self.about.greets(worker, self.worker.greeting)
        if isinstance(said, Greeting):
            return Ready(worker, said)
        if isinstance(said, Lost | Refused):
            del self.todo[worker]
        return said

    def _done(self, worker: int, ticket: int, task: Task) -> Event:
        match self.about.fault(worker, task):
            case "dies":
                del self.todo[worker]
                return Lost(worker, "its worker died")
            case "raises":
                return Raised(worker, ticket, "it raised")
        self.about.seen.clock = self.clock
        self.about.seen.ran.append((worker, task))
        return Finished(worker, ticket, self.worker.run(task))

    def stop(self, worker: int) -> None:
        self.about.seen.stopped.append(worker)
        self.todo.pop(worker, None)

    def room(self) -> str:
        return "it has nothing to offer"

    def close(self) -> None:
        self.about.seen.closed = True


def ran(cluster: Simulated) -> list[Any]:
    """The first arrays of all examples that were run, in that order."""
    return [x for _, task in cluster.seen.ran for x in np.asarray(task.columns[0]).tolist()]
