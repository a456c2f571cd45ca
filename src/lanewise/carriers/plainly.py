"""JAX's own batching: structured code under `jax.vmap`, one call for each lane axis. It cannot fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from lanewise.blocks.divergence import one_lane
from lanewise.core.events import Whole
from lanewise.job.job import Job
from lanewise.job.plan import HostRun, Plan, compiled, none_failed


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Any program that is structured control flow alone."""
    if not job.can_be_plain:
        return (
            'schedule="plain" is JAX\'s own batching, which has no recursion, assertions or max_steps;'
            ' use schedule="auto".'
        )
    return Plan(job, "ticks", schedule, why)


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """All lanes, as JAX batches them."""
    job = plan.job
    info = plan.info
    whole = None if info is None else Whole(info, operands)
    batched = one_lane(job.program)
    for level in reversed(range(len(job.lanes))):
        axes = tuple(0 if flags[level] else None for flags in job.mapped)
        outs = [0 if flags[level] else None for flags in job.answer_axes]
        batched = jax.vmap(batched, in_axes=axes, out_axes=outs, axis_size=job.lanes[level])
    out = batched(*operands)
    if whole is not None:
        whole.ended(next(iter(out), None))
    return none_failed(out, job)


def on_host(plan: Plan) -> HostRun:
    """The same, compiled in one piece."""
    return compiled(lambda *operands: run(plan, operands))
