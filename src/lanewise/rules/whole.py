"""A batch in which no lanes diverge as a program of one lane, whose gradient is taken as such."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from lanewise import _jax
from lanewise.blocks.equations import tests_many
from lanewise.core.options import Options
from lanewise.core.program import Function, Program
from lanewise.job.job import Mapped, job_for
from lanewise.plan.choose import plan
from lanewise.rules.run import execute


@functools.lru_cache(maxsize=512)
def whole_batch(
    program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options, platform: str
) -> Program | None:
    """A program in which no lanes diverge, for all lanes at once: a program of one lane.

    Its gradient sums over lanes inside its matrix products, where a program for each lane would give each an adjoint of
    all that they share.
    """
    job = job_for(program, lanes, mapped, options, platform=platform).as_it_runs()
    if job.examples == 0 or not plan(job).plain:
        return None
    axes = [itertools.compress(lanes, has) for has in mapped]
    avals = [
        _jax.shaped((*sizes, *aval.shape), aval.dtype, aval.weak_type)
        for sizes, aval in zip(axes, program.operand_avals, strict=True)
    ]

    def run(*operands: Any) -> list[Any]:
        return execute(
            *operands,
            program=program,
            lanes=lanes,
            mapped=mapped,
            options=options.updated(schedule="plain"),
        )

    traced = _jax.trace(run, avals)
    if traced.captures or any(map(tests_many, _jax.equations(traced.jaxpr.eqns))):
        return None
    functions = {program.entry: Function(program.entry, traced.jaxpr)}
    return Program(functions, program.entry, whole=lanes)
