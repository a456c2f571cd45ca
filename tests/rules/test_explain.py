"""Messages of assertions are formatted with the values of the lanes that fail them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.rules import explain


@lw.program
def positive(x):
    assert x > 0, f"x is {x}"
    return x * 2.0


@lw.program
def shrinking(n, tolerance, state):
    i = 0
    while i < n:
        error = jnp.abs(state["v"]).sum() * 0.5**i
        assert error > tolerance, "step %d: error %.3f, twice %s" % (i, error, 2 * error)  # noqa: UP031
        state = {"v": state["v"] + 1.0, "w": state["w"]}
        i += 1
    return state["v"].sum()


@lw.program
def deeper(n, x):
    assert x < 50.0, f"with {n} to go: {x:.2f}, {n:>3}"
    if n <= 0:
        return x
    return deeper(n - 1, x * 2.0) + x


XS = jnp.array([1.0, -1.0, -3.0])


def said(call: Any) -> str:
    with pytest.raises(lw.LaneError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: lw.vmap(positive, carrier="ticks")(XS),
        lambda: lw.vmap(positive, carrier="native")(XS),
        lambda: lw.vmap(positive, lanes=2, carrier="ticks")(XS),
        lambda: jax.vmap(positive)(XS),
    ],
)
def test_each_lane_has_its_own_message(call: Any) -> None:
    text = said(call)
    assert "assertion failed: x is {x} (" in text and "test_explain.py:" in text
    assert "in 2 of 3 lanes: 1 (x is -1.0), 2 (x is -3.0)" in text


def test_a_lone_call_has_its_own_message() -> None:
    assert "assertion failed: x is -2.0 (" in said(lambda: positive(-2.0))
    assert "assertion failed: x is -2.0 (" in said(lambda: jax.grad(positive)(-2.0))
    assert "assertion failed: x is -2.0 (" in said(lambda: jax.jvp(positive, (-2.0,), (1.0,)))


def test_outcomes_describe_it_when_they_are_asked() -> None:
    _, outcomes = lw.vmap(positive, throw=False)(XS)
    assert "1 (x is -1.0), 2 (x is -3.0)" in outcomes.describe()


def test_any_expression_in_a_loop() -> None:
    state = {"v": jnp.ones(2), "w": jnp.zeros(3)}
    assert "step 5: error 0.375, twice 0.75 (" in said(lambda: shrinking(30, 0.5, state))
    text = said(lambda: lw.vmap(shrinking, in_axes=(0, None, None))(jnp.array([1, 30]), 0.5, state))
    assert "in 1 of 2 lanes: 1 (step 5: error 0.375, twice 0.75)" in text


def test_in_the_frame_that_fails() -> None:
    text = said(lambda: lw.vmap(deeper)(jnp.array([3, 9]), jnp.array([1.0, 1.0])))
    assert "with {n} to go: {x:.2f}, {n:>3}" in text
    assert "in 1 of 2 lanes: 1 (with 3 to go: 64.00,   3)" in text


def test_inside_jit_the_holes_stay_and_say_why() -> None:
    with pytest.raises(Exception, match=r"x is \{x\}.*shown by a call outside jit"):
        jax.block_until_ready(jax.jit(lw.vmap(positive))(XS))


def test_a_lane_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MOST_BLOCKS", 3)
    text = said(lambda: deeper(9, 1.0))
    assert "with {n} to go" in text and "Values are not shown" in text


def test_what_is_not_formatted_costs_nothing() -> None:
    @lw.program
    def plain(x):
        limit = 3
        assert x > 0, f"more than {limit}"
        return x

    staged, _ = plain.stage(1.0)
    assert not staged.program.formats
    assert "more than 3" in said(lambda: plain(-1.0))
