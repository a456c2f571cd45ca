"""The ticks carrier: what is in its state and its code, how stacks grow, and that lanes do not meet."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise.core.errors import Outcome
from lanewise.machine.ticking import LARGE_ANSWER
from programs.small import collatz, depth
from seeing import equations, machine, shapes

LANES = 37  # no other axis has this size
SCHEDULES = ("sweep", "most", "lowest")
ZEROS = jnp.zeros(23, jnp.int32)


@lw.program
def histogram(n, seed, counts):
    i = 0
    while i < n:
        seed = (seed * 1103515245 + 12345) % 65536
        counts = counts.at[seed % 23].add(1)
        i += 1
    return counts


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_are_never_copied_per_lane(schedule: str) -> None:
    @lw.program
    def iterate(x, w, n):
        while n > 0:
            if x[0] > 0:
                x = jnp.tanh(w @ w @ x)
            n -= 1
        return x

    args = (jnp.ones((LANES, 19)), jnp.ones((19, 19)), jnp.arange(LANES))
    run = lw.vmap(iterate, in_axes=(0, None, 0), schedule=schedule)
    found = shapes(machine(run, *args))
    assert (19, 19) in found and (LANES, 19) in found
    assert not any(set(shape) >= {LANES, 19} and sorted(shape).count(19) > 1 for shape in found)


def test_weights_of_a_recursion_are_never_copied_per_lane() -> None:
    @lw.program
    def descend(n, w, x):
        if n <= 0:
            return x
        return descend(n - 1, w, w @ x) + descend(n - 2, w, x)

    run = lw.vmap(descend, in_axes=(0, None, None), max_depth=8)
    found = shapes(machine(run, jnp.arange(LANES) % 4, jnp.ones((19, 19)), jnp.ones(19)))
    assert (19, 19) in found
    assert not any(LANES in shape and sorted(shape).count(19) > 1 for shape in found)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_indexed_writes_are_scatters(schedule: str) -> None:
    run = lw.vmap(histogram, schedule=schedule)
    args = (jnp.arange(LANES), jnp.arange(LANES), jnp.zeros((LANES, 23), jnp.int32))
    eqns = machine(run, *args)
    (loop,) = [e for e in eqns if e.primitive.name == "while"]
    ticked = [
        e for e in equations(loop.params["body_jaxpr"]) if e.outvars[0].aval.shape == (LANES, 23)
    ]
    names = [e.primitive.name for e in ticked]
    assert len([name for name in names if name.startswith("scatter")]) == 1
    assert "select_n" not in names
    with jax.disable_jit():
        expected = [np.asarray(histogram(n, n, ZEROS)) for n in (0, 5, 9)]
    np.testing.assert_array_equal(run(*args)[np.array([0, 5, 9])], np.stack(expected))


@lw.program
def journal(n, notes):
    """A history that is written by index, on one of two ways, with an expensive step now and then."""
    i = 0
    while i < n:
        if i % 3 == 0:
            notes = notes.at[i].set(i)
        else:
            notes = notes.at[i].add(-notes[i - 1])
        i += 1
    return notes


@lw.program
def expensive_journal(n, notes, w):
    i = 0
    while i < n:
        if i % 3 == 0:
            notes = notes.at[i].set(jnp.max(jnp.sin(w @ w)).astype(int))
        i += 1
    return notes


@pytest.mark.parametrize(
    "program", [histogram, journal, expensive_journal], ids=lambda program: program.__name__
)
def test_large_state_is_never_copied_in_a_tick(program: lw.ProgramFunction) -> None:
    notes, n, w = jnp.zeros((LANES, 23), jnp.int32), jnp.arange(LANES), jnp.eye(64)
    args = {"histogram": (n, n, notes), "journal": (n, notes), "expensive_journal": (n, notes, w)}
    axes = {"expensive_journal": (0, 0, None)}.get(program.__name__, 0)
    run = jax.jit(lw.vmap(program, in_axes=axes, schedule="sweep"))
    text = run.lower(*args[program.__name__]).compile().as_text() or ""
    inside, _ = text.split("ENTRY")
    assert f"s32[{LANES},23]" in inside and " while(" in text
    copied = re.findall(r"= (\S+\])\S* copy\(", inside)
    assert f"s32[{LANES},23]" not in copied


def test_straight_programs_are_plain_vmap() -> None:
    @lw.program
    def straight(x, n):
        if x > 0:
            x = x * 2.0
        return x + 1.0

    names = {
        e.primitive.name for e in machine(jax.vmap(straight), jnp.ones(LANES), jnp.ones(LANES))
    }
    assert "while" not in names and "mul" in names


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stacks_grow_and_resume_where_they_were(schedule: str) -> None:
    deep = jnp.array([5000, 3, 700, 0])
    answers, stats = lw.vmap(depth, schedule=schedule, stats=True)(deep)
    assert answers.tolist() == deep.tolist()
    assert int(stats.deepest) == 5000
    # Every call is made once: had anything been run again, there would be more steps.
    assert int(stats.steps) == int((deep + 1).sum())
    if schedule == "sweep":
        roomy, again = lw.vmap(depth, schedule=schedule, stats=True, max_depth=6000)(deep)
        assert roomy.tolist() == deep.tolist()
        assert int(again.steps) == int(stats.steps)


def test_max_depth_is_honoured() -> None:
    answers, outcomes = lw.vmap(depth, max_depth=10, throw=False)(jnp.array([9, 10, 11, 50]))
    assert outcomes.code.tolist() == [0, 0, Outcome.STACK_OVERFLOW, Outcome.STACK_OVERFLOW]
    assert answers.tolist() == [9, 10, 0, 0]
    with pytest.raises(lw.LaneError, match="stack overflow in 1 of 2 lanes: 1"):
        lw.vmap(depth, max_depth=10)(jnp.array([1, 11]))


def test_inside_jit_the_default_depth_is_reported() -> None:
    assert jax.jit(jax.vmap(depth))(jnp.array([1000, 2])).tolist() == [1000, 2]
    with pytest.raises(Exception, match=r"stack overflow in 1 of 2 lanes: 0\. Raise max_depth"):
        jax.block_until_ready(jax.jit(jax.vmap(depth))(jnp.array([1500, 2])))
        jax.effects_barrier()
    deeper = depth.with_options(max_depth=2000)
    assert jax.jit(jax.vmap(deeper))(jnp.array([1500, 2])).tolist() == [1500, 2]


@pytest.mark.parametrize("program", [collatz, depth], ids=lambda p: p.__name__)
@pytest.mark.parametrize("jitted", [False, True])
def test_an_empty_batch(program: lw.ProgramFunction, jitted: bool) -> None:
    run = lw.vmap(program, stats=True, throw=False)
    answers, outcomes, stats = (jax.jit(run) if jitted else run)(jnp.zeros((0,), jnp.int32))
    assert answers.shape == (0,) and outcomes.code.shape == (0,) and answers.dtype == jnp.int32
    assert int(stats.ticks) == 0 and stats.ticks.dtype == jnp.int32


def test_one_lane() -> None:
    for schedule in (*SCHEDULES, "local"):
        assert lw.vmap(collatz, schedule=schedule)(jnp.array([27])).tolist() == [111]
    assert int(collatz(27)) == 111


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_lane_never_depends_on_its_neighbours(schedule: str) -> None:
    rng = np.random.default_rng(0)
    seeds = rng.integers(0, 1000, 16)
    lengths = rng.integers(0, 40, 16)
    mapped = lw.vmap(histogram, in_axes=(0, 0, None), schedule=schedule)

    def run(lengths, seeds):
        return np.asarray(mapped(jnp.asarray(lengths), jnp.asarray(seeds), ZEROS))

    whole = run(lengths, seeds)
    order = rng.permutation(16)
    np.testing.assert_array_equal(run(lengths[order], seeds[order]), whole[order])
    for lane in (0, 7):
        alone = run(lengths[lane : lane + 1], seeds[lane : lane + 1])
        np.testing.assert_array_equal(alone[0], whole[lane])


def test_keys_are_a_lanes_own() -> None:
    def rejected(key):
        def body(state):
            key, _ = state
            key, sub = jax.random.split(key)
            return key, jax.random.uniform(sub)

        return lax.while_loop(lambda s: s[1] < 0.9, body, (key, 0.0))[1]

    keys = jax.random.split(jax.random.key(0), 9)
    expected = jnp.stack([rejected(k) for k in keys])
    for schedule in SCHEDULES:
        np.testing.assert_array_equal(lw.vmap(rejected, schedule=schedule)(keys), expected)
    np.testing.assert_array_equal(lw.vmap(rejected)(keys[::-1]), expected[::-1])


@pytest.mark.parametrize("fails", [False, True])
def test_large_answers_of_lanes_that_failed_are_blank(fails: bool) -> None:
    """They are gone over only where some lane failed."""

    @lw.program
    def filled(n):
        assert n < 3, "too many"
        i, large = 0, jnp.zeros(LARGE_ANSWER // 2, jnp.float32)
        while i < n:
            large = large.at[i].set(i + 1.0)
            i = i + 1
        return large

    n = jnp.array([2, 5 if fails else 1, 0])
    answers, outcomes = lw.vmap(filled, carrier="ticks", schedule="sweep", throw=False)(n)
    wanted = np.zeros((3, 3), np.float32)
    wanted[0, :2] = 1, 2
    wanted[1] = np.nan if fails else (1, 0, 0)
    np.testing.assert_array_equal(answers[:, :3], wanted)
    np.testing.assert_array_equal(outcomes.ok(), [True, not fails, True])
    assert np.isnan(answers[1, 3:]).all() == fails
