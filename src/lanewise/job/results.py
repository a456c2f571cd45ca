"""What a run hands back: answers with their lane axes apart, then outcomes and statistics if they are wanted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.outcomes import counts
from lanewise.job.job import Job

# Answers of all examples, their outcome codes and sites, and the statistics of the run.
Ran = tuple[list[Any], Any, Any, list[Any]]


def shaped(ran: Ran, job: Job) -> list[Any]:
    """What a run of all lanes gives, with the lane axes of the job."""
    values, code, site, stats = ran
    out = []
    for value, axes, aval in zip(values, job.answer_axes, job.program.out_avals, strict=True):
        apart = value.reshape(*job.lanes, *value.shape[1:])
        if aval.weak_type:
            # Kernels know nothing of weak types.
            apart = _jax.convert_to_aval(apart, aval)
        # All entries along an axis that the answer does not depend on are the same.
        out.append(apart[tuple(slice(None) if has else 0 for has in axes)])
    if job.program.gives_outcomes(job.options):
        out += [code.reshape(job.lanes), site.reshape(job.lanes)]
    return _with_records(out + (list(stats) if job.options.stats else []), job)


def none_failed(answers: list[Any], job: Job) -> list[Any]:
    """The same for answers of a run that cannot fail and has no ticks."""
    lanes, width = job.lanes, job.examples
    if job.program.gives_outcomes(job.options):
        answers += [jnp.zeros(lanes, jnp.int32), jnp.full(lanes, -1, jnp.int32)]
    ticks = 1 if width else 0
    stats = counts(ticks, ticks, width, width, steps=0, deepest=0) if job.options.stats else []
    return _with_records([*answers, *stats], job)


def _with_records(out: list[Any], job: Job) -> list[Any]:
    return out if job.room is None else [*out, jnp.int32(job.room.records)]


def of_no_lanes(job: Job) -> list[Any]:
    """The same for a batch of no examples: nothing runs."""

    def empty(leaf: Any) -> Any:
        return jnp.broadcast_to(leaf, (*job.lanes, *leaf.shape))

    return none_failed(
        [jax.tree.map(empty, _jax.zeros(aval)) for aval in job.program.out_avals], job
    )


def apart(job: Job) -> bool:
    """Whether what some lanes give can take its place among what the others gave.

    Statistics are of one run, and what is the same for all lanes of an axis belongs to none of them.
    """
    return not job.options.stats and all(map(all, job.answer_axes))
