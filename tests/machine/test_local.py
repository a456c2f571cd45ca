"""Local static autobatching: the host recurses, lanes of different frames do not meet."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.core.errors import OptionError, Outcome


@lw.program
def fib(n):
    assert n < 30, "large"
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


@lw.program
def total(n, acc):
    if n == 0:
        return acc
    return total(n - 1, acc + n)


def test_answers_and_depth() -> None:
    answers, stats = lw.vmap(fib, schedule="local", stats=True)(jnp.array([1, 8, 5]))
    assert answers.tolist() == [1, 21, 5]
    assert int(stats.deepest) == 7
    assert 0 < float(stats.occupancy) <= 1


def test_it_needs_more_runs_than_program_counters_do() -> None:
    # Different frames never run together, which is what program-counter autobatching adds.
    batch = jnp.array([8, 7, 6, 5, 4])
    _, local = lw.vmap(fib, schedule="local", stats=True)(batch)
    _, lowest = lw.vmap(fib, schedule="lowest", stats=True)(batch)
    assert int(local.steps) == int(lowest.steps)
    assert float(local.occupancy) < float(lowest.occupancy)


def test_it_does_not_run_inside_jit() -> None:
    with pytest.raises(OptionError, match=r'schedule="local".*outside jit'):
        jax.jit(lw.vmap(fib, schedule="local"))(jnp.array([1, 2]))


def test_failures_leave_the_others_alone() -> None:
    answers, outcomes = lw.vmap(fib, schedule="local", throw=False)(jnp.array([6, 30, 3]))
    assert answers.tolist() == [8, 0, 2]
    assert outcomes.code.tolist() == [0, Outcome.ASSERTION_FAILED, 0]
    answers, outcomes = lw.vmap(fib, schedule="local", throw=False, max_depth=4)(
        jnp.array([5, 6, 1])
    )
    assert answers.tolist() == [5, 0, 1]
    assert outcomes.code.tolist() == [0, Outcome.STACK_OVERFLOW, 0]
    answers, outcomes = lw.vmap(fib, schedule="local", throw=False, max_steps=9)(
        jnp.array([4, 5, 1])
    )
    assert answers.tolist() == [3, 0, 1]
    assert outcomes.code.tolist() == [0, Outcome.STEPS_EXHAUSTED, 0]


def test_tail_calls_cost_no_frame() -> None:
    answers, stats = lw.vmap(total, schedule="local", max_depth=1, stats=True)(
        jnp.array([300, 2]), jnp.array([0, 0])
    )
    assert answers.tolist() == [45150, 3]
    assert int(stats.deepest) == 0
