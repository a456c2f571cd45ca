"""`schedule="local"`, which recurses on the host: see `machine/local.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanewise import _jax
from lanewise.core import events
from lanewise.core.errors import OptionError
from lanewise.job.job import Job, lanes_first, linked_for
from lanewise.job.plan import HostRun, Plan, shaped
from lanewise.machine.local import run_local


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Any program."""
    return Plan(job, "ticks", schedule, why, linked=linked_for(job))


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """Inside `jit` there is no host to recurse on."""
    raise OptionError(
        'schedule="local" recurses on the host and runs only outside jit; use "auto", "sweep", "most" or "lowest".'
    )


def on_host(plan: Plan) -> HostRun:
    """All lanes, block by block."""
    job, linked = plan.job, plan.linked
    assert linked is not None

    def run_all(operands: Sequence[Any]) -> list[Any]:
        flat, flags = lanes_first(operands, job.lanes, job.mapped)
        with events.on_host(plan.info), _jax.our_transfers():
            ran = run_local(linked, flat, flags, job.examples, job.options)
        return shaped(ran, job)

    return run_all
