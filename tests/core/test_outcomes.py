"""How lanes end, what is said of it, and that the others do not notice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.blocks.reference import interpret
from lanewise.core.errors import OptionError, Outcome
from programs.small import fib
from seeing import blocks_of

SCHEDULES = ("sweep", "most", "lowest", "local")


@lw.program
def loops(n):
    total = 0.0
    for i in range(n):
        for _ in range(n - n + 3):
            total += i
    return total


@lw.program
def checked(x):
    assert x > -10, f"far too small"  # noqa: F541
    while x > 3:
        assert x != 7, "seven"
        x -= 1
    assert x > 0, "small"
    return x * 1.0, x


LINE = checked.python.__code__.co_firstlineno


def test_every_outcome_beside_intact_answers() -> None:
    (floats, ints), outcomes = lw.vmap(checked, throw=False)(jnp.array([5, -20, 9, -1, 2]))
    assert outcomes.code.tolist() == [0, 3, 3, 3, 0]
    assert ints.tolist() == [3, 0, 0, 0, 2]
    assert np.isnan(np.asarray(floats)).tolist() == [False, True, True, True, False]
    assert outcomes.ok().tolist() == [True, False, False, False, True]
    messages = [outcomes.sites[i].message for i in outcomes.site.tolist() if i >= 0]
    assert messages == ["far too small", "seven", "small"]
    assert [outcomes.sites[i].location.line - LINE for i in outcomes.site.tolist() if i >= 0] == [
        2,
        4,
        6,
    ]


@pytest.mark.parametrize("jitted", [False, True])
def test_steps_and_stacks(jitted: bool) -> None:
    wrap = jax.jit if jitted else (lambda f: f)
    answers, outcomes = wrap(lw.vmap(fib, max_steps=20, throw=False))(jnp.array([3, 9, 5]))
    assert outcomes.code.tolist() == [0, Outcome.STEPS_EXHAUSTED, 0] and answers.tolist() == [
        2,
        0,
        5,
    ]
    answers, outcomes = wrap(lw.vmap(fib, max_depth=4, throw=False))(jnp.array([3, 9, 5]))
    assert outcomes.code.tolist() == [0, Outcome.STACK_OVERFLOW, 0] and answers.tolist() == [
        2,
        0,
        5,
    ]
    assert outcomes.site.tolist() == [-1, -1, -1]


def test_default_raises_and_names_the_lanes() -> None:
    with pytest.raises(lw.LaneError) as caught:
        jax.vmap(checked)(jnp.array([5, -20, 9, -1, -2]))
    text = str(caught.value)
    assert (
        f"assertion failed: small ({__file__}:{LINE + 6}, in checked) in 2 of 5 lanes: 3, 4."
        in text
    )
    assert "far too small" in text and "seven" in text and text.count("\n") == 2
    assert caught.value.outcomes.code.tolist() == [0, 3, 3, 3, 3]
    with pytest.raises(lw.LaneError, match=r"checked: assertion failed: small .* in the call"):
        checked(0)
    with pytest.raises(lw.LaneError, match=r"steps exhausted in 1 of 2 lanes: 1\. Raise max_steps"):
        lw.vmap(fib, max_steps=5)(jnp.array([1, 20]))


def test_nested_lanes_are_named_by_all_their_indices() -> None:
    with pytest.raises(lw.LaneError, match=r"1 of 4 lanes: \(1, 0\)"):
        jax.vmap(jax.vmap(checked))(jnp.array([[1, 2], [0, 3]]))


def test_inside_jit_it_raises_too() -> None:
    with pytest.raises(Exception, match=r"assertion failed: small .* in 1 of 2 lanes: 1"):
        jax.block_until_ready(jax.jit(jax.vmap(checked))(jnp.array([1, 0])))
        jax.effects_barrier()


def test_many_failed_lanes_are_counted() -> None:
    _, outcomes = lw.vmap(checked, throw=False)(jnp.zeros(20, jnp.int32))
    text = outcomes.describe("f")
    assert (
        text.startswith("f: assertion failed: small")
        and "0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in text
    )
    assert lw.vmap(checked, throw=False)(jnp.ones(2, jnp.int32))[1].describe() == ""


@pytest.mark.parametrize(("program", "worst"), [(fib, 7), (loops, 5)], ids=["fib", "loops"])
def test_steps_are_counted_the_same_everywhere(program: Any, worst: int) -> None:
    needed = interpret(blocks_of(program, jnp.int32(0), every_loop=True), [jnp.int32(worst)]).steps
    assert needed == (41 if program is fib else 1 + 5 + 15)
    batch = jnp.array([worst, 1, worst - 1])
    for limit, code in ((needed, 0), (needed - 1, int(Outcome.STEPS_EXHAUSTED))):
        for schedule in SCHEDULES:
            _, outcomes = lw.vmap(program, schedule=schedule, max_steps=limit, throw=False)(batch)
            assert outcomes.code.tolist() == [code, 0, 0], schedule
        _, alone = program.with_options(max_steps=limit, throw=False)(jnp.int32(worst))
        assert int(alone.code) == code
        uniform = lw.vmap(program, in_axes=None, axis_size=2, max_steps=limit, throw=False)
        assert np.broadcast_to(uniform(jnp.int32(worst))[1].code, 2).tolist() == [code, code]


def test_sites_keep_their_names_across_programs() -> None:
    @lw.program
    def inner(n):
        assert n < 50, "deep"
        if n <= 0:
            return 0
        return 1 + inner(n - 1)

    @lw.program
    def tested(x):
        assert x != 13, "in the test"
        return x

    @lw.program
    def outer(n):
        y = inner(n)
        assert y < 20, "after"
        while tested(y) > 10:
            assert y != 12, "in the body"
            y -= 1
        return y

    _, outcomes = lw.vmap(outer, throw=False)(jnp.array([3, 60, 30, 13, 12, 10]))
    found = [outcomes.sites[i].message if i >= 0 else "" for i in outcomes.site.tolist()]
    assert found == ["", "deep", "after", "in the test", "in the body", ""]


def test_a_failed_lane_leaves_answers_that_do_not_depend_on_it() -> None:
    @lw.program
    def guarded(x, w):
        assert x > 0
        return w * 2.0

    for batch, wrong in ((jnp.array([-1.0, 1.0]), 0), (jnp.array([1.0, -1.0]), 1)):
        answers, outcomes = lw.vmap(guarded, in_axes=(0, None), throw=False)(batch, jnp.float32(3))
        assert bool(jnp.isnan(answers[wrong])) and float(answers[1 - wrong]) == 6.0
        assert outcomes.ok().tolist() == [wrong != 0, wrong != 1]
    assert jax.vmap(guarded, in_axes=(0, None))(jnp.ones(2), jnp.float32(3)).tolist() == [6.0, 6.0]


def test_outcomes_are_a_pytree_and_go_through_jit() -> None:
    run = jax.jit(lambda x: jax.tree.map(lambda v: v, lw.vmap(checked, throw=False)(x)))
    _, outcomes = run(jnp.array([1, 0]))
    assert isinstance(outcomes, lw.Outcomes) and "small" in outcomes.describe()
    assert len(jax.tree.leaves(outcomes)) == 2
    assert [o.phrase for o in Outcome] == [
        "done",
        "steps exhausted",
        "stack overflow",
        "assertion failed",
        "tape full",
        "lost",
        "not run",
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedule": "fastest"}, "schedule='fastest'.*'sweep'"),
        ({"max_steps": 0}, "max_steps=0 must be a positive int"),
        ({"max_steps": True}, "max_steps=True"),
        ({"max_depth": 2.5}, "max_depth=2.5"),
        ({"max_depth": -1}, "max_depth=-1"),
        ({"carrier": "steam"}, "carrier='steam'"),
        ({"speed": 3}, "'speed' is not an option"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        lw.vmap(fib, **options)
    with pytest.raises(OptionError, match=text):
        lw.program(**options)(lambda x: x)
    with pytest.raises(OptionError, match=text):
        lw.lift(lambda x: x, **options)


def test_results_beside_answers_come_in_order() -> None:
    answers, stats = lw.vmap(fib, stats=True)(jnp.array([5, 6]))
    assert isinstance(stats, lw.Stats) and int(stats.deepest) == 5
    answers, outcomes, stats = lw.vmap(fib, stats=True, throw=False)(jnp.array([5, 6]))
    assert (
        isinstance(outcomes, lw.Outcomes)
        and isinstance(stats, lw.Stats)
        and answers.tolist() == [5, 8]
    )
    decorated = lw.program(throw=False, max_steps=3)(loops.python)
    assert int(decorated(jnp.int32(4))[1].code) == Outcome.STEPS_EXHAUSTED


@lw.program
def thrice(n):
    return bounded(n) + bounded(n + 1) + bounded(n + 2)


@lw.program(max_steps=40, max_depth=9, schedule="most")
def bounded(n):
    while n > 1:
        n = n // 2
    return n


def test_bounds_of_a_program_inside_another() -> None:
    here = r"`bounded` has max_steps=40 and is called inside the program `thrice` \(.*test_outcomes.*\)"
    fix = r".*Give max_steps to `thrice`, and call `bounded.with_options\(max_steps=None\)` inside"
    for run in (thrice, jax.jit(jax.vmap(thrice))):
        with pytest.raises(OptionError, match=here + fix):
            run(jnp.array([3, 9]) if run is not thrice else 3)
    with pytest.raises(OptionError, match="max_depth=9"):
        lw.vmap(thrice, max_steps=40)(jnp.array([3, 9]))
    same = lw.vmap(thrice, max_steps=40, max_depth=9)
    assert same(jnp.array([3, 9])).tolist() == [3, 3]
    with pytest.raises(OptionError, match="max_steps"):
        lw.vmap(lambda n: bounded(n))(jnp.array([3, 9]))


def test_outcomes_of_a_program_inside_another() -> None:
    @lw.program
    def tried(n):
        answer, outcome = loops.with_options(throw=False)(n)
        return jnp.where(outcome.ok(), answer, -1)

    with pytest.raises(OptionError, match="throw=False and is called inside the program"):
        tried(3)


def test_a_machine_inside_a_program_has_its_own_options() -> None:
    @lw.program
    def within(n):
        answers, outcomes = lw.vmap(bounded, throw=False)(n + jnp.arange(3))
        return answers.sum(), outcomes.ok().all()

    total, fine = within(4)
    assert (int(total), bool(fine)) == (3, True)


@pytest.mark.parametrize("carrier", ["ticks", "native"])
def test_lane_errors_come_out_of_jit_as_they_are(carrier: str) -> None:
    run = jax.jit(lw.vmap(checked, carrier=carrier))
    with lw.lane_errors():
        run(jnp.array([4, 5]))
    for _ in range(2):  # compiled, and dispatched by another path
        with pytest.raises(lw.LaneError, match="in 1 of 2 lanes: 1") as caught, lw.lane_errors():
            run(jnp.array([4, 27]))
        assert caught.value.outcomes.ok().tolist() == [True, False]
    # One inside another: the failure after the inner one is the outer one's.
    with pytest.raises(lw.LaneError, match="in 1 of 2 lanes: 1"), lw.lane_errors():
        with lw.lane_errors():
            run(jnp.array([4, 5]))
        run(jnp.array([4, 27]))
    # What is none of ours is left as it is, and without the context it is JAX's.
    with pytest.raises(ZeroDivisionError), lw.lane_errors():
        raise ZeroDivisionError
    with pytest.raises(Exception, match="in 1 of 2 lanes: 1") as raw:
        jax.block_until_ready(run(jnp.array([4, 27])))
    assert not isinstance(raw.value, lw.LaneError)
