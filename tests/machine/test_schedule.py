"""Which block runs next: what each schedule costs in ticks, and how full its blocks are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise.core.errors import OptionError
from lanewise.machine.worth import expensive_blocks
from programs.small import fib
from seeing import linked_of

SCHEDULES = ("sweep", "most", "lowest", "local")


@lw.program
def nested(n):
    total = 0
    i = 0
    while i < n:
        j = 0
        while j < i:
            total += i * j
            j += 1
        i += 1
    return total


def expensive_step(x, n, w):
    """Every third iteration, by lane, is expensive."""

    def body(state):
        x, i = state
        x = lax.cond(i % 3 == 0, lambda: jnp.tanh(w @ w @ x), lambda: x * 0.5)
        return x, i - 1

    return lax.while_loop(lambda s: s[1] > 0, body, (x, n))[0]


@pytest.mark.parametrize("program", [nested, fib], ids=lambda p: p.__name__)
def test_all_schedules_do_the_same_steps(program: lw.ProgramFunction) -> None:
    batch = jnp.array([3, 9, 0, 6, 9, 1])
    found = {s: lw.vmap(program, schedule=s, stats=True)(batch) for s in SCHEDULES}
    answers = {s: a.tolist() for s, (a, _) in found.items()}
    steps = {int(stats.steps) for _, stats in found.values()}
    assert len(set(map(tuple, answers.values()))) == 1 and len(steps) == 1
    for schedule, (_, stats) in found.items():
        assert 0 < float(stats.occupancy) <= 1, schedule
        assert float(stats.advanced) <= float(stats.offered)
        assert float(stats.runs) * 6 == float(stats.offered)


@pytest.mark.parametrize("program", [nested, fib], ids=lambda p: p.__name__)
def test_a_sweep_needs_no_more_ticks_than_one_block_at_a_time(program: lw.ProgramFunction) -> None:
    batch = jnp.array([3, 9, 0, 6, 9, 1, 7, 4])
    ticks = {
        s: int(lw.vmap(program, schedule=s, stats=True)(batch)[1].ticks)
        for s in ("sweep", "most", "lowest")
    }
    assert ticks["sweep"] < ticks["lowest"]
    assert ticks["sweep"] < ticks["most"]


def test_the_first_run_of_most_is_full() -> None:
    # All lanes enter together, and a batch of equal lanes stays together under every schedule.
    for schedule in ("most", "lowest"):
        _, stats = lw.vmap(nested, schedule=schedule, stats=True)(jnp.full(5, 6))
        assert float(stats.occupancy) == 1.0


def test_expensive_blocks_wait_for_company() -> None:
    lanes = 64
    w = jnp.eye(32) * 0.5
    rng = np.random.default_rng(0)
    x, n = (
        jnp.asarray(rng.normal(size=(lanes, 32)), jnp.float32),
        jnp.asarray(rng.integers(1, 40, lanes)),
    )
    linked = linked_of(expensive_step, x[0], n[0], w, varying=[True, True, False])
    assert len(expensive_blocks(linked, lanes)) == 1
    assert expensive_blocks(linked, 1) == ()
    _, stats = lw.vmap(expensive_step, in_axes=(0, 0, None), schedule="sweep", stats=True)(x, n, w)
    assert float(stats.occupancy) > 2 / lanes
    expected = jax.vmap(expensive_step, in_axes=(0, 0, None))(x, n, w)
    found = lw.vmap(expensive_step, in_axes=(0, 0, None), schedule="sweep")(x, n, w)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_plain_is_jax_vmap_and_refuses_what_jax_has_not() -> None:
    assert (
        lw.vmap(nested, schedule="plain")(jnp.array([3, 9])).tolist()
        == lw.vmap(nested)(jnp.array([3, 9])).tolist()
    )
    with pytest.raises(OptionError, match=r"plain.*recursion"):
        lw.vmap(fib, schedule="plain")(jnp.array([3]))
    with pytest.raises(OptionError, match="max_steps"):
        lw.vmap(nested, schedule="plain", max_steps=3)(jnp.array([3]))


def test_a_loop_that_a_branch_guards_runs_for_its_own_lanes_only() -> None:
    # From 0 or -1 the doubling never reaches 100: `jax.vmap` of a `cond` around it would not end.
    @lw.program
    def doubled(x):
        if x > 0:
            while x < 100:
                x = x * 2
        return x

    @lw.program
    def early(x):
        if x <= 0:
            return x
        while x < 100:
            x = x * 2
        return x

    @lw.program
    def through_another(x):
        return early(x) if x > 0 else x

    for program in (doubled, early, through_another):
        assert jax.vmap(program)(jnp.array([3, 0, -1])).tolist() == [192, 0, -1]


def test_how_full_expensive_blocks_are() -> None:
    lanes = 64
    x, n, w = jnp.ones((lanes, 32)), jnp.arange(lanes) % 7, jnp.eye(32) * 0.5

    def stats_under(schedule: str) -> lw.Stats:
        run = lw.vmap(expensive_step, in_axes=(0, 0, None), schedule=schedule, stats=True)
        return run(x, n, w)[1]

    swept = stats_under("sweep")
    assert 0 < float(swept.expensive_advanced) < float(swept.advanced)
    assert float(swept.expensive_offered) % lanes == 0
    # Each lane takes the expensive step for every third of its iterations.
    assert float(swept.expensive_advanced) == sum(len(range(3, int(m) + 1, 3)) for m in n)
    assert 0 < float(swept.expensive_occupancy) <= 1
    assert float(stats_under("most").expensive_occupancy) == 0
