"""A machine that is refilled, in the phases that a host runs it in (`grow/growing.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanewise.feed.refill import Flow, Refill, flow_moved
from lanewise.grow.growing import Phases
from lanewise.job.job import lanes_first
from lanewise.job.plan import Plan, shaped
from lanewise.machine import observe


def refilled(plan: Plan, most: int) -> Phases:
    """The phases of a plan whose lanes are refilled; `most` is as deep as frames can be."""
    job, linked = plan.job, plan.linked
    assert linked is not None
    refill = Refill(linked, job.width, job.examples, job.varying, job.options, plan.schedule, most)

    def flat(operands: Sequence[Any]) -> list[Any]:
        return lanes_first(operands, job.lanes, job.mapped)[0]

    def begin(capacity: int, *operands: Any) -> Flow:
        flow = refill.start(capacity, flat(operands))
        machine = observe.watched(flow.machine, plan.info, linked.halt, operands)
        return flow.with_(machine=machine)

    def grown(flow: Flow, linked: Any, capacity: int) -> Flow:
        del linked
        return flow.with_(machine=refill.machine.grown(flow.machine, capacity))

    return Phases(
        start=begin,
        run=lambda flow, *operands: refill.run(flow, flat(operands)),
        finish=lambda flow: shaped(refill.finish(flow), job),
        machine=lambda flow: flow.machine,
        with_machine=lambda flow, machine: flow.with_(machine=machine),
        grown=grown,
        moved=flow_moved,
    )
