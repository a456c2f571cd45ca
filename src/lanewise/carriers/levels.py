"""`schedule="levels"`: control first, then the values level by level (`dynamic/levels.py`).

It needs the host: the slice runs, and what it recorded decides what is compiled and run next. So it is for calls
outside `jit`, where the operands that decide control are known. `rules/levels.py` differentiates them.

A program where only some calls have control that can run first is run in two parts (`split.py`). Where there are none
either, and the caller asked for levels, loops on values are run inside levels (`dynamic/ending.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lanewise import _jax
from lanewise.carriers.decided import decided, own
from lanewise.carriers.split import InTwo, in_two
from lanewise.core import events
from lanewise.core.errors import OptionError
from lanewise.dynamic.code import NotSliced
from lanewise.dynamic.levels import by_levels
from lanewise.dynamic.shown import shown
from lanewise.job.job import Job
from lanewise.job.plan import HostRun, Plan


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Programs whose control does not depend on expensive values, or with calls of that kind."""
    refused = obstacle(job)
    if refused is not None:
        return f'schedule="levels" cannot run `{job.program.name}`: {refused}. Use schedule="auto".'
    parts = in_parts(job)
    return Plan(job, "ticks", schedule, why if parts is None else f"{why}; {parts.words}")


def obstacle(job: Job) -> str | None:
    """Why a job cannot be run by levels, whole or in part."""
    found = _whole(job)
    if not isinstance(found, NotSliced):
        return found
    try:
        in_two(job)
        return None
    except NotSliced as error:
        apart = str(error)
    try:
        own(job)
    except NotSliced as error:
        return f"{error}; {apart}"
    return None


@functools.lru_cache(maxsize=512)
def _whole(job: Job) -> str | NotSliced | None:
    """Why control cannot be run first for all of a job: an option, or what it depends on."""
    options = job.options
    if options.stats or options.max_steps:
        name = "stats" if options.stats else "max_steps"
        return f"{name} counts the ticks of a machine, and there is none"
    if job.streamed or job.room is not None or job.program.sums:
        return "it is fed, or the sweep of a gradient"
    try:
        by_levels(job.program, job.varying, options.max_depth)
    except NotSliced as error:
        return error
    return None


def in_parts(job: Job) -> InTwo | None:
    """How a job runs of which a part is run by levels; None if all of it is."""
    if not isinstance(_whole(job), NotSliced):
        return None
    try:
        return in_two(job)
    except NotSliced:
        return None


def products(job: Job) -> float:
    """The most operations in matrix products that a piece has."""
    parts = in_parts(job)
    return own(job if parts is None else parts.first).pieces.products


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """Inside `jit` no value is known."""
    raise OptionError(
        f"Call `{plan.job.program.name}` outside jit and outside other programs (what runs is compiled anyway), or use"
        ' schedule="auto": with schedule="levels" the values that decide control have to be known before the rest runs.'
        " `jax.grad` around it is fine; `lanewise.grad` makes a program of the function it is given."
    )


def on_host(plan: Plan) -> HostRun:
    """Control, then values."""
    parts = in_parts(plan.job)
    if parts is not None:
        # Each of the two reports its own runs.
        return lambda operands: parts(*operands)

    def whole(operands: Sequence[Any]) -> list[Any]:
        with events.on_host(plan.info):
            return decided(plan.job, operands, gradient=False)(operands)

    return whole


def described(plan: Plan) -> str:
    """How a program is run by levels, or why it is not."""
    refused = obstacle(plan.job)
    if refused is not None:
        return f"not batched inside each lane: {refused}"
    if plan.schedule != "levels":
        return 'possible (schedule="levels"), and not expected to pay'
    parts = in_parts(plan.job)
    return shown(own(plan.job)) if parts is None else _described(parts)


def _described(parts: InTwo) -> str:
    first = f"by levels: {', '.join(parts.split.calls)}"
    why = f"not by levels: the rest, as {_whole(parts.job)}"
    return "\n".join([first, why, *parts.split.stays, shown(own(parts.first))])


def can_decide(
    job: Job, operands: Sequence[Any], known: Callable[[Any], bool] = _jax.has_value
) -> bool:
    """Whether the operands that decide control are known, if only with derivatives to be taken."""
    parts = in_parts(job)
    if parts is not None:
        return can_decide(parts.first, parts.split.first.given(operands), known)
    return all(known(operands[i]) for i in own(job).reads)


def can_decide_with_batch(job: Job, operands: Sequence[Any]) -> bool:
    """Whether they are known to the whole of a batch, which takes derivatives of each of its examples."""
    return can_decide(job, operands, _jax.is_there)
