"""Calls of loops at the same time: what is collected is what calls in order give, whatever room there is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from comparing import assert_same, take
from corpus import case_named
from lanewise.blocks.flatten import flatten
from lanewise.blocks.reference import interpret
from lanewise.blocks.simplify import simplify
from lanewise.carriers import forking
from lanewise.core.errors import Outcome
from lanewise.machine import frames
from lanewise.rules import forward


def in_order(program: Any, *args: Any, in_axes: Any = 0, **options: Any) -> Any:
    return lw.vmap(program, in_axes=in_axes, carrier="ticks", schedule="lowest", **options)(*args)


def at_once(program: Any, *args: Any, in_axes: Any = 0, **options: Any) -> Any:
    return lw.vmap(program, in_axes=in_axes, schedule="fork", **options)(*args)


@pytest.fixture
def small_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly more slots than one way down needs."""
    monkeypatch.setattr(frames, "SLOTS_A_LANE", 1)
    monkeypatch.setattr(frames, "FEWEST_SLOTS", 3)
    monkeypatch.setattr(frames, "MOST_SLOTS", 3)


def corpus(name: str, lanes: int) -> tuple[Any, Any, tuple[Any, ...]]:
    case = case_named(name)
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(2), lanes))
    return case.program, case.in_axes, args


@pytest.mark.parametrize("name", ["sprout", "child_sum"])
def test_a_lane_is_what_the_reference_says(name: str) -> None:
    program, axes, args = corpus(name, 11)
    assert (
        lw.inspect(program.with_options(schedule="fork"), *args, in_axes=axes).plan.schedule
        == "fork"
    )
    found = at_once(program, *args, in_axes=axes)
    for lane in (0, 5, 10):
        staged, operands = program.stage(*take(axes, args, lane))
        varying = [True] * len(staged.program.operand_avals)
        alone = interpret(simplify(flatten(staged.program, varying)), list(operands))
        assert_same([x[lane] for x in jax.tree.leaves(found)], alone.values, 1e-5)
    assert_same(found, in_order(program, *args, in_axes=axes), 1e-6)


@pytest.mark.parametrize("name", ["sprout", pytest.param("branching", marks=pytest.mark.slow)])
def test_a_full_arena_collects_before_it_spawns_more(small_arena: None, name: str) -> None:
    # Inside jit the arena cannot grow: lanes, one way down of as many slots as a turn makes calls, and three more.
    program, _, args = corpus(name, 7)
    run = jax.jit(lambda *args: at_once(program, *args, max_depth=5))
    assert_same(run(*args), in_order(program, *args), 1e-6)


@pytest.mark.slow
def test_the_arena_grows_outside_jit(small_arena: None) -> None:
    @lw.program
    def deep(n):
        total = jnp.int32(1)
        for k in range(jnp.minimum(n, 3)):
            total = (total * 3 + deep(n - 1 - 200 * k)) % 1009
        return total

    depths = jnp.array([3, 150, 301])
    assert_same(at_once(deep, depths), in_order(deep, depths), 0)


@lw.record
class Node:
    label: float
    children: list[Node]


@lw.program
def mean(node):
    """An order matters to a sum of floats, and to this."""
    total = node.label * 1.0
    for child in node.children:
        total = 0.5 * total + mean(child)
    return total


def test_no_children_and_a_thousand() -> None:
    rng = np.random.default_rng(3)
    wide = Node(1.0, [Node(float(x), []) for x in rng.normal(size=1000)])
    below = Node(2.0, [Node(3.0, []), Node(4.0, [Node(5.0, [])]), wide])
    forest = lw.pack([Node(6.0, []), wide, below])
    assert_same(at_once(mean, forest), in_order(mean, forest), 0)
    # Of a thousand calls 259 are in the arena at a time.
    assert frames.FEWEST_SLOTS < 1000


@lw.program
def picky(n, bad, worse):
    assert n != bad, "bad"
    total = n
    for k in range(n):
        total += picky(n - 1 - k, bad, worse)
    assert n != worse, "worse"
    return total


def test_lanes_that_fail_leave_no_slots_behind(small_arena: None) -> None:
    """What fails first in order is what a lane says, and the others have the arena to themselves."""
    n, never = jnp.array([5, 6, 5, 5, 5, 0, 6, 6, 5]), 9
    bad = jnp.array([never, never, 0, 2, never, 0, 1, never, 4])
    worse = jnp.array([never, never, 5, 3, 4, never, 0, never, never])
    run = jax.jit(lambda *args: at_once(picky, *args, throw=False, max_depth=7))
    found, outcomes = run(n, bad, worse)
    expected, in_order_outcomes = in_order(picky, n, bad, worse, throw=False)
    assert_same(found, expected, 0)
    assert outcomes.code.tolist() == in_order_outcomes.code.tolist()
    assert outcomes.site.tolist() == in_order_outcomes.site.tolist()


@pytest.mark.slow
def test_frames_that_are_too_deep_end_their_example(small_arena: None) -> None:
    n, never = jnp.array([3, 4, 0, 6, 2]), jnp.full(5, 9)
    run = jax.jit(lambda *args: at_once(picky, *args, throw=False, max_depth=3))
    found, outcomes = run(n, never, never)
    assert outcomes.code.tolist() == [
        int(Outcome.STACK_OVERFLOW if deep else Outcome.DONE) for deep in n > 3
    ]
    assert_same(found, jnp.where(n > 3, 0, in_order(picky, n, never, never)), 0)


@lw.program
def grows(weight, bias, x, depth):
    """How many children a node has is decided by its value; all lanes share the weights."""
    h = jnp.tanh(weight @ x + bias)
    more = jnp.where(depth <= 0, 0, jnp.asarray(jnp.abs(h[0]) * 8.0, jnp.int32) % 4)
    total = jnp.zeros_like(h)
    for k in range(more):
        total = 0.8 * total + grows(weight, bias, h * (1.0 + 0.2 * k), depth - 1 - k % 2) * h
    return jnp.tanh(weight @ total - 0.3 * h)


def gradient_arguments(lanes: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    depth = jnp.arange(lanes) % 4
    return rng.normal(size=(4, 4)) / 2, 0.3 * rng.normal(size=4), rng.normal(size=(lanes, 4)), depth


def loss(weight: Any, bias: Any, x: Any, depth: Any, **options: Any) -> Any:
    run = lw.vmap(grows, (None, None, 0, 0), **options)
    return (run(weight, bias, x, depth) ** 2).sum()


def test_gradients_fork_and_are_those_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[str] = []
    real = forking.offer

    def offer(job: Any, schedule: str, why: str) -> Any:
        found = real(job, schedule, why)
        plans.append(f"{job.program.name} {getattr(found, 'schedule', found)}")
        return found

    monkeypatch.setattr(forking, "offer", offer)
    with jax.enable_x64(True):
        args = jax.tree.map(jnp.asarray, gradient_arguments(6))
        run = jax.grad(lambda *args: loss(*args, schedule="fork", tape=128), (0, 1, 2))
        found = jax.jit(run)(*args)
        assert plans == ["forward(grows) fork", "reverse(grows) fork"]
        in_order_too = jax.grad(
            lambda *args: loss(*args, carrier="ticks", schedule="sweep"), (0, 1, 2)
        )
        assert_same(found, in_order_too(*args), 1e-10)


@pytest.mark.slow
def test_gradients_in_a_full_arena_and_with_tapes_that_grow(
    small_arena: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "FIRST_RECORDS", 2)
    with jax.enable_x64(True):
        args = jax.tree.map(jnp.asarray, gradient_arguments(5))
        expected = jax.grad(lambda *args: loss(*args, carrier="ticks", schedule="sweep"))(*args)
        run = jax.jit(jax.grad(lambda *args: loss(*args, schedule="fork", tape=128, max_depth=5)))
        assert_same(run(*args), expected, 1e-10)
        assert_same(jax.grad(lambda *args: loss(*args, schedule="fork"))(*args), expected, 1e-10)


@pytest.mark.slow
def test_a_scan_of_calls_has_gradients() -> None:
    case = case_named("branching")
    with jax.enable_x64(True):
        x, depth = jnp.linspace(0.1, 0.9, 5), jnp.arange(5) % 4

        def total(x: Any, **options: Any) -> Any:
            return lw.vmap(case.program, **options)(x, depth).sum()

        found = jax.jit(jax.grad(lambda x: total(x, schedule="fork", tape=256)))(x)
        assert_same(found, jax.grad(lambda x: total(x, carrier="ticks"))(x), 1e-10)


@lw.program
def branches(weight, x, depth):
    """Two calls, each in a branch of its own; a value decides about one."""
    h = jnp.tanh(weight @ x)
    total = h
    if depth % 3 != 0:
        total += 0.5 * branches(weight, h + 0.1, depth - 1)
    if depth > 0 and h[0] < 0.5:
        total = jnp.cos(total) * branches(weight, 0.5 - h, depth - 2)
    return jnp.tanh(weight @ total)


def test_calls_in_branches_in_a_full_arena(small_arena: None) -> None:
    weight, _, x, _ = gradient_arguments(7)
    args = (jnp.asarray(weight, jnp.float32), jnp.asarray(x, jnp.float32), jnp.arange(7) % 6)
    axes = (None, 0, 0)
    run = jax.jit(lambda *args: at_once(branches, *args, in_axes=axes, max_depth=6))
    assert_same(run(*args), in_order(branches, *args, in_axes=axes), 1e-6)


@pytest.mark.slow
def test_calls_in_branches_have_gradients() -> None:
    with jax.enable_x64(True):
        weight, _, x, depth = jax.tree.map(jnp.asarray, gradient_arguments(7))

        def total(weight: Any, x: Any, **options: Any) -> Any:
            return (lw.vmap(branches, (None, 0, 0), **options)(weight, x, depth) ** 2).sum()

        found = jax.jit(jax.grad(lambda *a: total(*a, schedule="fork", tape=64), (0, 1)))
        expected = jax.grad(lambda *a: total(*a, carrier="ticks", schedule="sweep"), (0, 1))
        assert_same(found(weight, x), expected(weight, x), 1e-10)
