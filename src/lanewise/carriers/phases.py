"""How a machine by ticks starts, runs and finishes a job, with refill or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanewise.feed.refill import Refill, flow_grown, flow_moved
from lanewise.grow.growing import Phases
from lanewise.grow.larger import moved
from lanewise.job.axes import lanes_first
from lanewise.job.plan import Plan
from lanewise.job.results import shaped
from lanewise.machine import observe
from lanewise.machine.narrowing import run_shrinking, widths_for
from lanewise.machine.schedule import num_expensive
from lanewise.machine.state import State, grown, initial_state
from lanewise.machine.ticking import answers, statistics


def phases_of(plan: Plan, most: int) -> Phases:
    """The phases of a machine whose stacks grow to `most` frames."""
    job, linked, schedule = plan.job, plan.linked, plan.schedule
    assert linked is not None
    options, width = job.options, job.examples
    site = plan.site

    def flat(operands: Sequence[Any]) -> list[Any]:
        return lanes_first(operands, job.lanes, job.mapped)[0]

    if job.refilled:
        refill = Refill(linked, job.width, width, job.varying, options, schedule, most)

        def begin(capacity: int, *operands: Any) -> Any:
            flow = refill.start(capacity, flat(operands))
            return flow.with_(machine=observe.watched(flow.machine, site, linked.halt, operands))

        return Phases(
            start=begin,
            run=lambda flow, *operands: refill.run(flow, flat(operands)),
            finish=lambda flow: shaped(refill.finish(flow), job),
            machine=lambda flow: flow.machine,
            with_machine=lambda flow, machine: flow.with_(machine=machine),
            grown=flow_grown,
            moved=flow_moved,
        )

    def start(capacity: int, *operands: Any) -> State:
        expensive = num_expensive(linked, width, schedule)
        state = initial_state(linked, flat(operands), job.varying, width, capacity, expensive)
        return observe.watched(state, site, linked.halt, operands)

    def run(state: State, *operands: Any) -> State:
        del operands
        widths = widths_for(linked, width, schedule)
        return run_shrinking(linked, state, options, schedule, widths)

    def finish(state: State) -> list[Any]:
        values, code, places = answers(linked, state)
        observe.finished(state, code, lives_of_lanes=True)
        return shaped((values, code, places, statistics(state)), job)

    return Phases(start, run, finish, lambda state: state, lambda _, state: state, grown, moved)
