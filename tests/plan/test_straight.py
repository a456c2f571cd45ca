"""Where nothing diverges: all lanes by XLA, or each separately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from comparing import assert_same

pytestmark = [
    needs.compiler,
    needs.on_cpu,
]

MANY, FEW = 30_000, 64


def rotated(r: Any, x: Any) -> Any:
    angle = jnp.sqrt(jnp.sum(r * r) + 1e-9)
    axis = r / angle
    along = axis * jnp.sum(axis * x) * (1 - jnp.cos(angle))
    return x * jnp.cos(angle) + jnp.cross(axis, x) * jnp.sin(angle) + along


def slopes(r: Any, x: Any) -> Any:
    return jax.jacrev(rotated)(r, x)


def polynomial(x: Any) -> Any:
    y = x
    for _ in range(30):
        y = y * x + 0.5
    return y


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x)


def layers(x: Any) -> Any:
    w = jnp.ones((16, 64))
    return jnp.tanh(jnp.tanh(x @ w) @ w.T)


def layers_in_a_loop(x: Any) -> Any:
    """Each turn reads the weights of its layer, which all lanes share: that is no pass over lanes."""
    weights = jnp.ones((16, 128, 128)) / 128
    return lax.fori_loop(0, 16, lambda i, x: jnp.tanh(x @ weights[i]), x)


def rows(lanes: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(lanes, *shape)), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(
    "function, lanes, shapes, carrier",
    [
        (slopes, MANY, [(3,), (3,)], "native"),
        (slopes, FEW, [(3,), (3,)], "ticks"),
        (polynomial, MANY, [()], "ticks"),
        (softmax, MANY, [(32,)], "ticks"),
        (layers, MANY, [(16,)], "ticks"),
        (layers_in_a_loop, 1024, [(128,)], "ticks"),
    ],
    ids=["slopes", "too_few_lanes", "elementwise", "softmax", "layers", "layers_in_a_loop"],
)
def test_passes_over_memory_decide(
    function: Callable[..., Any], lanes: int, shapes: list[tuple[int, ...]], carrier: str
) -> None:
    plan = lw.inspect(lw.lift(function), *rows(lanes, *shapes)).plan
    assert plan.carrier == carrier
    assert ("passes over memory" in plan.why) == (carrier == "native")


def test_a_choice_of_the_user_stands() -> None:
    asked = lw.lift(slopes).with_options(carrier="ticks")
    plan = lw.inspect(asked, *rows(MANY, (3,), (3,))).plan
    assert plan.carrier == "ticks" and plan.plain


def test_answers_are_the_same() -> None:
    given = rows(MANY, (3,), (3,))
    expected = jax.jit(jax.vmap(slopes))(*given)
    assert_same(jax.jit(lw.vmap(lw.lift(slopes)))(*given), expected, 1e-4)


def cells(x: Any, length: int) -> Any:
    """A loop over a few numbers, each step of which sums and puts together."""

    def step(state: Any, _: Any) -> Any:
        for _ in range(4):
            state = jnp.concatenate([state[1:], state[:1]]) * 0.5 + jnp.tanh(jnp.sum(state))
        return state, jnp.sum(state)

    return lax.scan(step, x, None, length=length)[1]


def lone_carrier(function: Callable[..., Any], *args: Any) -> str:
    return lw.inspect(lw.lift(function), *args, in_axes=None).plan.carrier


def test_lone_loops_over_little() -> None:
    small, large = jnp.ones(8), jnp.ones(2000)
    assert lone_carrier(lambda x: cells(x, 1000), small) == "native"
    assert lone_carrier(lambda x: cells(x, 4), small) == "ticks"
    assert lone_carrier(lambda x: cells(x, 1000), large) == "ticks"
    assert lone_carrier(lambda x: jnp.sum(jnp.tanh(x)), small) == "ticks"
    expected = jax.grad(lambda x: jnp.sum(cells(x, 1000)))(small)
    found = jax.grad(lambda x: jnp.sum(lw.lift(lambda x: cells(x, 1000))(x)))(small)
    assert_same(found, expected, 1e-4)


def test_lone_nests_of_while() -> None:
    """XLA starts each piece of each iteration separately; the gradient of a `while` is a nest of them."""

    def halved(x: Any, turns: Any) -> Any:
        def turn(i: Any, x: Any) -> Any:
            return 0.5 * x + jnp.sum(jnp.sin(x)) / (i + 1.0) + jnp.max(x) * jnp.min(x)

        return lax.fori_loop(0, turns, turn, x)

    def nested(x: Any, turns: Any) -> Any:
        return lax.fori_loop(0, turns, lambda i, x: jnp.cos(halved(x, i)), x)

    x, turns = jnp.ones(3), 7
    slope = jax.grad(lambda x, turns: jnp.sum(lw.lift(halved)(x, turns)))
    assert lone_carrier(halved, x, turns) == "ticks"
    assert lone_carrier(nested, x, turns) == "native"
    # Programs inside a program count with what they do.
    assert lone_carrier(lambda x, n: lw.lift(nested)(x, n) + 1.0, x, turns) == "native"
    assert lone_carrier(slope, x, turns) == "native"
    expected = jax.grad(lambda x: jnp.sum(halved(x, 7)))(x)
    assert_same(jax.jit(lw.lift(slope))(x, turns), expected, 1e-4)
