"""Refill: more examples than lanes give the same answers, whatever the number of lanes, and full lanes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from comparing import assert_same, lanes_of, take
from corpus import CORPUS, Case
from lanewise.core.errors import OptionError, Outcome
from lanewise.feed.refill import FEWEST_NARROW_LANES, NARROWING
from programs.small import depth, fib, positive_root

SCHEDULES = ("sweep", "most", "lowest")
# The carriers that run each lane separately refill on their own.
ticked = functools.partial(lw.vmap, carrier="ticks")


@lw.program
def countdown(n):
    mixed = 0
    while n > 0:
        mixed = (mixed * 5 + n) % 1001
        n -= 1
    return mixed


def heavy_tail(size: int, seed: int = 0) -> Any:
    """Lengths of which most are short and a few are many times as long."""
    return jnp.asarray(np.random.default_rng(seed).lognormal(2.5, 1.2, size).astype(np.int32))


@functools.cache
def plain_countdown(size: int) -> Any:
    return jax.vmap(countdown)(heavy_tail(size))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("lanes", [1, 7, 64])
def test_heavy_tail(schedule: str, lanes: int) -> None:
    size = 60 if lanes == 1 else 300
    run = ticked(countdown, lanes=lanes, schedule=schedule)
    np.testing.assert_array_equal(run(heavy_tail(size)), plain_countdown(size))


def test_the_order_of_examples_does_not_matter() -> None:
    lengths, expected = heavy_tail(300), plain_countdown(300)
    order = np.random.default_rng(1).permutation(300)
    run = ticked(countdown, lanes=16)
    np.testing.assert_array_equal(run(lengths[order]), expected[order])
    np.testing.assert_array_equal(run(jnp.sort(lengths)), jax.vmap(countdown)(jnp.sort(lengths)))


@pytest.mark.parametrize("lanes", [32, 256])
def test_lanes_stay_full(lanes: int) -> None:
    lengths = jnp.asarray(np.random.default_rng(2).lognormal(6.0, 1.0, 8 * lanes).astype(np.int32))
    answers, stats = ticked(countdown, lanes=lanes, stats=True)(lengths)
    assert float(stats.occupancy) >= 0.9
    assert float(stats.lane_occupancy) >= 0.9
    unfilled, before = ticked(countdown, schedule="sweep", stats=True)(lengths)
    assert float(before.occupancy) < 0.5
    np.testing.assert_array_equal(answers, unfilled)
    # Each step is taken once, however often a lane was handed on.
    assert int(stats.steps) == int(before.steps)


def test_lanes_that_read_the_same_weights_run_together_and_full() -> None:
    rng = np.random.default_rng(3)
    layers = jnp.asarray(rng.standard_normal((12, 256, 256)) / 16, jnp.float32)

    @lw.program
    def deep(x, depth, layers):
        for i in range(depth):
            x = jnp.tanh(x @ layers[i])
        return x

    x = jnp.asarray(rng.standard_normal((1024, 256)), jnp.float32)
    depths = jnp.asarray(np.minimum(rng.geometric(0.4, 1024), 12))
    axes = (0, 0, None)
    answers, stats = ticked(deep, in_axes=axes, lanes=128, stats=True)(x, depths, layers)
    expected = ticked(deep, in_axes=axes, schedule="sweep")(x, depths, layers)
    np.testing.assert_allclose(answers, expected, atol=1e-5)
    # Lanes are at twelve layers, and a run is for one of them.
    assert float(stats.lane_occupancy) >= 0.9
    assert float(stats.expensive_occupancy) >= 0.8


def test_a_batch_that_fits_runs_as_it_would_without() -> None:
    batch = jnp.arange(8)
    assert (
        ticked(countdown, lanes=8, stats=True)(batch)[1]
        == (ticked(countdown, stats=True)(batch)[1])
    )
    assert (
        lw.inspect(countdown.with_options(lanes=8, carrier="ticks"), batch).plan.schedule == "plain"
    )
    found = lw.inspect(countdown.with_options(lanes=7, carrier="ticks"), batch)
    assert "8 examples through 7 lanes" in str(found)
    assert "7 lanes for 8 examples" in str(found)


def test_failing_examples_leave_the_others_alone() -> None:
    xs = jnp.where(jnp.arange(50) % 7 == 3, -1.0, jnp.arange(50.0))
    answers, outcomes = ticked(positive_root, lanes=4, throw=False)(xs)
    bad = np.arange(50) % 7 == 3
    np.testing.assert_array_equal(outcomes.code, np.where(bad, Outcome.ASSERTION_FAILED, 0))
    np.testing.assert_array_equal(outcomes.site, np.where(bad, 0, -1))
    alone = ticked(positive_root, throw=False)(xs)[0]
    np.testing.assert_array_equal(answers, alone)
    assert np.isnan(np.asarray(answers)[bad]).all()
    with pytest.raises(
        lw.LaneError, match=r"no root of a negative number.* in 7 of 50 lanes: 3, 10"
    ):
        ticked(positive_root, lanes=4)(xs)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_are_counted_by_example(schedule: str) -> None:
    lengths = jnp.tile(jnp.array([3, 9, 11, 30, 10]), 8)
    run = ticked(countdown, lanes=3, max_steps=11, throw=False, schedule=schedule)
    answers, outcomes = run(lengths)
    alone = ticked(countdown, max_steps=11, throw=False, schedule=schedule)(lengths)
    assert_same((answers, outcomes), alone, 0)
    assert set(outcomes.code.tolist()) == {Outcome.DONE, Outcome.STEPS_EXHAUSTED}


@pytest.mark.parametrize("lanes", [1, 5])
def test_stacks_grow(lanes: int) -> None:
    deep = jnp.tile(jnp.array([5, 300, 3, 100, 40, 0]), 8)
    answers, stats = ticked(depth, lanes=lanes, stats=True)(deep)
    np.testing.assert_array_equal(answers, deep)
    assert int(stats.deepest) == 300
    # Every call is made once: had anything been run again, there would be more steps.
    assert int(stats.steps) == int((deep + 1).sum())


def test_max_depth_ends_examples_and_not_lanes() -> None:
    deep = jnp.tile(jnp.array([5, 90, 3, 15, 90, 90]), 5)
    run = ticked(depth, lanes=2, max_depth=20, throw=False)
    for answers, outcomes in (run(deep), jax.jit(run)(deep)):
        np.testing.assert_array_equal(answers, jnp.where(deep > 20, 0, deep))
        wanted = jnp.where(deep > 20, int(Outcome.STACK_OVERFLOW), 0)
        np.testing.assert_array_equal(outcomes.code, wanted)


def test_recursion_inside_jit() -> None:
    n = jnp.arange(90) % 11
    run = jax.jit(ticked(fib, lanes=32))
    np.testing.assert_array_equal(run(n), jax.vmap(fib)(n))


def test_keys() -> None:
    def rejected(key):
        def body(state):
            key, _ = state
            key, sub = jax.random.split(key)
            return key, jax.random.uniform(sub)

        return lax.while_loop(lambda s: s[1] < 0.9, body, (key, 0.0))

    keys = jax.random.split(jax.random.key(0), 41)
    expected = ticked(rejected, schedule="sweep")(keys)
    found = ticked(rejected, lanes=4)(keys)
    assert_same(found, expected, 0)


def test_pytrees_shared_values_and_answers_all_share() -> None:
    weights = {"w": jnp.arange(9.0).reshape(3, 3) / 9, "b": jnp.ones(3)}

    @lw.program
    def iterate(state, weights):
        count = 0
        while jnp.sum(state["x"]) < state["limit"]:
            state = {"x": state["x"] + jnp.abs(weights["w"] @ state["x"]), "limit": state["limit"]}
            count += 1
        return {"count": count, "x": state["x"], "bias": weights["b"] * 2}

    rng = np.random.default_rng(0)
    states = {
        "x": jnp.asarray(rng.uniform(0.1, 1, (30, 3)), jnp.float32),
        "limit": jnp.asarray(rng.uniform(1, 1e4, 30), jnp.float32),
    }
    axes = ({"x": 0, "limit": 0}, None)
    expected = ticked(iterate, in_axes=axes, schedule="sweep")(states, weights)
    assert_same(ticked(iterate, in_axes=axes, lanes=4)(states, weights), expected, 1e-6)
    # Given arrays are the caller's still.
    assert float(weights["b"].sum()) == 3


@pytest.mark.parametrize("jitted", [False, True])
def test_zero_examples(jitted: bool) -> None:
    run = ticked(countdown, lanes=4)
    answers = (jax.jit(run) if jitted else run)(jnp.zeros((0,), jnp.int32))
    assert answers.shape == (0,)


def test_under_jit_and_inside_a_loop() -> None:
    lengths, expected = heavy_tail(300), plain_countdown(300)
    run = ticked(countdown, lanes=16)
    np.testing.assert_array_equal(jax.jit(run)(lengths), expected)
    twice = jax.jit(lambda n: lax.map(run, jnp.stack([n, n[::-1]])))(lengths)
    np.testing.assert_array_equal(twice, jnp.stack([expected, expected[::-1]]))


def test_forward_mode() -> None:
    xs = jnp.linspace(0.5, 90.0, 37)
    run = ticked(positive_root, lanes=5)
    values, slopes = jax.jvp(run, (xs,), (jnp.ones_like(xs),))
    expected = jax.jvp(jax.vmap(positive_root), (xs,), (jnp.ones_like(xs),))
    assert_same((values, slopes), expected, 1e-6)


def test_nested_vmaps_share_the_lanes() -> None:
    n = jnp.arange(5)[:, None] * 7 + jnp.arange(6)

    @lw.program
    def below(n, bound):
        count = 0
        while n < bound:
            n = n * 2 + 1
            count += 1
        return count

    bounds = jnp.array([10, 1000, 100_000])
    inner = ticked(below, in_axes=(0, None), lanes=8)
    found = jax.vmap(jax.vmap(inner, in_axes=(0, None)), in_axes=(None, 0))(n, bounds)
    expected = jax.vmap(jax.vmap(jax.vmap(below, (0, None)), (0, None)), (None, 0))(n, bounds)
    assert found.shape == (3, 5, 6)
    np.testing.assert_array_equal(found, expected)
    stats = jax.vmap(
        ticked(below, in_axes=(0, None), lanes=8, stats=True),
        in_axes=(0, None),
        out_axes=(0, None),
    )(n, 1000)[1]
    # It ends as a machine of two lanes.
    assert float(stats.offered) % 2 == 0


def test_lanes_that_wait_for_room_come_back_from_the_narrow_machine() -> None:
    lanes = NARROWING * FEWEST_NARROW_LANES * 2
    # The last examples run out of room when all others are done.
    deep = jnp.concatenate([jnp.full(3 * lanes, 2), jnp.array([90, 60, 120])])
    answers, stats = ticked(depth, lanes=lanes, stats=True)(deep)
    np.testing.assert_array_equal(answers, deep)
    assert int(stats.steps) == int((deep + 1).sum())


@pytest.mark.parametrize("bad", [0, -3, 2.5, True, "4"])
def test_lanes_must_be_a_positive_int(bad: Any) -> None:
    with pytest.raises(OptionError, match=r"lanes=.* must be a positive int"):
        ticked(countdown, lanes=bad)


@pytest.mark.parametrize("schedule", ["plain", "local"])
def test_lanes_need_a_machine(schedule: str) -> None:
    with pytest.raises(OptionError, match="lanes=4 refills"):
        ticked(countdown, lanes=4, schedule=schedule)


# A spread of the corpus, as compiling is what tests spend their time on; LANEWISE_FULL=1 runs all of it.
SPREAD = [case for case in CORPUS if not case.heavy][:: 1 if needs.FULL else 13]


@pytest.mark.parametrize("place", range(len(SPREAD)), ids=lambda i: SPREAD[i].name)
def test_corpus(place: int) -> None:
    case: Case = SPREAD[place]
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), 17))
    assert lanes_of(case.in_axes, args) == 17
    schedule = SCHEDULES[place % len(SCHEDULES)]
    found = ticked(case.program, in_axes=case.in_axes, lanes=3 + place % 5, schedule=schedule)(
        *args
    )
    expected = ticked(case.program, in_axes=case.in_axes, schedule=schedule)(*args)
    assert_same(found, expected, case.rtol)
    assert_same(take(0, found, 16), case.program(*take(case.in_axes, args, 16)), case.rtol)
