"""`schedule="levels"`: control first, then the values level by level (`dynamic/levels.py`).

It needs the host: the slice runs, and what it recorded decides what is compiled and run next. So it is for calls
outside `jit`, where the operands that decide control are known. `differentiable` serves `jax.grad` around such a call:
there, the other operands may be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.errors import OptionError, Outcome
from lanewise.core.events import Whole
from lanewise.core.outcomes import blank
from lanewise.dynamic.code import NotSliced
from lanewise.dynamic.levels import ByLevels, by_levels
from lanewise.job.job import Job, lanes_first
from lanewise.job.plan import HostRun, Plan, shaped


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Programs whose control does not depend on expensive values."""
    refused = obstacle(job)
    if refused is not None:
        return f'schedule="levels" cannot run `{job.program.name}`: {refused}. Use schedule="auto".'
    return Plan(job, "ticks", schedule, why)


def obstacle(job: Job) -> str | None:
    """What keeps a job from being run by levels."""
    options = job.options
    if options.stats or options.max_steps:
        name = "stats" if options.stats else "max_steps"
        return f"{name} counts the ticks of a machine, and there is none"
    if job.streamed or job.room is not None or job.program.sums:
        return "it is fed, or the sweep of a gradient"
    try:
        by_levels(job.program, job.varying, options.max_depth)
    except NotSliced as error:
        return str(error)
    return None


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """Inside `jit` nothing is known."""
    raise OptionError(
        f'schedule="levels" runs `{plan.job.program.name}` outside jit: the values that decide control have to be known'
        ' before the rest runs. Leave jit away (what runs is compiled anyway), or use schedule="auto".'
    )


def on_host(plan: Plan) -> HostRun:
    """Control, then values."""

    def whole(operands: Sequence[Any]) -> list[Any]:
        site = plan.site
        watched = None if site is None else Whole(site, operands)
        found = _ran(plan.job, operands, operands, gradient=False)
        if watched is not None:
            watched.ended(next(iter(found), None))
        return found

    return whole


def can_decide(job: Job, operands: Sequence[Any]) -> bool:
    """Whether the operands that decide control are known."""
    own = _own(job)
    return all(not isinstance(operands[i], _jax.Tracer) for i in own.reads)


def differentiable(job: Job, known: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """The run as a function of operands that JAX may differentiate; control is that of the known ones."""
    return lambda operands: _ran(job, known, operands, gradient=True)


def _own(job: Job) -> ByLevels:
    return by_levels(job.program, job.varying, job.options.max_depth)


def _ran(
    job: Job, known: Sequence[Any], operands: Sequence[Any], *, gradient: bool
) -> list[Any]:
    own = _own(job)
    # Only operands that decide need to be values, and only those are touched here.
    flags = [i in own.reads for i in range(len(known))]
    read = [x if flag else None for x, flag in zip(known, flags, strict=True)]
    mapped = tuple(
        axes if flag else (False,) * len(job.lanes)
        for axes, flag in zip(job.mapped, flags, strict=True)
    )
    deciding, _ = lanes_first(read, job.lanes, mapped)
    decided = own.decide(deciding, job.examples)
    flat, _ = lanes_first(operands, job.lanes, job.mapped)
    answers = own.answers(decided, flat, job.examples, gradient=gradient)
    if decided.code.any():
        failed = decided.code != int(Outcome.DONE)
        answers = [
            jnp.where(failed.reshape(-1, *[1] * (x.ndim - 1)), blank(x.dtype), x).astype(x.dtype)
            for x in answers
        ]
    code, site = jnp.asarray(decided.code), jnp.asarray(decided.site)
    return shaped((answers, code, site, []), job)
