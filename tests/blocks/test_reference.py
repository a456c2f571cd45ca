"""The reference interpreter: answers, outcomes, steps and depth of one lane."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.blocks.reference import interpret
from lanewise.core.errors import Outcome
from programs.small import fib
from seeing import blocks_of


@lw.program
def halve(n):
    count = 0
    while n > 1:
        n = n // 2
        count += 1
    assert count < 6, "too many"
    return count


def test_answers_steps_and_depth() -> None:
    found = interpret(blocks_of(fib, jnp.int32(0)), [jnp.int32(7)])
    assert found.outcome is Outcome.DONE and found.values is not None
    assert [int(v) for v in found.values] == [13]
    assert found.steps == 41  # calls of fib(7)
    assert found.deepest == 6
    looped = interpret(blocks_of(halve, jnp.int32(0)), [jnp.int32(32)])
    assert looped.steps == 1 + 5 and looped.deepest == 0


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({"max_steps": 41}, Outcome.DONE),
        ({"max_steps": 40}, Outcome.STEPS_EXHAUSTED),
        ({"max_depth": 6}, Outcome.DONE),
        ({"max_depth": 5}, Outcome.STACK_OVERFLOW),
    ],
)
def test_limits_are_exact(limits: dict[str, Any], outcome: Outcome) -> None:
    found = interpret(blocks_of(fib, jnp.int32(0)), [jnp.int32(7)], **limits)
    assert found.outcome is outcome
    assert (found.values is None) == (outcome is not Outcome.DONE)
    _, outcomes = lw.vmap(fib, throw=False, **limits)(jnp.array([7, 1]))
    assert outcomes.code.tolist() == [int(outcome), 0]


def test_a_failed_assertion_names_its_site() -> None:
    program = blocks_of(halve, jnp.int32(0))
    found = interpret(program, [jnp.int32(1 << 10)])
    assert found.outcome is Outcome.ASSERTION_FAILED
    assert program.sites[found.site].message == "too many"


def test_simplifying_changes_no_meaning() -> None:
    from lanewise.blocks.flatten import flatten

    staged, _ = halve.stage(jnp.int32(0))
    plain = flatten(staged.program, [True])
    for n in (1, 9, 60, 1000):
        before = interpret(plain, [jnp.int32(n)])
        after = interpret(blocks_of(halve, jnp.int32(0)), [jnp.int32(n)])
        assert (before.outcome, before.site, before.steps) == (
            after.outcome,
            after.site,
            after.steps,
        )
        assert (before.values is None) == (after.values is None)
        if before.values and after.values:
            assert int(before.values[0]) == int(after.values[0])


def test_constants_and_captures() -> None:
    table = jnp.array([5.0, 7.0])

    def pick(n):
        return jax.lax.while_loop(
            lambda s: s < 50, lambda s: s + table[1] + jnp.array([1.0, 2.0])[0], n
        )

    _, operands = lw.lift(pick).stage(jnp.float32(1))
    found = interpret(blocks_of(pick, jnp.float32(0)), operands)
    assert found.values is not None and float(found.values[0]) == float(pick(1.0))
