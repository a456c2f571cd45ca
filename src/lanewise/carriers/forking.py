"""`schedule="fork"`: the carrier `ticks` by a machine whose frames are lanes (`machine/fork.py`).

A program of which no two calls can be made at the same time is swept instead, in order, as are programs for which the
order of calls matters: one that counts steps up to `max_steps` and may also fail otherwise, and the forward sweep of
a gradient, whose records are on a tape in the order of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanewise.blocks.fork import link_forked, most_in_a_block
from lanewise.blocks.link import Linked
from lanewise.carriers import ticks
from lanewise.core.options import DEPTH_INSIDE_JIT
from lanewise.feed.phases import refilled
from lanewise.grow.growing import Growing, Phases
from lanewise.grow.memory import FIRST_DEPTH, parts_of_answers, parts_of_state, refuse_parts
from lanewise.job.job import Job, blocks_of, lanes_first
from lanewise.job.plan import HostRun, Plan, shaped
from lanewise.machine import observe
from lanewise.machine.frames import first_frames, lanes_alone, most_frames, num_slots, with_slots
from lanewise.machine.ticking import answers, run_ticks, statistics


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Any program; one that does not fork is swept."""
    in_order = obstacle(job)
    if in_order is not None:
        return ticks.offer(job, "sweep", f"{why}, but calls are made in order: {in_order}")
    return Plan(job, "ticks", schedule, why, linked=forked_for(job))


def obstacle(job: Job) -> str | None:
    """Why the calls of a job's program are made in order; None if it forks."""
    program = job.program
    if job.options.max_steps is not None and program.sites:
        return "whether max_steps or an assertion ends an example first depends on it"
    linked = forked_for(job)
    if linked is None:
        return "no two calls of it can be made at the same time"
    if program.has_tapes and any(f.threads for f in program.functions.values()):
        return None if linked.program.state else "its records are on tapes in that order"
    return None


def products(job: Job) -> float:
    """The operations of the largest products that a block makes for one slot."""
    linked = forked_for(job)
    return max((cost.products for cost in linked.costs), default=0.0) if linked else 0.0


def forks_in_pairs(job: Job) -> bool:
    """Whether some block makes two calls or more: not one after the other, as loops and branches do."""
    linked = forked_for(job)
    return linked is not None and most_in_a_block(linked.program) > 1


def forked_for(job: Job) -> Linked | None:
    """The job's program, linked for a machine that forks; None where no two calls can be made at the same time."""
    if not job.program.recursive:
        return None
    blocks = blocks_of(job.program, job.varying, job.options)
    return link_forked(blocks, job.varying, job.profile)


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """A machine whose arena is as large as it gets."""
    capacity = plan.job.options.max_depth or DEPTH_INSIDE_JIT
    _refuse_too_large(plan, capacity, inside_jit=True)
    phases = _phases(plan, capacity)
    return phases.finish(phases.run(phases.start(capacity, *operands), *operands))


def on_host(plan: Plan) -> HostRun:
    """A machine whose arena the host makes larger."""
    linked = plan.linked
    assert linked is not None
    most = most_frames(linked, plan.job.options)
    _refuse_too_large(plan, min(FIRST_DEPTH, most), inside_jit=False)
    watched = plan.job.options.watched
    grows = Growing(_phases(plan, most), linked, plan.job.width, most, 0, None, watched=watched)
    return grows.run_growing


def _refuse_too_large(plan: Plan, capacity: int, *, inside_jit: bool) -> None:
    job, linked = plan.job, plan.linked
    assert linked is not None
    if job.platform is not None:
        slots = num_slots(linked, job.width, capacity)
        parts = parts_of_state(linked, slots, 0)
        if job.refilled:
            parts += parts_of_answers(job.program.out_avals, job.examples)
        refuse_parts(job.program, parts, slots, job.platform, inside_jit)


def _phases(plan: Plan, most: int) -> Phases:
    job, linked, info = plan.job, plan.linked, plan.info
    assert linked is not None
    lanes = job.examples

    if job.refilled:
        return refilled(plan, most)

    def start(capacity: int, *operands: Any) -> Any:
        flat = lanes_first(operands, job.lanes, job.mapped)[0]
        final = capacity >= most
        state = first_frames(linked, flat, job.varying, lanes, capacity, final)
        return observe.watched(state, info, linked.halt, operands)

    def run(state: Any, *operands: Any) -> Any:
        del operands
        return run_ticks(linked, state, lanes, job.options, plan.schedule)

    def finish(state: Any) -> list[Any]:
        alone = lanes_alone(state, linked)
        values, code, places = answers(linked, alone)
        observe.finished(alone, code, lives_of_lanes=True)
        return shaped((values, code, places, statistics(alone)), job)

    def grown(state: Any, linked: Any, capacity: int) -> Any:
        return with_slots(state, linked, capacity, capacity >= most)

    def moved(*args: Any) -> Any:
        raise AssertionError("no tape: no lane waits for one")

    return Phases(start, run, finish, lambda state: state, lambda _, state: state, grown, moved)
