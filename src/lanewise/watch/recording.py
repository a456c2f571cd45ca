"""What was seen of everything that ran while a report or a trace was open.

A `Recording` receives runs, calls and compilations (`lanewise.core.events`) and keeps them, within bounds: a long
session is remembered by its first `MOST_DETAILED` runs in detail and by counts of the others. All times are seconds
since it was opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lanewise.core import events
from lanewise.core.events import RunInfo

# Runs kept with what their machines recorded: of one machine, and of all; runs in all; readings of the clock in one;
# compilations.
MOST_DETAILED_EACH = 8
MOST_DETAILED = 40
MOST_RUNS = 5000
MOST_READINGS = 2048
MOST_COMPILATIONS = 5000
# How long an open report waits at its end for runs that go on in the background, in seconds.
PATIENCE = 60.0


@dataclass(frozen=True)
class Reading:
    """At this time a run had come to this tick (-1 where there are none), with this many examples left."""

    time: float
    tick: int
    left: int


@dataclass(frozen=True)
class Span:
    """A stretch of time, and what it was spent on."""

    what: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(eq=False)
class Run:
    """One execution of a compiled machine. `ended` is None for one whose end was not reported.

    `compilations`: what was compiled in between, where the host makes a machine's parts as it comes to them.
    """

    info: RunInfo
    began: float
    ended: float | None = None
    readings: list[Reading] = field(default_factory=list)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    # Readings are thinned out as they become many: every `stride`-th is kept.
    stride: int = 1
    heard: int = 0
    compilations: tuple[Span, ...] = ()

    def clock(self, at: float) -> float:
        """How long it had run at this time, compiling left out."""
        return at - self.began - covered(self.compilations, self.began, at)

    @property
    def seconds(self) -> float | None:
        """How long it ran."""
        return None if self.ended is None else self.clock(self.ended)

    @property
    def machine_span(self) -> tuple[float, float]:
        """From when to when the machine ran: without what was compiled before its first reading and after its last."""
        end = self.began if self.ended is None else self.ended
        times = [reading.time for reading in self.readings] or [end]
        before = covered(self.compilations, self.began, times[0])
        return self.began + before, end - covered(self.compilations, times[-1], end)

    @property
    def examples(self) -> int:
        """How many there were; for a stream, known only at the end."""
        return int(self.arrays.get("examples", self.info.examples))

    def hear(self, reading: Reading) -> None:
        self.heard += 1
        if self.heard % self.stride and reading.left:
            return
        self.readings.append(reading)
        if len(self.readings) >= MOST_READINGS:
            self.readings = self.readings[1::2]
            self.stride *= 2


class Recording:
    """A recorder for `lanewise.core.events`."""

    def __init__(self) -> None:
        self.opened = time.perf_counter()
        self.opened_at = time.time()
        self.runs: list[Run] = []
        self.more_runs = 0
        self.calls: list[Span] = []
        self.compilations: list[Span] = []
        self.closed: float | None = None
        self._going_on: dict[int, Run] = {}

    def began(self, run: int, info: RunInfo, now: float) -> None:
        record = Run(info, now - self.opened)
        self._going_on[run] = record
        if len(self.runs) < MOST_RUNS:
            self.runs.append(record)
        else:
            self.more_runs += 1

    def reached(self, run: int, now: float, tick: int, left: int) -> None:
        record = self._going_on[run]
        if tick == 0:
            # The machine is about to tick; what came before was making it.
            record.began = now - self.opened
        else:
            record.hear(Reading(now - self.opened, tick, left))

    def ended(self, run: int, now: float, arrays: Mapping[str, np.ndarray]) -> None:
        record = self._going_on.pop(run)
        record.ended = now - self.opened
        if record.readings and record.readings[-1].left == 0 and not record.info.plan.job.streamed:
            # XLA may report the end late.
            record.ended = record.readings[-1].time
        detailed = [kept for kept in self.runs if kept.arrays]
        alike = sum(kept.info is record.info for kept in detailed)
        if len(detailed) < MOST_DETAILED and alike < MOST_DETAILED_EACH:
            record.arrays = arrays

    def compiled(self, what: str, began: float, ended: float) -> None:
        if len(self.compilations) < MOST_COMPILATIONS:
            self.compilations.append(Span(what, began - self.opened, ended - self.opened))

    def called(self, site_name: str, began: float, ended: float) -> None:
        if len(self.calls) < MOST_RUNS:
            self.calls.append(Span(site_name, began - self.opened, ended - self.opened))

    def close(self) -> None:
        """No more will be reported. Runs that go on in the background are waited for."""
        until = time.perf_counter() + PATIENCE
        while self._going_on and events.running() and time.perf_counter() < until:
            time.sleep(0.005)
        self.closed = time.perf_counter() - self.opened
        for run in self.runs:
            if run.ended is not None:
                during = (
                    s for s in self.compilations if s.ended > run.began and s.began < run.ended
                )
                run.compilations = tuple(during)

    def call_of(self, run: Run) -> Span | None:
        """The call from the host that a run was part of; None for one inside a user's `jit`."""
        for call in self.calls:
            if call.began <= run.began and (run.ended or run.began) <= call.ended + 1e-6:
                return call
        return None

    def compiling_within(self, span: Span | None) -> float:
        """How much of a span was spent compiling."""
        return 0.0 if span is None else covered(self.compilations, span.began, span.ended)


def covered(spans: Iterable[Span], began: float, ended: float) -> float:
    """How much of the time from `began` to `ended` is in any of these spans, each moment counted once.

    >>> covered([Span("a", 0.0, 2.0), Span("inside a", 1.0, 2.0), Span("b", 3.0, 9.0)], 0.5, 4.0)
    2.5
    """
    total, until = 0.0, began
    for span in sorted(spans, key=lambda span: span.began):
        low, high = max(span.began, until), min(span.ended, ended)
        if high > low:
            total, until = total + high - low, high
    return total


def plain_options(info: RunInfo) -> dict[str, Any]:
    """The options of a run that differ from the defaults."""
    options, usual = info.plan.job.options, type(info.plan.job.options)()
    return {
        name: value
        for name in options.__dataclass_fields__
        if (value := getattr(options, name)) != getattr(usual, name) and name != "recorded"
    }
