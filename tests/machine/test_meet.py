"""Lanes that run separately between the blocks at which they meet."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from corpus import case_named
from lanewise.blocks.link import link
from lanewise.core.errors import InternalError, OptionError
from lanewise.core.options import Options
from lanewise.cpp.variants import between
from lanewise.job.job import blocks_of
from lanewise.machine.meet import kernel_between
from lanewise.machine.sweep import refuse_lost_lanes
from lanewise.machine.worth import meeting_blocks, swept_blocks
from programs.numerics import rough
from programs.recursion import mixed_tree, mixed_tree_vector

WIDTH = 80
WEIGHTS = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 9.0


@lw.program
def walk(key, x, depth, step):
    """A recursion whose leaves multiply by shared weights; draws, writes by index and scalars of several types."""
    if depth == 0:
        return jnp.tanh(WEIGHTS @ x) + step * x, 1
    near, first = walk(jax.random.fold_in(key, depth), x, depth - 1, step)
    if jax.random.uniform(key) < 0.25:
        return near, first
    far, second = walk(jax.random.fold_in(key, -depth), near, depth - 1, -step)
    merged = jnp.where(near @ far > 0.0, near, far)
    return merged.at[depth].set(jnp.sum(far)), first + second


@lw.program
def walks(key, x, rounds):
    history = jnp.zeros((4, WIDTH))
    leaves = 0
    for i in range(rounds):
        x, more = walk(jax.random.fold_in(key, i), x, 1 + i % 3, jnp.float32(0.1))
        x = x / (1.0 + jnp.max(jnp.abs(x)))
        history = history.at[i % 4].set(x)
        leaves += more
    return x, leaves, history


def arguments(lanes: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(1), lanes)
    xs = jax.random.normal(jax.random.key(2), (lanes, WIDTH))
    return keys, xs, jnp.arange(lanes) % 5


def assert_alike(found: Any, expected: Any) -> None:
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def expected() -> Any:
    return lw.vmap(walks, carrier="ticks", schedule="sweep")(*arguments(12))


@pytest.mark.parametrize("options", [{}, {"lanes": 3}, {"max_depth": 6}], ids=str)
def test_answers(expected: Any, options: dict[str, Any]) -> None:
    found = lw.vmap(walks, carrier="ticks", schedule="meet", **options)(*arguments(12))
    assert_alike(found, expected)


@pytest.mark.parametrize("name", ["mixed_tree_vector", "mix_down", "mix_twice"])
def test_a_wrapper_around_a_recursion(name: str) -> None:
    """What the first block calls comes back to a bare end, which is no block of the kernel between meetings."""
    case = case_named(name)
    given = case.examples(np.random.default_rng(2), 5)
    swept = lw.vmap(case.program, schedule="sweep")(*given)
    for options in ({}, {"lanes": 2}):
        run = lw.vmap(case.program, carrier="ticks", schedule="meet", **options)
        assert_alike(run(*given), swept)


def test_auto_meets_under_a_wrapper() -> None:
    values, left, right = case_named("mixed_tree_vector").examples(np.random.default_rng(3), 2)
    ticked = mixed_tree_vector.with_options(carrier="ticks")
    assert lw.inspect(ticked, values, left, right).plan.schedule == "meet"
    run = lw.vmap(lambda *a: mixed_tree(*a, jnp.int32(0))[0], carrier="ticks")
    alone = lw.vmap(mixed_tree_vector, schedule="sweep")(values, left, right)
    assert_alike(run(values, left, right), alone)


def test_a_lane_that_comes_where_no_code_is_ends_in_the_third_voice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads = between._Between.heads

    def without_tail_calls(self: Any) -> Any:
        # A name that was traced before has a number.
        functions = self.linked.program.functions
        (callee,) = (name for name in functions if name.partition(".")[0] == "up")
        entry = self.linked.pc_of[functions[callee].entry]
        return [head for head in heads(self) if head != entry]

    @lw.program
    def down(x, steps):
        return x if steps <= 0 else 2.0 * up(jnp.tanh(WEIGHTS @ jnp.tanh(WEIGHTS @ x)), steps - 1)

    @lw.program
    def up(x, steps):
        return -x if steps <= 0 else 3.0 * down(x + 0.2, steps - 2)

    monkeypatch.setattr(between._Between, "heads", without_tail_calls)
    with pytest.raises(InternalError, match=r"This is a bug in Lanewise: .*down: lost in 2 of 3"):
        lw.vmap(down, schedule="meet")(jnp.ones((3, WIDTH)), jnp.arange(3))


def test_a_block_that_no_tick_runs_is_found_before_lanes_wait_there() -> None:
    staged, operands = mixed_tree.stage(
        jnp.zeros((9, 100)), jnp.zeros(9, jnp.int32), jnp.zeros(9, jnp.int32), jnp.int32(0)
    )
    varying = [True] * len(operands)
    linked = link(blocks_of(staged.program, varying, Options()), varying)
    refuse_lost_lanes(linked, swept_blocks(linked))
    with pytest.raises(InternalError, match=r"lanes come to pc .*, which no tick runs"):
        refuse_lost_lanes(linked, swept_blocks(linked)[:-1])


def test_inside_jit_and_lanes_are_full_at_meetings(expected: Any) -> None:
    run = jax.jit(lw.vmap(walks, carrier="ticks", schedule="meet", stats=True, max_depth=8))
    found, stats = run(*arguments(12))
    assert_alike(found, expected)
    # Every lane that is not done meets the others at each tick.
    assert float(stats.expensive_advanced) == int(found[1].sum())
    assert int(stats.ticks) <= int(found[1].max()) + 1
    assert int(stats.deepest) == 4


def test_stacks_and_steps_that_end() -> None:
    keys, xs, rounds = arguments(6)
    run = lw.vmap(walks, carrier="ticks", schedule="meet", max_depth=3, throw=False)
    (_, leaves, _), outcomes = run(keys, xs, rounds)
    # Three frames hold `walk` two levels deep: the third round asks for one more.
    np.testing.assert_array_equal(outcomes.ok(), rounds < 3)
    assert (leaves[rounds >= 3] == 0).all()
    steps = lw.vmap(walks, carrier="ticks", schedule="meet", max_steps=8, throw=False)
    swept = lw.vmap(walks, carrier="ticks", schedule="sweep", max_steps=8, throw=False)
    assert_alike(steps(keys, xs, rounds)[1].code, swept(keys, xs, rounds)[1].code)


def test_auto_lets_recursion_around_matrix_products_meet() -> None:
    keys, xs, rounds = arguments(12)
    large = jnp.concatenate([xs] * 40, axis=1)
    weights = jnp.zeros((4000, large.shape[1]))

    @lw.program
    def deep(x, depth):
        if depth == 0:
            return x + jnp.tanh(x @ weights.T) @ weights
        return deep(deep(x, depth - 1), depth - 1)

    assert lw.inspect(deep, large, rounds).plan.schedule == "meet"
    assert lw.inspect(walks.with_options(carrier="ticks"), keys, xs, rounds).plan.schedule == "meet"


@lw.program
def folded(weights, x, depth):
    """A recursion on weights that it is handed."""
    if depth <= 0:
        return jnp.sin(x)
    return jnp.tanh(weights @ (folded(weights, x, depth - 1) + folded(weights, -x, depth - 2)))


@lw.program
def folded_twice(weights, x, depth):
    """What all lanes share is made by the entry, in a branch and for a call: zeros, and other weights."""
    start = folded(weights, jnp.zeros(WIDTH), depth) + folded(-weights, x, depth)
    if depth > 1:
        start = start * folded(weights.T / 2, x, 1)
    return start


@pytest.mark.parametrize("refilled", needs.in_turns([True, False]))
def test_what_lanes_share_may_be_written_between_meetings(refilled: bool) -> None:
    """Values and gradients are those of a lane at a time, inside `jit`."""
    with jax.enable_x64(True):
        weights = jnp.asarray(WEIGHTS, jnp.float64)
        xs, depths = jax.random.normal(jax.random.key(3), (5, WIDTH)), jnp.arange(5) % 4
        lanes = {"lanes": 2} if refilled else {}
        run = lw.vmap(folded_twice, in_axes=(None, 0, 0), carrier="ticks", schedule="meet", **lanes)
        expected = [folded_twice(weights, x, n) for x, n in zip(xs, depths)]
        np.testing.assert_allclose(run(weights, xs, depths), expected, rtol=1e-12, atol=1e-12)
        if refilled:
            return
        found = jax.jit(jax.grad(lambda w, x: jnp.sum(run(w, x, depths) ** 3), (0, 1)))(weights, xs)

        def alone(w: Any, x: Any, n: Any) -> Any:
            return jnp.sum(folded_twice(w, x, n) ** 3)

        each = [jax.grad(alone, (0, 1))(weights, x, n) for x, n in zip(xs, depths)]
        np.testing.assert_allclose(found[0], sum(w for w, _ in each), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[1], [x for _, x in each], rtol=1e-10, atol=1e-12)


def test_what_cannot_meet_is_refused_by_name() -> None:
    @lw.program
    def plain(n):
        return 1 if n < 2 else plain(n - 1) + plain(n - 2)

    with pytest.raises(OptionError, match="no block with enough matrix work"):
        lw.vmap(plain, carrier="ticks", schedule="meet")(jnp.arange(4))


def test_a_gpu_runs_a_lane_by_many_threads_only_where_twice_is_as_good_as_once() -> None:
    @lw.program
    def running(x, depth):
        if depth == 0:
            return WEIGHTS @ x
        return jnp.cumsum(running(x, depth - 1))

    for program, together in ((walks, True), (running, False)):
        args = arguments(1) if program is walks else (jnp.zeros(WIDTH), jnp.int32(2))
        one = jax.tree.map(lambda a: a[0], args) if program is walks else args
        staged, operands = program.stage(*one)
        varying = [False] * staged.program.num_captures + [True] * (
            len(operands) - staged.program.num_captures
        )
        linked = link(blocks_of(staged.program, varying, Options()), varying)
        assert meeting_blocks(linked)
        found = kernel_between(linked, None, False)
        assert not isinstance(found, str) and (found.threads > 1) is together


def test_code_at_several_places_between_meetings_is_one_function() -> None:
    @lw.program
    def bent(x, depth):
        if depth == 0:
            return jnp.tanh(WEIGHTS @ x)
        near = bent(0.8 * x, depth - 1)
        if rough(near) > rough(x):
            return near + rough(x - near)
        return 0.5 * near + bent(x + near, depth - 1) * jnp.tanh(rough(near + 1.0))

    x, depth = jax.random.normal(jax.random.key(3), (5, WIDTH)), jnp.arange(5) % 3
    staged, operands = bent.stage(x[0], depth[0])
    varying = [False] * (len(operands) - 2) + [True] * 2
    linked = link(blocks_of(staged.program, varying, Options()), varying)
    emitted = kernel_between(linked, None, False)
    assert not isinstance(emitted, str)
    text = emitted.text[emitted.text.index("\nLW_CALLED") :]
    # Each thread of a warp does its part of the function's long arrays.
    assert emitted.threads > 1 and "LW_MEET" in text[: text.index("LW_KERNEL")]
    # The kernel has no copy of its own.
    assert text.count("lw_log1p(") == 1
    assert_alike(
        lw.vmap(bent, carrier="ticks", schedule="meet")(x, depth),
        lw.vmap(bent, carrier="ticks", schedule="sweep")(x, depth),
    )
