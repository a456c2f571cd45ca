"""Frames as lanes: what forks give is what calls in order give, whatever room there is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from comparing import assert_same, take
from corpus import CORPUS, Case, case_named
from lanewise.carriers import forking
from lanewise.core.errors import Outcome
from lanewise.machine import frames
from lanewise.rules import forward

# Compiling takes seconds each; `make test-full` runs all.
FORKING = ("fold_tree",)


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


@lw.program
def noisy(key, x, depth):
    """Values decide how deep it goes, by random numbers of the lane."""
    key, left, right = jax.random.split(key, 3)
    if depth <= 0 or jax.random.uniform(key) < 0.25:
        return x
    a = noisy(left, jnp.sin(x) + 0.1, depth - 1)
    b = noisy(right, jnp.cos(x), depth - 2)
    return a - 0.5 * b


def noisy_arguments(lanes: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(3), lanes)
    return keys, jnp.linspace(0.1, 1.0, lanes), jnp.arange(lanes, dtype=jnp.int32) % 9


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=() if c.name in FORKING else pytest.mark.slow)
        for c in CORPUS
        if c.recursive
    ],
)
def test_corpus(case: Case) -> None:
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(2), 9))
    found = at_once(case.program, *args, in_axes=case.in_axes)
    assert_same(found, in_order(case.program, *args, in_axes=case.in_axes), case.rtol)


def test_a_lane_does_not_depend_on_its_neighbours() -> None:
    args = noisy_arguments(17)
    together = jax.jit(lambda *args: at_once(noisy, *args))(*args)
    for lane in (0, 8, 16):
        alone = noisy.with_options(schedule="fork")(*take(0, args, lane))
        assert_same(alone, together[lane], 1e-6)
    assert_same(together, in_order(noisy, *args), 1e-6)


def test_a_full_arena_goes_depth_first(small_arena: None) -> None:
    args = noisy_arguments(13)
    expected = in_order(noisy, *args)
    # Inside jit the arena cannot grow: lanes, one way down, and three slots.
    run = jax.jit(lambda *args: at_once(noisy, *args, max_depth=8))
    assert_same(run(*args), expected, 1e-6)


@pytest.mark.slow
def test_a_full_arena_and_forks_of_three(small_arena: None) -> None:
    case = case_named("tak")
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(2), 5))
    run = jax.jit(lambda *args: at_once(case.program, *args, max_depth=40))
    assert_same(run(*args), in_order(case.program, *args), 0)


def test_one_way_down_is_enough(small_arena: None) -> None:
    """Lanes that go as deep as they may, in an arena that holds one of them."""

    @lw.program
    def chain(n):
        if n <= 0:
            return 0
        return 1 + chain(n - 1) + chain(0)

    depths = jnp.array([6, 6, 0, 6, 5, 6])
    run = jax.jit(lambda n: at_once(chain, n, max_depth=5, throw=False))
    answers, outcomes = run(depths)
    assert (outcomes.code == int(Outcome.STACK_OVERFLOW)).tolist() == (depths > 5).tolist()
    assert jnp.where(depths > 5, 0, answers).tolist() == [0, 0, 0, 0, 5, 0]


def test_the_arena_grows_outside_jit(small_arena: None) -> None:
    @lw.program
    def deep(n):
        if n <= 0:
            return jnp.int32(1)
        return deep(n - 1) + deep(n - 300)

    depths = jnp.array([3, 200, 301])
    assert_same(at_once(deep, depths), in_order(deep, depths), 0)


def test_what_fails_first_in_order_is_what_a_lane_says() -> None:
    @lw.program
    def picky(n, bad, worse):
        assert n != bad, "bad"
        if n <= 0:
            return n
        left = picky(n - 1, bad, worse)
        right = picky(n - 2, bad, worse)
        assert n != worse, "worse"
        return left + right

    args = (jnp.array([5, 5, 5, 5, 0]), jnp.array([9, 0, 2, 9, 0]), jnp.array([9, 5, 3, 4, 9]))
    found, outcomes = at_once(picky, *args, throw=False)
    expected, outcomes_in_order = in_order(picky, *args, throw=False)
    assert_same(found, expected, 0)
    assert outcomes.code.tolist() == outcomes_in_order.code.tolist()
    assert outcomes.site.tolist() == outcomes_in_order.site.tolist()
    with pytest.raises(lw.LaneError, match="worse"):
        at_once(picky, *args)


@pytest.mark.slow
def test_steps_are_counted_for_the_lane() -> None:
    case = case_named("fibonacci")
    numbers = jnp.arange(12)
    found, outcomes, stats = at_once(case.program, numbers, max_steps=60, throw=False, stats=True)
    expected, outcomes_in_order, same = in_order(
        case.program, numbers, max_steps=60, throw=False, stats=True
    )
    assert_same(found, expected, 0)
    assert outcomes.code.tolist() == outcomes_in_order.code.tolist()
    whole = at_once(case.program, numbers, stats=True)[1]
    assert whole.steps == in_order(case.program, numbers, stats=True)[1].steps
    assert (whole.deepest, stats.deepest <= 11) == (10, True)
    assert same.deepest <= 11


@pytest.mark.slow
def test_depth_is_bounded_outside_jit() -> None:
    case = case_named("fibonacci")
    numbers = jnp.arange(9)
    found, outcomes = at_once(case.program, numbers, max_depth=4, throw=False)
    expected, outcomes_in_order = in_order(case.program, numbers, max_depth=4, throw=False)
    assert outcomes.code.tolist() == outcomes_in_order.code.tolist()
    assert_same(found, expected, 0)


def test_programs_inside_programs() -> None:
    """What an inner program closes over reaches all its frames."""

    @lw.program
    def outer(x, n):
        scale = jnp.sin(x) + 2.0

        @lw.program
        def inner(y, k):
            if k <= 0:
                return y * scale
            return inner(y + x, k - 1) + inner(y - scale, k - 2)

        return inner(x, n) - inner(scale, n - 1)

    args = (jnp.linspace(0.0, 1.0, 7), jnp.arange(7) % 6)
    assert_same(at_once(outer, *args), in_order(outer, *args), 1e-6)


@pytest.mark.slow
def test_two_lane_axes_and_shared_arguments() -> None:
    case = case_named("adaptive_simpson")
    scale = jnp.linspace(0.1, 0.9, 6).reshape(2, 3)
    program = case.program.with_options(schedule="fork")

    def all_of(f: Any) -> Any:
        over = jax.vmap(jax.vmap(f, (0, None, None, None)), (0, None, None, None))
        return over(scale, 0.0, 1.0, 1e-3)

    assert_same(all_of(program), all_of(case.program.with_options(carrier="ticks")), 1e-5)


def test_no_examples() -> None:
    assert at_once(case_named("fibonacci").program, jnp.zeros(0, jnp.int32)).shape == (0,)


def test_what_does_not_fork_is_swept() -> None:
    case = case_named("hanoi")
    args = case.examples(np.random.default_rng(0), 3)
    found = lw.inspect(case.program.with_options(schedule="fork"), *args)
    assert found.plan.schedule == "sweep"
    assert "no two calls" in found.plan.why


@lw.program
def grows(weight, x, depth):
    """Values decide how far it goes down; all lanes share the weight."""
    h = jnp.tanh(weight @ x)
    if depth <= 0 or h[0] > 0.5:
        return h
    left = grows(weight, h + 0.3, depth - 1)
    right = grows(weight, 0.5 - h, depth - 2)
    return jnp.tanh(weight @ (left - right)) + 0.1 * x


def loss(weight: Any, x: Any, depth: Any, **options: Any) -> Any:
    run = lw.vmap(grows, (None, 0, 0), **options)
    return (run(weight, x, depth) ** 2).sum()


def gradient_arguments(lanes: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    weight = jnp.asarray(rng.normal(size=(6, 6)) / 2, jnp.float32)
    return weight, jnp.asarray(rng.normal(size=(lanes, 6)), jnp.float32), jnp.arange(lanes) % 6


def plans_of(fun: Any, *args: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """What a function gives, and the schedules of the jobs that were offered to fork."""
    offered: list[str] = []
    real = forking.offer

    def offer(job: Any, schedule: str, why: str) -> Any:
        found = real(job, schedule, why)
        offered.append(f"{job.program.name} {getattr(found, 'schedule', found)}")
        return found

    monkeypatch.setattr(forking, "offer", offer)
    return fun(*args), offered


@pytest.mark.slow
def test_both_sweeps_of_a_gradient_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    args = gradient_arguments(7)
    found, offered = plans_of(
        jax.jit(jax.grad(lambda *args: loss(*args, schedule="fork", tape=64), (0, 1))),
        *args,
        monkeypatch=monkeypatch,
    )
    assert offered == ["forward(grows) fork", "reverse(grows) fork"]
    expected = jax.grad(lambda *args: loss(*args, carrier="ticks"), (0, 1))(*args)
    assert_same(found, expected, 1e-4)


@pytest.mark.slow
def test_tapes_grow_outside_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "FIRST_RECORDS", 2)
    args = gradient_arguments(5)
    found = jax.grad(lambda *args: loss(*args, schedule="fork"))(*args)
    assert_same(found, jax.grad(lambda *args: loss(*args, carrier="ticks"))(*args), 1e-4)


@pytest.mark.slow
def test_a_full_tape_is_an_outcome_inside_jit() -> None:
    weight, x, depth = gradient_arguments(6)

    def answers(x: Any) -> Any:
        run = lw.vmap(grows, (None, 0, 0), schedule="fork", tape=4, throw=False)
        values, outcomes = run(weight, x, depth)
        return values.sum(), outcomes

    (_, outcomes), _ = jax.jit(jax.value_and_grad(answers, has_aux=True))(x)
    nodes = [int(c) for c in outcomes.code]
    assert nodes[0] == int(Outcome.DONE)
    assert int(Outcome.TAPE_FULL) in nodes


@pytest.mark.slow
def test_gradients_in_a_full_arena(small_arena: None) -> None:
    args = gradient_arguments(5)
    run = jax.jit(jax.grad(lambda *args: loss(*args, schedule="fork", tape=64, max_depth=7)))
    assert_same(run(*args), jax.grad(lambda *args: loss(*args, carrier="ticks"))(*args), 1e-4)


@pytest.mark.slow
def test_second_derivatives_are_those_in_order() -> None:
    program = case_named("adaptive_simpson").program

    def total(scale: Any, **options: Any) -> Any:
        return program.with_options(tape=64, **options)(scale, 0.0, 1.0, 1e-1)

    scale = jnp.float32(0.3)
    found = jax.jit(jax.grad(jax.grad(lambda s: total(s, schedule="fork"))))(scale)
    expected = jax.jit(jax.grad(jax.grad(lambda s: total(s))))(scale)
    assert_same(found, expected, 1e-3)


def wide_arguments(lanes: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    weight = jnp.asarray(rng.normal(size=(160, 160)) / 12, jnp.float32)
    return weight, jnp.asarray(rng.normal(size=(lanes, 160)), jnp.float32), jnp.arange(lanes) % 6


@needs.compiler
def test_auto_forks_where_lanes_are_few_and_values_decide() -> None:
    def planned(program: Any, *args: Any) -> Any:
        return lw.inspect(program, *args, in_axes=(None, 0, 0)).plan

    few = planned(grows, *wide_arguments(4))
    assert few.schedule == "fork"
    assert "do not wait for one another" in few.why
    assert planned(grows, *wide_arguments(64)).schedule == "one lane"
    assert planned(grows, *gradient_arguments(4)).schedule != "fork"

    @lw.program
    def known(weight, x, depth):
        """Control does not wait for values."""
        h = jnp.tanh(weight @ x)
        if depth <= 0:
            return h
        return known(weight, h + 0.3, depth - 1) - known(weight, 0.5 - h, depth - 2)

    # Lanes this few meet at a high cost.
    assert planned(known, *wide_arguments(4)).carrier == "native"


@pytest.mark.slow
@needs.compiler
def test_gradients_fork_where_auto_does(monkeypatch: pytest.MonkeyPatch) -> None:
    args = wide_arguments(3)
    found, offered = plans_of(
        jax.jit(jax.grad(lambda *args: loss(*args, tape=64))), *args, monkeypatch=monkeypatch
    )
    assert {"forward(grows) fork", "reverse(grows) fork"} <= set(offered)
    expected = jax.grad(lambda *args: loss(*args, carrier="ticks", schedule="sweep"))(*args)
    assert_same(found, expected, 1e-3)
