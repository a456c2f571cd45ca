"""What is asked of a cluster: workers that can be started, given tasks, waited for and stopped.

A worker is made by a recipe, a function of no arguments that travels to it once. It says what it is (`Greeting`), then
runs tasks, at most `TASKS_AT_ONCE` at a time, each by a thread of its own: while the last examples of one run, those of
the next begin. It may die at any time; the engine notices, and nothing more: what to do about it is the crew's
(`crew.py`). So an engine is small, and Ray is one of several that are possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

TASKS_AT_ONCE = 2


class Task(NamedTuple):
    """Examples to run: how many, a column for each of their arrays, and what those of one `session` share."""

    count: int
    columns: list[np.ndarray]
    shared: list[np.ndarray]
    session: int


class Answers(NamedTuple):
    """What a task gave, in the order of its examples, and how many seconds went by since the last one ended."""

    columns: list[np.ndarray]
    code: np.ndarray
    site: np.ndarray
    seconds: float


class Greeting(NamedTuple):
    """What a worker is: how it carries the program, which program and versions it has, where it is."""

    carrier: str
    digest: str
    versions: str
    where: str


class Worker(Protocol):
    """What a recipe makes, in the worker's process. `run` is called by several threads at a time."""

    @property
    def greeting(self) -> Greeting: ...

    def run(self, task: Task) -> Answers: ...


Recipe = Callable[[], Worker]


class Ready(NamedTuple):
    """A worker has started."""

    worker: int
    greeting: Greeting


class Refused(NamedTuple):
    """A worker was there, and its recipe raised."""

    worker: int
    why: str


class Finished(NamedTuple):
    """A task was done."""

    worker: int
    ticket: int
    answers: Answers


class Raised(NamedTuple):
    """A task raised; its worker goes on."""

    worker: int
    ticket: int
    why: str


class Lost(NamedTuple):
    """A worker is gone, and with it all it was given that has not finished."""

    worker: int
    why: str


Event = Ready | Refused | Finished | Raised | Lost


class Engine(Protocol):
    """Workers, by their numbers from 0."""

    @property
    def workers(self) -> int: ...

    def start(self, worker: int) -> None:
        """Begin to start a worker; `Ready`, `Refused` or `Lost` follows."""
        ...

    def give(self, worker: int, ticket: int, task: Task) -> None:
        """Have a worker run a task; `Finished`, `Raised` or `Lost` follows."""
        ...

    def wait(self, seconds: float) -> Sequence[Event]:
        """What has happened, as soon as anything has, or nothing after this time. What finished comes before `Lost`."""
        ...

    def stop(self, worker: int) -> None:
        """End a worker; no more is heard of it."""
        ...

    def room(self) -> str:
        """What the cluster has and what of it is free, in words."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
