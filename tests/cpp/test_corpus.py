"""Every program of the corpus, as a kernel compiled by the host's C++ compiler, answers what one lane answers.

Nothing is left out: a program that a kernel cannot carry fails here, by the name of the operation.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import needs
from comparing import assert_same, lane_axes, lanes_of, take
from corpus import CORPUS, Case, case_named
from cpp.checking import words
from lanewise.blocks.link import link
from lanewise.blocks.reference import interpret
from lanewise.core.errors import OptionError, Outcome
from lanewise.core.options import Options
from lanewise.cpp.kernels import kernel_for
from lanewise.cpp.toolchain import host
from lanewise.job.job import blocks_of
from test_corpus import batch, one_at_a_time

SIZE = 17
FRAMES = 1024
# Loops pause often, so that what happens at a pause is tested as well.
PAUSES_OFTEN = "-DLW_TURNS=3"


def operands_of(case: Case, args: Any) -> tuple[Any, list[Any], list[bool]]:
    """The staged program, its operands with an axis of lanes where they vary, and which do."""
    staged, one = case.program.stage(*take(case.in_axes, args, 0))
    captures = staged.program.num_captures
    axes = lane_axes(case.in_axes, args)
    varying = [False] * captures + [axis is not None for axis in axes]
    return staged.program, [*one[:captures], *jax.tree.leaves(args)], varying


CARRIED = [case for case in CORPUS if not case.ticks_only]


@pytest.mark.parametrize("case", needs.in_turns(CARRIED), ids=lambda case: case.name)
def test_the_kernel_answers_what_one_lane_answers(case: Case) -> None:
    args = take(case.in_axes, batch(case.name), slice(SIZE))
    program, operands, varying = operands_of(case, args)
    emitted = kernel_for(program, tuple(varying), Options())
    lanes = lanes_of(case.in_axes, args)
    given = [words(x) for x in operands]
    flags = (*host.FLAGS, PAUSES_OFTEN)
    ran = host.run(emitted, given, lanes, capacity=FRAMES, flags=flags)
    assert (ran.code == int(Outcome.DONE)).all()
    assert_same(ran.answers, take(0, one_at_a_time(case.name), slice(SIZE)), case.rtol)


LIMITED = (
    "collatz",
    "fibonacci",
    "checked",
    "recursive_nuts",
    "quicksort",
    "is_even",
    "deep_break",
)


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("limit", [3, 9])
def test_outcomes_steps_and_depth_are_those_of_the_reference(name: str, limit: int) -> None:
    case = case_named(name)
    args = take(case.in_axes, batch(name), slice(SIZE))
    program, operands, varying = operands_of(case, args)
    options = Options(max_steps=8 * limit, stats=True)
    emitted = kernel_for(program, tuple(varying), options)
    lanes = lanes_of(case.in_axes, args)
    ran = host.run(emitted, [words(x) for x in operands], lanes, capacity=limit, threads=2)
    blocks = link(blocks_of(program, varying, options), varying).program
    for lane in range(lanes):
        mine = [x[lane] if varies else x for x, varies in zip(operands, varying, strict=True)]
        wanted = interpret(blocks, mine, max_steps=8 * limit, max_depth=limit)
        assert ran.code[lane] == int(wanted.outcome)
        assert ran.site[lane] == wanted.site
        assert ran.deepest[lane] == wanted.deepest
        if wanted.values is None:
            for answer in ran.answers:
                blank = answer[lane]
                assert np.all(np.isnan(blank) if answer.dtype.kind in "fc" else blank == 0)
        else:
            assert ran.steps[lane] == wanted.steps
            assert_same([a[lane] for a in ran.answers], wanted.values, case.rtol)


@pytest.mark.parametrize(
    "case", [case for case in CORPUS if case.ticks_only], ids=lambda case: case.name
)
def test_what_a_kernel_cannot_hold_is_refused_by_name(case: Case) -> None:
    program, _, varying = operands_of(case, take(case.in_axes, batch(case.name), slice(2)))
    with pytest.raises(OptionError, match=r'cannot carry .* Use carrier="ticks"'):
        kernel_for(program, tuple(varying), Options())
