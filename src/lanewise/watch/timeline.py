"""`lanewise.timeline`: everything that ran inside a `with`, as a file that Perfetto and Chrome's tracing open.

The file is JSON in the Trace Event format: a process for the host (calls from Python, compilation), and one for each
machine, with its runs, a track for each block, and counters. Times are microseconds since the trace was opened. Blocks
are recorded by tick in bins (`machine/observe.py`); a bin is one tick in a run of up to 256, and as many as it says
otherwise. Where the clock was not read at a bin's edge its time is interpolated between readings.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from lanewise.core import events
from lanewise.core.events import RunInfo
from lanewise.watch.figures import TickFigures, ended_over_time, outcomes_of, tick_figures
from lanewise.watch.recording import Recording, Run, plain_options
from lanewise.watch.report import writable

Event = dict[str, Any]

HOST = 1
CALLS, COMPILING = 1, 2
RUNS = 1


@contextlib.contextmanager
def timeline(path: str | os.PathLike[str]) -> Iterator[None]:
    """Record everything that Lanewise runs inside, and write a timeline of it, for https://ui.perfetto.dev or Chrome.

    It has spans for calls, compilation, runs, and for each block when it ran and for how many lanes, and counters for
    occupancy, examples and stack depth. What runs inside is compiled again, with recording. An exception
    inside still writes the file.

    >>> import json, tempfile, pathlib
    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> double = lambda x: lw.lift(lambda y: y * 2)(x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lw.timeline(f"{folder}/run.json"):
    ...         answers = lw.vmap(double)(jnp.arange(3))
    ...     events = json.loads(pathlib.Path(folder, "run.json").read_text())["traceEvents"]
    >>> any(event["ph"] == "X" for event in events)
    True
    """
    target = writable(path, "timeline")
    recording = Recording()
    try:
        with events.recording(recording):
            yield
    finally:
        recording.close()
        target.write_text(json.dumps(timeline_events(recording)), encoding="utf-8")


def timeline_events(recording: Recording) -> dict[str, Any]:
    """What was recorded, as Trace Event format has it."""
    events: list[Event] = [
        *_named(HOST, "host"),
        *_named(HOST, "calls", CALLS),
        *_named(HOST, "compilation", COMPILING),
    ]
    for call in recording.calls:
        events.append(_span(call.what, call.began, call.ended, HOST, CALLS))
    for span in sorted(recording.compilations, key=lambda span: (span.began, -span.ended)):
        events.append(_span(span.what, span.began, span.ended, HOST, COMPILING))
    processes: dict[RunInfo, int] = {}
    for run in recording.runs:
        process = processes.get(run.info)
        if process is None:
            process = processes[run.info] = HOST + 1 + len(processes)
            events += _machine(run.info, process)
        events += _run(run, process)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _machine(info: RunInfo, process: int) -> Iterator[Event]:
    plan = info.plan
    yield from _named(process, f"{info.name} ({plan.carrier}, {plan.schedule})")
    yield from _named(process, "runs", RUNS)


def _run(run: Run, process: int) -> Iterator[Event]:
    if run.ended is None:
        return
    about = {
        "examples": run.examples,
        "why": run.info.plan.why,
        **plain_options(run.info),
        **outcomes_of(run),
    }
    yield _span(run.info.name, run.began, run.ended, process, RUNS, **about)
    figures = tick_figures(run)
    if figures is not None:
        yield from _ticks(figures, process)
        return
    known = ended_over_time(run)
    for second, ended in zip(*known, strict=True) if known is not None else ():
        yield _counter("examples ended", run.began + second, process, examples=int(ended))


def _ticks(figures: TickFigures, process: int) -> Iterator[Event]:
    times = figures.times
    for row in figures.blocks:
        yield from _named(process, f"block {row.words}", RUNS + 1 + row.pc)
    for i, (start, end) in enumerate(itertools.pairwise(times)):
        first, last = int(figures.edges[i]), int(figures.edges[i + 1])
        for row in figures.blocks:
            lanes, ticks = float(figures.advanced[i, row.pc]), int(figures.ran[i, row.pc])
            if ticks:
                yield _span(
                    row.words,
                    start,
                    end,
                    process,
                    RUNS + 1 + row.pc,
                    lanes=round(lanes / ticks, 2),
                    ran_in_ticks=ticks,
                    first_tick=first,
                    ticks=last - first,
                )
        yield _counter("occupancy", start, process, busy=round(float(figures.occupancy[i]), 4))
        yield _counter("examples ended", start, process, examples=int(figures.ended[i]))
        if figures.linked.has_calls:
            yield _counter("stack depth", start, process, frames=int(figures.depth[i]))
    yield _counter("occupancy", times[-1], process, busy=0)


def _named(process: int, name: str, thread: int | None = None) -> list[Event]:
    kind = "process_name" if thread is None else "thread_name"
    return [{"name": kind, "ph": "M", "pid": process, "tid": thread or 0, "args": {"name": name}}]


def _span(name: str, began: float, ended: float, process: int, thread: int, **about: Any) -> Event:
    return {
        "name": name,
        "ph": "X",
        "ts": round(began * 1e6, 3),
        "dur": round(max(ended - began, 0.0) * 1e6, 3),
        "pid": process,
        "tid": thread,
        "args": about,
    }


def _counter(name: str, at: float, process: int, **values: float) -> Event:
    return {"name": name, "ph": "C", "ts": round(at * 1e6, 3), "pid": process, "args": values}
