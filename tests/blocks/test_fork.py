"""Calls that do not wait for one another become one fork, and forks mean what calls in order mean."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from comparing import assert_same, take
from corpus import CORPUS, Case, case_named
from lanewise.blocks.flatten import flatten
from lanewise.blocks.fork import forked, widest_fork
from lanewise.blocks.form import Block, BlockProgram, Fork, verify
from lanewise.blocks.reference import interpret
from lanewise.blocks.simplify import simplify
from lanewise.blocks.text import print_program
from lanewise.core.errors import InternalError, Outcome

RECURSIVE = [case for case in CORPUS if case.recursive]


def blocks_of(fun: Any, *args: Any) -> tuple[BlockProgram, list[Any]]:
    staged, operands = fun.stage(*args)
    varying = [True] * len(staged.program.operand_avals)
    return simplify(flatten(staged.program, varying), check=verify), list(operands)


def forks_of(program: BlockProgram) -> list[tuple[Block, Fork]]:
    ends = ((block, block.terminator) for _, block in program.all_blocks())
    return [(block, end) for block, end in ends if isinstance(end, Fork)]


def width(fun: Any, *args: Any) -> float:
    return widest_fork(forked(blocks_of(fun, *args)[0], check=verify))


@pytest.mark.parametrize("case", RECURSIVE, ids=lambda case: case.name)
def test_forks_mean_what_calls_in_order_mean(case: Case) -> None:
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), 2))
    in_order, operands = blocks_of(case.program, *take(case.in_axes, args, 1))
    expected = interpret(in_order, operands)
    found = interpret(forked(in_order, check=verify), operands)
    assert_same(found.values, expected.values, 0)
    assert (found.outcome, found.steps, found.deepest) == (
        expected.outcome,
        expected.steps,
        expected.deepest,
    )


def test_which_programs_of_the_corpus_fork() -> None:
    widths = {}
    for name in (
        *("fibonacci", "tak", "fold_tree", "hanoi", "ackermann", "power"),
        *("partitions", "sprout", "branching", "child_sum", "fibonacci_sums"),
    ):
        case = case_named(name)
        args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), 2))
        widths[name] = width(case.program, *take(case.in_axes, args, 0))
    assert widths == {
        "fibonacci": 2,
        "tak": 3,
        "fold_tree": 2,
        "hanoi": 1,  # the second call takes what the first gave
        "ackermann": 1,
        "power": 1,
        "partitions": math.inf,  # loops of calls
        "sprout": math.inf,
        "branching": math.inf,
        "child_sum": math.inf,
        "fibonacci_sums": math.inf,
    }


@lw.program
def between(x, n):
    if n <= 0:
        return x
    left = between(0.5 * x, n - 1)
    doubled = 2.0 * left  # waits for the first call, and nothing of the second waits for it
    right = between(jnp.sin(x), n - 2)
    return doubled - right


def test_what_stands_between_moves_up_or_down() -> None:
    program, operands = blocks_of(between, jnp.float32(0.7), jnp.int32(4))
    found = forked(program, check=verify)
    ((fork, end),) = forks_of(found)
    assert len(end.calls) == 2
    assert "sin" in [eqn.primitive.name for eqn in fork.eqns]
    assert_same(interpret(found, operands).values, interpret(program, operands).values, 0)


@lw.program
def feeds(n):
    if n <= 0:
        return n + 1
    first = feeds(n - 1)
    return first + feeds(n - 2 - first % 2)


@lw.program
def decides(n):
    if n <= 0:
        return n + 1
    first = decides(n - 1)
    if first > 3:
        return first
    return first + decides(n - 2)


@lw.program
def guarded(n):
    if n <= 0:
        return n + 1
    first = guarded(n - 1)
    assert first < 100, "too many"
    return first + guarded(n - 2)


@pytest.mark.parametrize("fun", [feeds, decides, guarded], ids=lambda fun: fun.__name__)
def test_calls_that_wait_stay_in_order(fun: Any) -> None:
    assert width(fun, jnp.int32(5)) == 1


def test_a_block_that_forks_reads_no_results() -> None:
    """`tak` by loops of forks: each fork's arguments are what the fork before it gave."""

    @lw.program
    def again(x, n):
        if n <= 0:
            return x
        y = again(x, n - 1) + again(x + 1, n - 1)
        z = again(y, n - 2) + again(y + 1, n - 3)
        return z % 1000

    program, operands = blocks_of(again, jnp.int32(3), jnp.int32(5))
    found = forked(program, check=verify)
    forks = forks_of(found)
    given = {var for _, end in forks for call in end.calls for var in call.results}
    assert [len(end.calls) for _, end in forks] == [2, 2]
    for block, _ in forks:
        read = {a for eqn in block.eqns for a in eqn.invars if not hasattr(a, "val")}
        assert not read & given
    assert_same(interpret(found, operands).values, interpret(program, operands).values, 0)


def test_text() -> None:
    program, _ = blocks_of(case_named("fibonacci").program, jnp.int32(3))
    found = forked(program)
    text = print_program(found)
    # Its name has a number where another test has traced it before.
    assert "fork" in text and text.count(f"<- {found.entry_function.name}(") == 2, text


def test_the_verifier_knows_forks() -> None:
    program, _ = blocks_of(case_named("fibonacci").program, jnp.int32(3))
    found = forked(program)
    function = found.entry_function
    for block in function.blocks:
        if isinstance(block.terminator, Fork):
            call = block.terminator.calls[0]
            object.__setattr__(block, "terminator", Fork((call, call), block.terminator.target))
    with pytest.raises(InternalError, match="forks into a variable twice"):
        verify(found)


def test_depth_is_bounded() -> None:
    program, operands = blocks_of(case_named("fibonacci").program, jnp.int32(9))
    found = forked(program)
    assert interpret(found, operands, max_depth=3).outcome is Outcome.STACK_OVERFLOW
    assert interpret(found, operands, max_depth=9).outcome is Outcome.DONE
