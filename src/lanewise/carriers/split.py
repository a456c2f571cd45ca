"""A program run in two parts (`dynamic/hoist.py`): calls by levels, then the rest by whatever `auto` picks.

Both are `program_p`, so derivatives go through them as through any two programs. A lane that fails in the first half
has no answers for the second, which is then run for the others alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError, Outcome
from lanewise.core.outcomes import blank
from lanewise.core.program import Program, program_p
from lanewise.dynamic.hoist import Split, split
from lanewise.job.job import Job, of_rows, with_axes


@dataclass(frozen=True, eq=False)
class InTwo:
    """A job of a program that is run in two parts."""

    job: Job
    split: Split

    @property
    def words(self) -> str:
        """What is run by levels."""
        return f"by levels: {', '.join(self.split.calls)}; the rest takes the answers"

    @functools.cached_property
    def first(self) -> Job:
        """The job of the calls that are made first."""
        job, stage = self.job, self.split.first
        none = [(False,) * len(job.lanes)] * len(stage.constants)
        options = job.options.updated(schedule="levels")
        return Job(
            stage.program, job.lanes, tuple(stage.given(job.mapped, none)), options, job.platform
        )

    @functools.cached_property
    def rest(self) -> Job:
        """The job of what takes their answers."""
        job, stage = self.job, self.split.rest
        none = [(False,) * len(job.lanes)] * len(stage.constants)
        mapped = (*stage.given(job.mapped, none), *self.first.answer_axes)
        options = job.options.updated(schedule="auto")
        return Job(stage.program, job.lanes, mapped, options, job.platform)

    def __call__(self, *operands: Any) -> list[Any]:
        """The job's results; operands may have derivatives to be taken."""
        job, first = self.job, self.first
        answers, code, site = _bound(first, self.split.first.given(operands), job.program)
        given = [*self.split.rest.given(operands), *answers]
        if isinstance(code, _jax.Tracer):
            raise OptionError(
                f"Call `{job.program.name}` outside jit, or without throw=False: a part of it is run by levels, and how"
                " lanes ended there has to be known before the rest runs."
            )
        failed = _jax.to_host(code) != int(Outcome.DONE)
        if not failed.any():
            found, code, site = _bound(self.rest, given, job.program)
            axes = self.rest.answer_axes
            found = [
                with_axes(*each, job.lanes)
                for each in zip(found, axes, job.answer_axes, strict=True)
            ]
        else:
            found, code, site = self._of_others(given, failed.reshape(-1), code, site)
        ended = [code, site] if job.program.gives_outcomes(job.options) else []
        return [*found, *ended]

    def _of_others(
        self, operands: Sequence[Any], failed: np.ndarray, code: Any, site: Any
    ) -> tuple[list[Any], Any, Any]:
        """The rest for lanes that have not failed; blank answers for the others."""
        job, rest = self.job, self.rest
        rows = np.flatnonzero(~failed)
        flat = [
            jnp.full((job.examples, *aval.shape), blank(aval.dtype), aval.dtype)
            for aval in job.program.out_avals
        ]
        code, site = jnp.asarray(code).reshape(-1), jnp.asarray(site).reshape(-1)
        if len(rows):
            taken, mapped = of_rows(operands, rows, job.lanes, rest.mapped)
            own = Job(rest.program, rows.shape, mapped, rest.options, job.platform)
            found, codes, sites = _bound(own, taken, job.program)
            found = [
                with_axes(x, has, (True,), rows.shape)
                for x, has in zip(found, own.answer_axes, strict=True)
            ]
            flat = [x.at[rows].set(each) for x, each in zip(flat, found, strict=True)]
            code, site = code.at[rows].set(codes), site.at[rows].set(sites)
        apart = [x.reshape(*job.lanes, *x.shape[1:]) for x in flat]
        answers = [
            with_axes(x, (True,) * len(job.lanes), axes, job.lanes)
            for x, axes in zip(apart, job.answer_axes, strict=True)
        ]
        return answers, code.reshape(job.lanes), site.reshape(job.lanes)


@functools.lru_cache(maxsize=512)
def in_two(job: Job) -> InTwo:
    """How a job of a program that has no slice is run in two parts. Raises `NotSliced`.

    Recursions that wait for values are only searched where the caller asked for levels: the share of the work in their
    first calls is not known.
    """
    return InTwo(job, split(job.program, job.varying, job.options.schedule == "levels"))


def _bound(job: Job, operands: Sequence[Any], whole: Program) -> tuple[list[Any], Any, Any]:
    """Answers, codes, and sites by the numbers that these have in the whole program."""
    outs = program_p.bind(
        *operands, program=job.program, lanes=job.lanes, mapped=job.mapped, options=job.options
    )
    num = len(job.program.out_avals)
    if len(outs) == num:
        return outs, jnp.zeros(job.lanes, jnp.int32), jnp.full(job.lanes, -1, jnp.int32)
    answers, (code, site) = outs[:num], outs[num:]
    numbers = {each: i for i, each in enumerate(whole.sites)}
    own = np.array([*(numbers.get(each, -1) for each in job.program.sites), -1], np.int32)
    if job.program.sites != whole.sites:
        site = jnp.asarray(own)[site]
    return answers, code, site
