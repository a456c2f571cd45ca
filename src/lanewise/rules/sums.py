"""Answers that are wanted as sums over lanes: `summed`, a parameter of `program_p`.

The adjoint of an operand that lanes share is the sum over lanes of what each lane's reverse program gives. With
`summed` the job accumulates it (`diff/accumulate.py`): no lane has an array of its own for it. What transforms such a
call further sees the program as it is, each lane's answer followed by a sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.job.job import Mapped, Params, with_axes

# Of arrays with fewer elements than this, one for each lane costs little.
FEWEST_ELEMENTS = 32


def worth_accumulating(
    program: Program, axes: Mapped, wanted: Mapped, options: Options
) -> tuple[int, ...]:
    """The answers to accumulate: those that have all lane axes and are wanted with none."""
    if not all(axes) or options.schedule in ("plain", "local"):
        return ()
    # A sum that goes from call to call would keep calls in order.
    fewest = 1 if options.schedule == "fork" else FEWEST_ELEMENTS
    return tuple(
        i
        for i, (aval, has, want) in enumerate(zip(program.out_avals, axes, wanted, strict=True))
        if has and all(has) and not any(want) and math.prod(aval.shape) >= fewest
    )


def unsummed(params: Params, *operands: Any) -> list[Any]:
    """What `program_p` gives with these parameters, by each lane's answers."""
    outs, axes = params._replace(summed=()).bind(*operands), params.answer_axes
    return [
        summed_over(x, axes[i], params.none, params.lanes) if i in params.summed else x
        for i, x in enumerate(outs)
    ]


def axes_with_sums(axes: Mapped, summed: Sequence[int], lanes: tuple[int, ...]) -> Mapped:
    """Which lane axes answers have if these of them are summed."""
    none = (False,) * len(lanes)
    return tuple(none if i in summed else has for i, has in enumerate(axes))


def summed_over(
    value: Any, has: tuple[bool, ...], wanted: tuple[bool, ...], lanes: tuple[int, ...]
) -> Any:
    """A value with the wanted lane axes: summed over those that are not."""
    extra = tuple(
        sum(has[:axis])
        for axis, (have, want) in enumerate(zip(has, wanted, strict=True))
        if have and not want
    )
    left = tuple(a and b for a, b in zip(has, wanted, strict=True))
    return with_axes(jnp.sum(value, extra) if extra else value, left, wanted, lanes)
