"""`schedule="levels"`: control first, then the values level by level (`dynamic/levels.py`).

It needs the host: the slice runs, and what it recorded decides what is compiled and run next. So it is for calls
outside `jit`, where the operands that decide control are known. `differentiable` serves `jax.grad` around such a call:
there, the other operands may be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
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
        found = _decided(plan.job, operands, gradient=False)(operands)
        if watched is not None:
            watched.ended(next(iter(found), None))
        return found

    return whole


def can_decide(job: Job, operands: Sequence[Any]) -> bool:
    """Whether the operands that decide control are known."""
    return all(not isinstance(operands[i], _jax.Tracer) for i in _own(job).reads)


def differentiable(job: Job, operands: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """The run as a function of operands that JAX may differentiate; control is that of these, and runs now."""
    with jax.ensure_compile_time_eval():
        return _decided(job, operands, gradient=True)


def _own(job: Job) -> ByLevels:
    return by_levels(job.program, job.varying, job.options.max_depth)


def _decided(
    job: Job, known: Sequence[Any], *, gradient: bool
) -> Callable[[Sequence[Any]], list[Any]]:
    """The run with control decided: by operands of which only those that decide are looked at."""
    own = _own(job)
    flags = [i in own.reads for i in range(len(known))]
    read = [x if flag else None for x, flag in zip(known, flags, strict=True)]
    mapped = tuple(
        axes if flag else (False,) * len(job.lanes)
        for axes, flag in zip(job.mapped, flags, strict=True)
    )
    deciding, _ = lanes_first(read, job.lanes, mapped)
    values = own.values(own.decide(deciding, job.examples), job.examples, gradient=gradient)

    def run(operands: Sequence[Any]) -> list[Any]:
        flat, _ = lanes_first(operands, job.lanes, job.mapped)
        answers = values(flat)
        code, site = values.decided.code, values.decided.site
        if code.any():
            failed = code != int(Outcome.DONE)
            answers = [
                jnp.where(failed.reshape(-1, *[1] * (x.ndim - 1)), blank(x.dtype), x).astype(x.dtype)
                for x in answers
            ]
        return shaped((answers, jnp.asarray(code), jnp.asarray(site), []), job)

    return run
