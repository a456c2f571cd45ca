"""Calls that return at once keep no frame, and mean what they meant."""

from __future__ import annotations

import jax
import pytest

from comparing import assert_same, take
from corpus import CORPUS, Case
from lanewise.blocks.form import verify
from lanewise.blocks.leaf import leaf_calls
from lanewise.blocks.reference import interpret
from lanewise.core.options import Options
from lanewise.job.job import blocks_of
from test_corpus import batch

RECURSIVE = [
    case
    for case in CORPUS
    if case.name in ("fibonacci", "ackermann", "quicksort", "is_even", "hanoi", "nim_wins")
]


@pytest.mark.parametrize("case", RECURSIVE, ids=lambda case: case.name)
def test_answers_and_steps_stay_and_frames_are_no_more(case: Case) -> None:
    args = batch(case.name)
    staged, _ = case.program.stage(*take(case.in_axes, args, 0))
    varying = [True] * len(jax.tree.leaves(args))
    before = blocks_of(staged.program, varying, Options())
    after = verify(leaf_calls(before))
    for lane in range(4):
        _, operands = case.program.stage(*take(case.in_axes, args, lane))
        expected, found = (interpret(blocks, operands) for blocks in (before, after))
        assert_same(found.values, expected.values, 0)
        assert (found.steps, found.outcome) == (expected.steps, expected.outcome)
        assert found.deepest <= expected.deepest


def test_a_leaf_keeps_no_frame() -> None:
    (fibonacci,) = [case for case in RECURSIVE if case.name == "fibonacci"]
    staged, _ = fibonacci.program.stage(jax.numpy.int32(0))
    blocks = blocks_of(staged.program, [True], Options())
    two = [jax.numpy.int32(2)]
    assert interpret(blocks, two).deepest == 1
    assert interpret(leaf_calls(blocks), two).deepest == 0
    flagged = [block for _, block in leaf_calls(blocks).all_blocks() if block.frame]
    assert len(flagged) == 2
