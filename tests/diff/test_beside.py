"""What a loop keeps beside its states: results of products, which its reverse then does not make again."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise import _jax
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.iteration import BESIDE
from lanewise.diff.vjp import vjp_program

WIDTH = 40
SETTINGS = ("auto", "all", "sqrt", 1, 3)


@lw.program
def gated(w, x, n):
    """What the derivative reads is no state, and a product costs more than to keep it."""
    i = 0
    while i < n:
        x = 0.5 * x + jnp.tanh(w @ x)
        i += 1
    return x


@lw.program
def nested(w, x, n):
    """A loop in a loop, each with products; the outer ones read what the inner loop gives."""
    i = 0
    while i < n:
        y, j = x, 0
        while j < i + 1:
            y = 0.9 * y + jnp.sin(w @ y)
            j += 1
        gate = jax.nn.sigmoid(y @ w)
        x = gate * x + (1 - gate) * jnp.tanh(w @ (gate * y))
        i += 1
    return x


@lw.program
def turning(w, x, n):
    """A product in a branch of a loop in a recursion."""
    if n <= 0:
        return x
    i = 0
    while i < n:
        if x[0] > 0.1:
            x = 0.5 * x - jnp.tanh(w @ x)
        else:
            x = 0.7 * x + 0.1
        i += 1
    return turning(w, jnp.tanh(x), n - 1) + 0.1 * x


def in_plain_jax(name: str) -> Any:
    """The same by loops of known length, whose derivatives are JAX's own."""

    def gated(w: Any, x: Any, n: int) -> Any:
        for _ in range(n):
            x = 0.5 * x + jnp.tanh(w @ x)
        return x

    def nested(w: Any, x: Any, n: int) -> Any:
        for i in range(n):
            y = x
            for _ in range(i + 1):
                y = 0.9 * y + jnp.sin(w @ y)
            gate = jax.nn.sigmoid(y @ w)
            x = gate * x + (1 - gate) * jnp.tanh(w @ (gate * y))
        return x

    def turning(w: Any, x: Any, n: int) -> Any:
        if n <= 0:
            return x
        for _ in range(n):
            x = jnp.where(x[0] > 0.1, 0.5 * x - jnp.tanh(w @ x), 0.7 * x + 0.1)
        return turning(w, jnp.tanh(x), n - 1) + 0.1 * x

    return {"gated": gated, "nested": nested, "turning": turning}[name]


PROGRAMS = {"gated": gated, "nested": nested, "turning": turning}


def operands(width: int = WIDTH) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(width, width)).astype(np.float32) / 6
    return w, rng.normal(size=width).astype(np.float32)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_plain_code(name: str, n: int) -> None:
    expected = jax.grad(lambda w, x: in_plain_jax(name)(w, x, n).sum(), (0, 1))(*operands())
    for carrier in ("native", "ticks"):
        run = PROGRAMS[name].with_options(carrier=carrier)
        found = jax.grad(lambda w, x, run=run: run(w, x, n).sum(), (0, 1))(*operands())
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", SETTINGS)
def test_lanes_of_other_lengths(setting: Any) -> None:
    """More turns than there are slots, too."""
    w, x = operands()
    numbers = jnp.array([0, 1, 70, 33])
    plain = jax.vmap(
        jax.grad(
            lambda x, n: lax.fori_loop(
                0, 70, lambda i, x: jnp.where(i < n, 0.5 * x + jnp.tanh(w @ x), x), x
            ).sum()
        ),
        (None, 0),
    )
    run = gated.with_options(checkpoints=setting)
    own = jax.vmap(jax.grad(lambda x, n: run(w, x, n).sum()), (None, 0))
    np.testing.assert_allclose(own(x, numbers), plain(x, numbers), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["gated", pytest.param("nested", marks=pytest.mark.slow)])
def test_second_derivatives(name: str) -> None:
    with jax.enable_x64(True):
        w, x = (a.astype(np.float64) for a in operands())

        def second(run: Any) -> Any:
            def slope(x: Any) -> Any:
                return (jax.grad(lambda x: run(w, x, 3).sum())(x) ** 2).sum()

            return jax.grad(slope)(x), jax.jvp(jax.grad(slope), (x,), (jnp.ones_like(x),))[1]

        for own, other in zip(second(PROGRAMS[name]), second(in_plain_jax(name)), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-11)


def test_effects_happen_once() -> None:
    """The forward sweep's iteration comes from the trace of both sweeps, where a loop in it stands twice."""

    def run(w: Any, x: Any, n: Any, told: Any) -> Any:
        def outer(state: Any) -> Any:
            def inner(state: Any) -> Any:
                j, y = state
                jax.debug.callback(told, j)
                return j + 1, jnp.sin(w @ y)

            i, x = state
            jax.debug.callback(told, 10 + i)
            _, y = lax.while_loop(lambda s: s[0] < 2, inner, (0, x))
            return i + 1, 0.5 * x + jnp.tanh(w @ y)

        return lax.while_loop(lambda s: s[0] < n, outer, (0, x))[1].sum()

    seen: list[int] = []
    told = lambda j: seen.append(int(j))  # noqa: E731
    jax.block_until_ready(jax.grad(lw.lift(lambda w, x, n: run(w, x, n, told)))(*operands(), 3))
    jax.effects_barrier()
    assert sorted(seen) == [0, 0, 0, 1, 1, 1, 10, 11, 12]


def test_a_lane_that_fails() -> None:
    """What ends a lane in an inner loop does so in the forward sweep."""

    @lw.program
    def bounded(w, x, n):
        i = 0
        while i < n:
            y, j = x, 0
            while j < 2:
                assert i < 3, "too far"
                y = 0.1 * y + jnp.sin(w @ y)
                j += 1
            x = 0.5 * x + jnp.tanh(w @ y)
            i += 1
        return x.sum()

    w, x = operands()
    own = jax.vmap(jax.grad(lambda x, n: bounded(w, x, n)), (None, 0))
    with pytest.raises(lw.LaneError, match="too far"):
        own(x, jnp.array([2, 6, 1]))
    found = own(x, jnp.array([2, 3, 1]))
    for row, n in zip(found, (2, 3, 1), strict=True):
        np.testing.assert_allclose(
            row, jax.grad(lambda x, n=n: bounded(w, x, n))(x), rtol=1e-4, atol=1e-6
        )


# -- what is kept, and what is made again -----------------------------------------------------------


def gradient(program: Any, setting: Any = "auto") -> Any:
    staged, _ = program.stage(*operands(), 3)
    return vjp_program(staged.program, (True, True, False), Checkpoints(setting, records=32))


def kept_numbers(program: Any, setting: Any = "auto") -> int:
    found = gradient(program, setting).forward.program
    return sum(math.prod(a.shape) for a in found.out_avals if a.dtype == jnp.float32)


def products(code: Any, depth: int = 0) -> list[int]:
    """How deep in loops each product of code stands, of a matrix and a vector."""
    found = []
    for eqn in code.eqns:
        found += [depth] if eqn.primitive.name == "dot_general" and _is_by_a_vector(eqn) else []
        for inner in _jax.subjaxprs(eqn):
            found += products(inner, depth + (eqn.primitive.name == "while"))
    return found


def _is_by_a_vector(eqn: _jax.JaxprEqn) -> bool:
    return sorted(a.aval.ndim for a in eqn.invars) == [1, 2]


def test_no_product_is_made_again_in_an_iterations_reverse() -> None:
    """Beside the product that pulls back, those left are on the way to a state that was not kept, or a loop inside."""
    (code,) = (f.jaxpr for f in gradient(gated).reverse.program.functions.values())
    assert products(code).count(1) == 1
    (code,) = (f.jaxpr for f in gradient(gated, 32).reverse.program.functions.values())
    assert products(code).count(1) == 2
    # Of the nest: two products pulled back, and in the reverse of the inner loop one.
    (code,) = (f.jaxpr for f in gradient(nested).reverse.program.functions.values())
    assert products(code).count(1) == 2
    (code,) = (f.jaxpr for f in gradient(nested, 32).reverse.program.functions.values())
    assert products(code).count(1) == 4


@pytest.mark.parametrize("program", [gated, nested], ids=["gated", "nested"])
def test_memory_is_a_few_times_that_of_the_states(program: Any) -> None:
    """What an inner loop keeps does not outlive its iteration, so a nest takes as much as its outer loop."""
    states = kept_numbers(program, Checkpoints().slots(4 * WIDTH))
    assert states < kept_numbers(program) <= (1 + BESIDE) * states


@pytest.mark.parametrize("setting", ["sqrt", 1, 3])
def test_settings_mean_states(setting: Any) -> None:
    number = Checkpoints(setting, records=32).slots(1)
    assert kept_numbers(gated, setting) <= number * WIDTH + WIDTH


def test_what_takes_more_than_that_is_made_again() -> None:
    @lw.program
    def widened(w, x, n):
        i = 0
        while i < n:
            x = 0.5 * x + jnp.tanh(w @ x).sum() * x
            i += 1
        return x

    def slots(width: int) -> set[tuple[int, ...]]:
        w = np.ones((width, WIDTH), np.float32)
        staged, _ = widened.stage(w, operands()[1], 3)
        found = vjp_program(staged.program, (True, True, False), Checkpoints())
        return {a.shape for a in found.forward.program.out_avals if a.ndim == 2}

    assert {shape[1] for shape in slots(2 * WIDTH)} == {WIDTH, 2 * WIDTH}
    assert {shape[1] for shape in slots(9 * WIDTH)} == {WIDTH}


def test_a_product_in_a_branch_is_not_made_again() -> None:
    """In a frame, and in a loop of known length."""

    def looped(w: Any, x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            taken = lax.cond(x[0] > 0.1, lambda x: 0.5 * x - jnp.tanh(w @ x), lambda x: 0.7 * x, x)
            return taken, None

        return lax.scan(body, x, length=5)[0]

    staged, _ = lw.lift(looped).stage(*operands())
    (code,) = (
        f.jaxpr
        for f in vjp_program(
            staged.program, (True, True), Checkpoints()
        ).reverse.program.functions.values()
    )
    assert len(products(code)) == 1
