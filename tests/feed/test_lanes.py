"""Refill where frames are lanes: the slot of an example that has ended takes the next one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from comparing import assert_same, take
from corpus import case_named
from lanewise.core.errors import Outcome
from lanewise.machine import frames


def arguments(name: str, number: int) -> tuple[Any, tuple[Any, ...]]:
    case = case_named(name)
    return case.program, jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(7), number))


def in_order(program: Any, *args: Any, **options: Any) -> Any:
    return lw.vmap(program, carrier="ticks", schedule="lowest", **options)(*args)


@pytest.mark.parametrize("name", ["fibonacci", pytest.param("sprout", marks=pytest.mark.slow)])
def test_more_examples_than_lanes(name: str) -> None:
    program, args = arguments(name, 23)
    expected = in_order(program, *args)
    found, stats = lw.vmap(program, lanes=3, schedule="fork", stats=True)(*args)
    assert_same(found, expected, 1e-6)
    assert stats.steps == in_order(program, *args, stats=True)[1].steps
    plan = lw.inspect(program.with_options(schedule="fork", lanes=3), *args).plan
    assert (plan.schedule, plan.job.width) == ("fork", 3)
    assert "refilled" in plan.why


@lw.program
def picky(n, bad):
    """Forks of two, and loops that spawn."""
    assert n != bad, "bad"
    total = n
    for k in range(n):
        total += picky(n - 1 - k, bad)
    return total if n < 2 else total + picky(n - 2, bad) - picky(n - 2, bad + 1)


def test_a_lane_takes_nothing_of_the_example_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples that fail, and those that come after them, in an arena of hardly more than one way down."""
    monkeypatch.setattr(frames, "SLOTS_A_LANE", 1)
    monkeypatch.setattr(frames, "FEWEST_SLOTS", 3)
    monkeypatch.setattr(frames, "MOST_SLOTS", 3)
    n = jnp.arange(19) % 5
    bad = jnp.where(jnp.arange(19) % 4 == 0, 1, 9)
    run = jax.jit(
        lambda *args: lw.vmap(picky, lanes=3, schedule="fork", throw=False, max_depth=5)(*args)
    )
    found, outcomes = run(n, bad)
    expected, same = in_order(picky, n, bad, throw=False)
    assert_same(found, expected, 0)
    assert outcomes.code.tolist() == same.code.tolist()
    assert outcomes.site.tolist() == same.site.tolist()
    assert {int(c) for c in outcomes.code} == {int(Outcome.DONE), int(Outcome.ASSERTION_FAILED)}


def test_a_stream_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come as they are ready; the arena grows on the way."""
    monkeypatch.setattr(frames, "FEWEST_SLOTS", 4)
    monkeypatch.setattr(frames, "MOST_SLOTS", 4)
    program, (numbers,) = arguments("fibonacci", 17)
    options = {"lanes": 3, "schedule": "fork"}
    found = dict(lw.stream(program, iter(np.asarray(numbers)), **options))
    expected = in_order(program, numbers)
    assert [int(found[i]) for i in range(17)] == expected.tolist()


@pytest.mark.slow
def test_a_stream_of_examples_that_fail() -> None:
    examples = [(n % 5, 1 if n % 4 == 0 else 9) for n in range(14)]
    n, bad = (jnp.array(column) for column in zip(*examples, strict=True))
    expected, outcomes = in_order(picky, n, bad, throw=False)
    given = (tuple(map(jnp.int32, example)) for example in examples)
    found = list(lw.stream(picky, given, lanes=3, schedule="fork", throw=False, ordered=True))
    assert [i for i, _ in found] == list(range(14))
    for i, value in found:
        if outcomes.code[i] == int(Outcome.DONE):
            assert int(value) == int(expected[i])
        else:
            assert isinstance(value, lw.Failure)


@lw.program
def grows(weight, x, depth):
    h = jnp.tanh(weight @ x)
    if depth <= 0 or h[0] > 0.5:
        return h
    total = grows(weight, h + 0.3, depth - 1) - grows(weight, 0.5 - h, depth - 2)
    for k in range(depth):
        total += grows(weight, h * (0.3 + 0.1 * k), depth - 2 - k)
    return jnp.tanh(weight @ total) + 0.1 * x


@pytest.mark.slow
def test_gradients_of_refilled_lanes() -> None:
    """Tapes of the example before are not those of the next."""
    rng = np.random.default_rng(5)
    with jax.enable_x64(True):
        weight = jnp.asarray(rng.normal(size=(6, 6)) / 2)
        x, depth = jnp.asarray(rng.normal(size=(9, 6))), jnp.arange(9) % 4

        def loss(weight: Any, x: Any, **options: Any) -> Any:
            return (lw.vmap(grows, (None, 0, 0), **options)(weight, x, depth) ** 2).sum()

        expected = jax.grad(lambda *args: loss(*args, carrier="ticks", schedule="sweep"), (0, 1))
        found = jax.jit(jax.grad(lambda *a: loss(*a, schedule="fork", lanes=2, tape=64), (0, 1)))
        assert_same(found(weight, x), expected(weight, x), 1e-10)


@pytest.mark.slow
def test_progress_changes_no_answer() -> None:
    program, args = arguments("fibonacci", 9)
    found = lw.vmap(program, lanes=2, schedule="fork", progress=True)(*args)
    assert_same(found, in_order(program, *args), 0)
    alone = program.with_options(schedule="fork")(*take(0, args, 3))
    assert_same(alone, found[3], 0)
