"""`schedule="levels"`: control first, then the values level by level (`dynamic/levels.py`).

It needs the host: the slice runs, and what it recorded decides what is compiled and run next. So it is for calls
outside `jit`, where the operands that decide control are known. `rules/levels.py` differentiates them.

A program of which only some calls have control that can run first is run in two (`split.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.blocks.flatten import operand_avals
from lanewise.carriers.split import InTwo, in_two
from lanewise.core import compiling, events
from lanewise.core.errors import OptionError, Outcome
from lanewise.core.outcomes import blank
from lanewise.core.program import Program
from lanewise.dynamic.answers import Values
from lanewise.dynamic.code import NotSliced
from lanewise.dynamic.levels import ByLevels, by_levels
from lanewise.dynamic.run import STORE
from lanewise.dynamic.shown import shown
from lanewise.job.job import Job, lanes_first
from lanewise.job.plan import HostRun, Plan, shaped


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Programs whose control does not depend on expensive values, or with calls of which that is true."""
    refused = obstacle(job)
    if refused is not None:
        return f'schedule="levels" cannot run `{job.program.name}`: {refused}. Use schedule="auto".'
    parts = in_parts(job)
    return Plan(job, "ticks", schedule, why if parts is None else f"{why}; {parts.words}")


def obstacle(job: Job) -> str | None:
    """What keeps a job from being run by levels, whole or in part."""
    found = _whole(job)
    if not isinstance(found, NotSliced):
        return found
    try:
        in_two(job)
    except NotSliced as error:
        return f"{found}; {error}"
    return None


@functools.lru_cache(maxsize=512)
def _whole(job: Job) -> str | NotSliced | None:
    """What keeps all of a job from being run by levels: an option, or its control."""
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
    return in_two(job) if isinstance(_whole(job), NotSliced) else None


def products(job: Job) -> float:
    """The most operations in matrix products that a piece has."""
    parts = in_parts(job)
    return _own(job if parts is None else parts.first).pieces.products


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """Inside `jit` nothing is known."""
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
        site = plan.site
        number = None if site is None else events.begin(site)
        found = decided(plan.job, operands, gradient=False)(operands)
        if number is not None:
            events.end(number, {})
        return found

    return whole


def described(plan: Plan) -> str:
    """How a program is run by levels, or why it is not."""
    refused = obstacle(plan.job)
    if refused is not None:
        return f"not batched inside each lane: {refused}"
    if plan.schedule != "levels":
        return 'possible (schedule="levels"), and not expected to pay'
    parts = in_parts(plan.job)
    return shown(_own(plan.job)) if parts is None else _described(parts)


def _described(parts: InTwo) -> str:
    first = f"by levels: {', '.join(parts.split.calls)}"
    why = f"not by levels: the rest, as {_whole(parts.job)}"
    return "\n".join([first, why, *parts.split.stays, shown(_own(parts.first))])


def can_decide(job: Job, operands: Sequence[Any]) -> bool:
    """Whether the operands that decide control are known."""
    parts = in_parts(job)
    if parts is not None:
        return can_decide(parts.first, parts.split.first.given(operands))
    return all(not isinstance(operands[i], _jax.Tracer) for i in _own(job).reads)


def _own(job: Job) -> ByLevels:
    return by_levels(job.program, job.varying, job.options.max_depth)


@dataclass(frozen=True, eq=False)
class Decision:
    """A job whose control is decided: what is left is a function of its operands, which may be traced."""

    job: Job
    values: Values

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """What the job gives. Tables go to the device with each run."""
        flat = flattened(operands, self.job)
        with _jax.our_transfers():
            return self._given(self.values(flat))

    def saving(self, operands: Sequence[Any], moving: Sequence[bool]) -> tuple[list[Any], Any]:
        """The same, and what the reverse reads."""
        flat = flattened(operands, self.job)
        with _jax.our_transfers():
            answers, kept = self.values.saving(flat, moving)
            return self._given(answers), kept

    def of_lanes_done(self, rows: Any, otherwise: Any = 0) -> Any:
        """Rows of all lanes, with this for those that failed."""
        code = self.values.decided.code
        if not code.any():
            return rows
        failed = (code != int(Outcome.DONE)).reshape(-1, *[1] * (rows.ndim - 1))
        return jnp.where(failed, otherwise, rows).astype(rows.dtype)

    def _given(self, answers: list[Any]) -> list[Any]:
        job, ended = self.job, self.values.decided
        answers = [self.of_lanes_done(x, blank(x.dtype)) for x in answers]
        for i in _keys(job.program)[1]:
            answers[i] = _jax.wrap_key(answers[i], job.program.out_avals[i])
        code, site = ended.code, ended.site
        if not job.options.throw:
            code, site = jnp.asarray(code), jnp.asarray(site)
        return shaped((answers, code, site, []), job)


def flattened(operands: Sequence[Any], job: Job) -> list[Any]:
    """Operands with one lane axis, typed PRNG keys as the integers that they are made of."""
    keys, _ = _keys(job.program)
    if keys:
        operands = [
            x if x is None or i not in keys else jax.random.key_data(x)
            for i, x in enumerate(operands)
        ]
    return lanes_first(operands, job.lanes, job.mapped)[0]


@functools.lru_cache(maxsize=512)
def _keys(program: Program) -> tuple[frozenset[int], frozenset[int]]:
    """The operands and the answers that are typed PRNG keys."""
    both = (operand_avals(program), program.out_avals)
    operands, answers = (
        frozenset(i for i, aval in enumerate(avals) if _jax.is_key(aval)) for avals in both
    )
    return operands, answers


def decided(job: Job, operands: Sequence[Any], *, gradient: bool) -> Decision:
    """Run the slice; of the operands only those that decide are looked at."""
    own = _own(job)
    flags = [i in own.reads for i in range(len(operands))]
    read = [x if flag else None for x, flag in zip(operands, flags, strict=True)]
    mapped = tuple(
        axes if flag else (False,) * len(job.lanes)
        for axes, flag in zip(job.mapped, flags, strict=True)
    )
    deciding = flattened(read, replace(job, mapped=mapped))
    found = own.decide(deciding, job.examples)
    made = STORE.made
    values = own.values(found, job.examples, gradient=gradient)
    if STORE.made > made:
        # What takes long from here on is the envelope, not the slice.
        words = "schedule levels: an envelope for minibatches like this one"
        compiling.watch(job.program.name, words, job.options.progress, new=True)
    return Decision(job, values)
