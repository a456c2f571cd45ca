"""Forward mode: the JVP of a program is another program (`diff/jvp.py`), bound in its place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lanewise import _jax
from lanewise._jax import ad
from lanewise.core.options import Options
from lanewise.core.program import Program, program_p
from lanewise.job.axes import Mapped, with_axes
from lanewise.job.job import answer_axes
from lanewise.rules.sums import axes_with_sums


def _jvp_program(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...] = (),
) -> tuple[list[Any], list[Any]]:
    moving = tuple(type(t) is not ad.Zero for t in tangents)
    given = list(itertools.compress(tangents, moving))
    axes = tuple(itertools.compress(mapped, moving))
    answers, moved, rest = push_forward(
        primals, given, moving, program, lanes, mapped, axes, mapped, options, summed
    )
    tangent_outs = [
        _jax.zero_tangent(x) if tangent is None else tangent
        for x, tangent in zip(answers, moved, strict=True)
    ]
    return [*answers, *rest], [*tangent_outs, *(_jax.zero_tangent(x) for x in rest)]


def push_forward(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    moving: tuple[bool, ...],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    tangents_mapped: Mapped,
    wanted_as: Mapped,
    options: Options,
    summed: tuple[int, ...] = (),
) -> tuple[list[Any], list[Any], list[Any]]:
    """Answers of a program, their tangents (`None` for those that have none), and what else it gives.

    `tangents` are those of the operands that move. Answers and tangents have the lane axes that answers have where the
    operands have those of `wanted_as`.
    """
    # Imported where it is used, as most who import Lanewise do not differentiate.
    from lanewise.diff.jvp import jvp_program

    derived = jvp_program(program, moving)
    captured = program.num_captures
    moved = sum(moving[:captured])
    operands = [*primals[:captured], *tangents[:moved], *primals[captured:], *tangents[moved:]]
    all_mapped = (
        *mapped[:captured],
        *tangents_mapped[:moved],
        *mapped[captured:],
        *tangents_mapped[moved:],
    )
    inexact = [i for i, aval in enumerate(program.out_avals) if _jax.has_tangent(aval)]
    # What is summed has a tangent that is.
    all_summed = (*summed, *(len(program.out_avals) + inexact.index(i) for i in summed))
    outs = program_p.bind(
        *operands,
        program=derived,
        lanes=lanes,
        mapped=all_mapped,
        options=options,
        summed=all_summed,
    )
    # The derived program may find that an answer, or its tangent alone, is the same for all lanes of an axis.
    wanted = axes_with_sums(answer_axes(program, wanted_as, options, lanes), summed, lanes)
    wanted = [*wanted, *(wanted[i] for i in inexact)]
    found = answer_axes(derived, all_mapped, options, lanes)
    found = axes_with_sums(found, all_summed, lanes)
    rest = outs[len(found) :]
    outs = [with_axes(*each, lanes) for each in zip(outs[: len(found)], found, wanted, strict=True)]
    answers, given = outs[: len(program.out_avals)], iter(outs[len(program.out_avals) :])
    found_tangents = [next(given) if i in inexact else None for i in range(len(answers))]
    return answers, found_tangents, rest


ad.primitive_jvps[program_p] = _jvp_program
