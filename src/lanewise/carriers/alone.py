"""What the carriers that run each lane on its own have in common.

Such a carrier takes the next example when one ends, for any number of lanes. A stack has a size with which its code is
called: outside `jit` lanes whose stacks were full run again with more room (`rerun.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from lanewise.blocks.link import Linked
from lanewise.core.options import DEPTH_INSIDE_JIT
from lanewise.grow.memory import most_depth, refuse_too_large
from lanewise.grow.rerun import Rerun
from lanewise.job.job import lanes_first, of_rows
from lanewise.job.plan import Around, HostRun, Plan, Ran, apart, compiled, shaped


class RunLanes(Protocol):
    """Runs lanes: operands with one lane axis, how many frames a stack holds, and whether an interrupt ends the run."""

    def __call__(self, plan: Plan, operands: Sequence[Any], capacity: int, stops: bool) -> Ran: ...


def obstacle(carrier: str, where: str, platform: str | None, schedule: str) -> str | None:
    """Why a carrier of lanes on their own refuses a job, whatever its program is; None if it does not."""
    if schedule != "auto":
        return (
            f"carrier={carrier!r} runs each lane on its own and has no schedule; leave out"
            f' schedule={schedule!r}, or use carrier="ticks".'
        )
    if platform is not None and platform != where:
        return (
            f"carrier={carrier!r} runs on a {where.upper()}, and this is {platform!r}; use"
            ' carrier="auto".'
        )
    return None


def run_inside_jit(plan: Plan, operands: Sequence[Any], lanes: RunLanes) -> list[Any]:
    """The run as traceable code."""
    refuse_too_large(plan.job, None, 1, inside_jit=True)
    capacity = plan.job.options.max_depth or DEPTH_INSIDE_JIT
    return _run(plan, operands, lanes, capacity, stops=False)


def run_on_host(
    plan: Plan,
    lanes: RunLanes,
    around: Around,
    linked: Linked,
    in_flight: int,
    first: int,
) -> HostRun:
    """The run outside `jit`, where `around` lets an interrupt end it.

    `in_flight` lanes have stacks at a time, of `first` frames at first.
    """
    job = plan.job
    refuse_too_large(job, None, 1, inside_jit=False)

    def whole(*operands: Any, capacity: int = 1) -> list[Any]:
        return _run(plan, operands, lanes, capacity, stops=True)

    if not job.program.recursive:
        return compiled(whole, around)

    def part(*operands: Any, rows: Any, capacity: int) -> list[Any]:
        taken, axes = of_rows(operands, rows, job.lanes, job.mapped)
        some = replace(plan, job=replace(job, lanes=rows.shape, mapped=axes))
        return _run(some, taken, lanes, capacity, stops=True)

    most = most_depth(linked, in_flight, job.options)
    codes = job.program.num_results
    again = Rerun(whole, part if apart(job) else None, codes, min(first, most), most, around)
    return again.run_growing


def _run(
    plan: Plan, operands: Sequence[Any], lanes: RunLanes, capacity: int, stops: bool
) -> list[Any]:
    flat, _ = lanes_first(operands, plan.job.lanes, plan.job.mapped)
    return shaped(lanes(plan, flat, capacity, stops), plan.job)
