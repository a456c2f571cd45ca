"""`jax.disable_jit()`: a program runs as plain Python, with real values, each example by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw

seen: list[Any] = []


@lw.program
def power(x: Any, n: Any) -> Any:
    seen.append(float(jax.lax.stop_gradient(x)))  # what `print` and `pdb` would show
    result = 1.0
    while n > 0:
        result = result * x
        n = n - 1
    assert result < 100.0, f"{result} is too much"
    return {"power": result, "nothing": None}


def of(x: Any, n: Any = 2) -> Any:
    return power(x, n)["power"]


@pytest.fixture(autouse=True)
def plainly() -> Any:
    seen.clear()
    with jax.disable_jit():
        yield


def test_a_call_sees_values() -> None:
    assert of(3.0) == 9.0 and seen == [3.0]


def test_each_example_of_a_batch_sees_its_own() -> None:
    xs, ns = jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 1, 3])
    for batched in (jax.vmap(power), lw.vmap(power), lw.vmap(power, lanes=2, carrier="native")):
        seen.clear()
        assert batched(xs, ns)["power"].tolist() == [1.0, 2.0, 27.0]
        assert seen == [1.0, 2.0, 3.0]
    nested = jax.vmap(lw.vmap(of))(jnp.arange(4.0).reshape(2, 2), jnp.ones((2, 2), int))
    assert nested.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    shared = lw.vmap(power, in_axes=(0, None))(xs, 2)
    assert shared["power"].tolist() == [1.0, 4.0, 9.0]


def test_extras_have_their_places() -> None:
    answers, outcomes, stats = lw.vmap(of, throw=False, stats=True)(jnp.array([1.0, 2.0]))
    assert answers.tolist() == [1.0, 4.0] and outcomes.ok().tolist() == [True, True]
    assert stats.ticks == 0


def test_derivatives_see_values_too() -> None:
    assert jax.grad(of)(3.0, 3) == 27.0 and seen == [3.0]
    assert lw.grad(of)(3.0) == 6.0
    through = jax.grad(lambda xs: lw.vmap(of)(xs).sum())(jnp.array([1.0, 3.0]))
    assert through.tolist() == [2.0, 6.0]


def test_an_assertion_is_pythons_own() -> None:
    with pytest.raises(AssertionError, match=r"125\.0 is too much"):
        of(5.0, 3)


def test_a_stream_runs_one_after_the_other() -> None:
    assert dict(lw.stream(of, [1.0, 2.0])) == {0: 1.0, 1: 4.0}
    assert seen == [1.0, 2.0]


def test_where_there_are_no_values_it_is_traced() -> None:
    @lw.program
    def smaller(x: Any) -> Any:
        while x > 1.0:
            x = x / 2.0
        return x

    assert jax.eval_shape(smaller, 3.0).shape == ()
    assert jax.vmap(smaller)(jnp.zeros((0,))).shape == (0,)
    slopes = jax.vmap(jax.grad(smaller))(jnp.array([0.5, 3.0]))
    assert slopes.tolist() == [1.0, 0.25]
