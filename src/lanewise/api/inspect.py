"""`lanewise.inspect`: a program, its blocks, their storage and cost, and how it would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanewise.api.batched import Arguments, batched, program_of
from lanewise.api.inspection import Inspection, levels_of
from lanewise.blocks.analysis import storage
from lanewise.job.job import blocks_of
from lanewise.rules.run import on_host


def inspect(fun: Callable[..., Any], *args: Any, in_axes: Any = 0, **kwargs: Any) -> Inspection:
    """Show how a program would run for these arguments, batched along `in_axes` (None for a lone call).

    Nothing runs but, where it decides how, a sample of the lanes, as in a call outside `jit`; inside it the code alone
    decides. `fun` may be a program, a plain function (lifted first) or what `lanewise.vmap` takes; options are the
    program's own.

    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.program
    ... def halvings(n):
    ...     count = 0
    ...     while n > 1:
    ...         n = n // 2
    ...         count += 1
    ...     return count
    >>> found = lw.inspect(halvings.with_options(carrier="ticks"), jnp.arange(8))
    >>> print(found.plan.schedule, "by", found.plan.carrier)
    plain by ticks
    >>> "while" in found.program.text
    True
    """
    program = program_of(fun, kwargs, "inspect")
    given = Arguments.of(args, kwargs, in_axes)
    call = batched(program, given)
    staged, varying = call.staged, call.varying
    operands = call.operands(given.leaves)
    found = on_host(call.job(operands)).plan(operands)
    blocks = (
        found.linked.program
        if found.linked
        else blocks_of(staged.program, varying, program.options)
    )
    return Inspection(
        staged.program,
        blocks,
        storage(blocks, varying),
        found,
        call.lanes[0] if call.lanes else None,
        program.options,
        levels_of(found),
    )
