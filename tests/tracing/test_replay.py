"""Calls outside `jit`: traced once for each signature, then replayed with the same answers and the same errors."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from comparing import assert_same
from lanewise import _jax
from lanewise.core.errors import LaneError, OptionError
from programs.small import collatz, fib

SIZES = jnp.arange(1, 7)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call that is recorded and not replayed."""
    seen: list[int] = []
    trace_at = _jax.trace_at

    def counting(fun, values):
        if fun.__qualname__.startswith("_record"):
            seen.append(len(values))
        return trace_at(fun, values)

    monkeypatch.setattr(_jax, "trace_at", counting)
    return seen


def test_a_signature_is_gone_through_once(recorded: list[int]) -> None:
    went_through = []

    @lw.program
    def halvings(n):
        went_through.append(n)
        count = 0
        while n > 1:
            n = n // 2
            count += 1
        return count

    batched, expected = lw.vmap(halvings), [0, 1, 1, 2, 2, 2]
    for _ in range(3):
        assert batched(SIZES).tolist() == lw.vmap(halvings)(SIZES).tolist() == expected
        assert halvings(SIZES[3]) == 2
    once = len(went_through)
    assert recorded == [1, 1]
    assert jax.vmap(halvings)(SIZES).tolist() == jax.jit(batched)(SIZES).tolist() == expected
    assert len(went_through) == once and recorded == [1, 1]


@pytest.mark.parametrize("carrier", ["auto", "ticks"])
def test_a_repeated_call_compiles_nothing(carrier: str, caplog: pytest.LogCaptureFixture) -> None:
    calls = [
        (lw.vmap(fib, carrier=carrier), SIZES),
        (lw.vmap(lambda x: lax.map(collatz, x), 1, 1, carrier=carrier), SIZES[None]),
        (lw.vmap(collatz, max_steps=100, stats=True, carrier=carrier), SIZES),
        (lw.vmap(collatz, lanes=3, carrier=carrier), SIZES),
        (fib.with_options(carrier=carrier), SIZES[5]),
    ]
    first = [fun(argument) for fun, argument in calls]
    with jax.log_compiles():
        again = [fun(argument) for fun, argument in calls]
    assert not [text for text in caplog.messages if "ompil" in text]
    # How long threads were busy differs from call to call.
    first[2], again[2] = first[2][0], again[2][0]
    assert_same(again, first, 1e-6)


def test_what_a_trace_depends_on_is_distinguished(recorded: list[int]) -> None:
    double = lw.lift(lambda x: 2 * x)
    values = (1, 1.5, True, np.float32(1), np.ones(2), np.arange(2), jnp.ones(2), jnp.ones(3))
    for value in (*values, *values, 2, 2.5):
        expected, found = jax.jit(lambda x: 2 * x)(value), double(value)
        assert found.tolist() == expected.tolist()
        assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)
    assert len(recorded) == len(values)
    with jax.enable_x64(True):
        assert double(np.ones(2)).dtype == np.float64
    assert double(np.ones(2)).dtype == np.float32
    assert len(recorded) == len(values) + 1
    with pytest.raises(OverflowError):
        double(2**70)


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "x", "bias"),
    [
        (0, 0, (4, 3), (4,)),
        ((1, None), (1, None), (3, 4), ()),
        ([-1, 0], (-1, 0), (3, 4), (4,)),
        ((None, 0), 0, (3,), (4,)),
        ((1, {"k": None}), 0, (3, 4), ()),
    ],
)
def test_axes(in_axes, out_axes, x, bias) -> None:
    def pair(x, settings):
        bias = settings["k"]
        return lax.fori_loop(0, 3, lambda i, y: y / 2 + bias, x), bias + 1

    args = jnp.arange(12.0)[: np.prod(x)].reshape(x), {"k": jnp.ones(bias)}
    expected = jax.vmap(pair, in_axes, out_axes)(*args)
    batched = lw.vmap(pair, in_axes, out_axes)
    for _ in range(2):
        assert_same(batched(*args), expected, 1e-6)


def test_trees_keywords_statics_and_keys(recorded: list[int]) -> None:
    class Scale(eqx.Module):
        factor: jax.Array
        name: str = eqx.field(static=True)

    @lw.program(static_argnames="kind")
    def draw(key, scale, *, n, kind="normal", power=None):
        x = 0.0
        while n > 0:
            key, sub = jax.random.split(key)
            x += jax.random.normal(sub) if kind == "normal" else jax.random.uniform(sub)
            n -= 1
        return {"x": x * scale.factor, "said": scale.name if power is None else power}

    key, scale = jax.random.key(0), Scale(jnp.float32(2), "two")
    for _ in range(2):
        for kind in ("normal", "uniform"):
            found = draw(key, scale, n=3, kind=kind)
            expected = jax.jit(lambda k, kind=kind: draw(k, scale, n=3, kind=kind)["x"])(key)
            assert found["said"] == "two"
            assert_same(found["x"], expected, 1e-6)
        assert draw(key, scale, n=3, power="third")["said"] == "third"
    assert len(recorded) == 3


def test_a_static_argument_under_vmap() -> None:
    @lw.program(static_argnums=1)
    def power(x, n):
        assert isinstance(n, int)
        for _ in range(n):
            x = x * x
        return x

    batched = lw.vmap(power, in_axes=(0, None))
    for n in (1, 2, 1):
        assert batched(jnp.arange(3), n).tolist() == [0, 1, 2 ** (2**n)]
    with pytest.raises(OptionError, match="must be hashable"):
        power(1, [2])  # pyright: ignore[reportArgumentType]


def test_closures() -> None:
    weights = jnp.arange(3.0)

    @lw.program
    def dot(x):
        return x @ weights

    # As under `jax.jit`, what a trace closed over stays.
    assert dot(jnp.ones(3)) == 3
    before, weights = weights, 10 * weights
    assert dot(jnp.ones(3)) == before.sum()

    # A value of an enclosing trace is that trace's own.
    def outer(scale):
        batched = lw.vmap(lambda x: lax.while_loop(lambda y: y < 9, lambda y: y * scale, x))
        return batched(jnp.arange(1.0, 4.0))

    for scale in (2.0, 3.0):
        assert_same(jax.jit(outer)(scale), outer(scale), 1e-6)
    expected = jnp.stack([outer(2.0), outer(3.0)])
    assert_same(jax.vmap(outer)(jnp.array([2.0, 3.0])), expected, 1e-6)


@pytest.mark.parametrize("carrier", ["auto", "ticks"])
def test_failed_lanes_are_named_each_time(carrier: str) -> None:
    batched = lw.vmap(collatz, max_steps=5, carrier=carrier)
    for _ in range(2):
        with pytest.raises(LaneError, match="collatz: steps exhausted in 3 of 6 lanes: 2, 4, 5\\."):
            batched(SIZES)
        assert batched(SIZES[:2]).tolist() == [0, 1]
    answers, outcomes = lw.vmap(collatz, max_steps=5, throw=False, carrier=carrier)(SIZES)
    assert outcomes.ok().tolist() == [True, True, False, True, False, False]
    assert answers[3] == 2


@pytest.mark.parametrize("carrier", ["auto", "ticks"])
def test_stacks_grow_when_a_later_call_is_deeper(carrier: str) -> None:
    @lw.program
    def depth(n):
        if n <= 0:
            return 0
        return 1 + depth(n - 1)

    batched = lw.vmap(depth, carrier=carrier)
    for deepest in (3, 200, 3, 1500, 200):
        assert batched(jnp.array([1, deepest])).tolist() == [1, deepest]
        assert depth.with_options(carrier=carrier)(deepest) == deepest


def test_options_are_distinguished() -> None:
    assert collatz.with_options(max_steps=9)(SIZES[5]) == 8
    with pytest.raises(LaneError):
        collatz.with_options(max_steps=3)(SIZES[5])
    _, stats = collatz.with_options(stats=True)(SIZES[5])
    assert stats.steps > 0
    assert collatz(SIZES[5]) == 8


def test_without_jit_it_is_plain_python(recorded: list[int]) -> None:
    seen = []

    @lw.program
    def look(x):
        seen.append(x)
        return x + 1

    look(jnp.float32(1))
    with jax.disable_jit():
        assert look(jnp.float32(1)) == 2
        assert_same(lw.vmap(look)(jnp.ones(2)), jnp.full(2, 2.0), 1e-6)
    assert len(recorded) == 1 and seen[1] == 1


def test_arrays_that_were_given_away() -> None:
    x = jnp.arange(1, 7)
    batched = lw.vmap(collatz)
    batched(x)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        batched(x)


def test_the_wrapped_function_shows() -> None:
    assert lw.vmap(collatz).__name__ == "collatz"
    nested = lw.vmap(lw.vmap(collatz, carrier="ticks"), carrier="ticks")
    for _ in range(2):
        assert nested(SIZES.reshape(2, 3)).tolist() == [[0, 1, 7], [2, 5, 8]]
