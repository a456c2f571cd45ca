"""The carrier `ticks`: all lanes at once on XLA, by a machine that ticks (`machine/ticking.py`).

It runs any program anywhere, with refill or without. Outside `jit` the host makes room on stacks and tapes
(`growing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lanewise.core.options import DEPTH_INSIDE_JIT
from lanewise.feed.phases import refilled
from lanewise.grow.growing import Growing, Phases
from lanewise.grow.larger import moved
from lanewise.grow.memory import FIRST_DEPTH, most_depth, refuse_too_large
from lanewise.job.job import Job, lanes_first, linked_for
from lanewise.job.plan import HostRun, Plan, shaped
from lanewise.machine import observe
from lanewise.machine.narrowing import run_shrinking, widths_for
from lanewise.machine.schedule import num_expensive
from lanewise.machine.state import State, grown, initial_state
from lanewise.machine.ticking import answers, statistics


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Any program."""
    return Plan(job, "ticks", schedule, why, linked=linked_for(job))


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """A machine whose stacks hold a fixed number of frames."""
    assert plan.linked is not None
    capacity = plan.job.options.max_depth or DEPTH_INSIDE_JIT
    refuse_too_large(plan.job, plan.linked, capacity, inside_jit=True)
    phases = phases_of(plan, capacity)
    return phases.finish(phases.run(phases.start(capacity, *operands), *operands))


def on_host(plan: Plan) -> HostRun:
    """A machine in which the host makes room."""
    return growing(plan).run_growing


def growing(plan: Plan) -> Growing:
    """The same, which records how far it has grown."""
    job, linked = plan.job, plan.linked
    assert linked is not None
    most = most_depth(linked, job.width, job.options)
    refuse_too_large(job, linked, min(FIRST_DEPTH, most), inside_jit=False)
    return Growing(
        phases_of(plan, most),
        linked,
        job.width,
        most,
        num_expensive(linked, job.width, plan.schedule),
        _larger(plan) if linked.waiting else None,
        watched=job.options.watched,
    )


def _larger(plan: Plan) -> Callable[[], tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]]:
    """What makes the machine of the same job with longer tapes, and says how to pass it its operands."""

    def made() -> tuple[Growing, Callable[[Sequence[Any]], Sequence[Any]]]:
        job = plan.job.larger()
        assert job is not None, "lanes wait only for tapes that can be longer"
        return growing(replace(plan, job=job, linked=linked_for(job))), job.given

    return made


def phases_of(plan: Plan, most: int) -> Phases:
    """The phases of a machine whose stacks grow to `most` frames."""
    job, linked, schedule = plan.job, plan.linked, plan.schedule
    assert linked is not None
    options, width = job.options, job.examples
    info = plan.info

    def flat(operands: Sequence[Any]) -> list[Any]:
        return lanes_first(operands, job.lanes, job.mapped)[0]

    if job.refilled:
        return refilled(plan, most)

    def start(capacity: int, *operands: Any) -> State:
        expensive = num_expensive(linked, width, schedule)
        state = initial_state(linked, flat(operands), job.varying, width, capacity, expensive)
        return observe.watched(state, info, linked.halt, operands)

    def run(state: State, *operands: Any) -> State:
        del operands
        widths = widths_for(linked, width, schedule)
        return run_shrinking(linked, state, options, schedule, widths)

    def finish(state: State) -> list[Any]:
        values, code, places = answers(linked, state)
        observe.finished(state, code, lives_of_lanes=True)
        return shaped((values, code, places, statistics(state)), job)

    return Phases(start, run, finish, lambda state: state, lambda _, state: state, grown, moved)
