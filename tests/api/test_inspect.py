"""What `lw.inspect` reports."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lanewise as lw
from lanewise.core.errors import OptionError
from programs.small import fib


def iterate(x, w, n):
    return lax.fori_loop(0, n, lambda i, x: jnp.tanh(w @ w @ x), x)


def test_everything_is_printed() -> None:
    found = lw.inspect(fib.with_options(carrier="ticks"), jnp.arange(5))
    text = str(found)
    for part in (
        "program\n",
        "blocks\n",
        "function fib",
        "storage",
        "stack",
        "ops",
        "carrier ticks",
        "schedule sweep",
    ):
        assert part in text, part
    assert found.lanes == 5 and found.plan.why in text and "5 lanes; expensive blocks: none" in text
    assert repr(found) == text


def test_nothing_runs() -> None:
    forever = lw.lift(lambda n: lax.while_loop(lambda n: n == n, lambda n: n + 1, n))
    assert lw.inspect(forever, jnp.arange(3)).lanes == 3


def test_expensive_blocks_and_uniform_weights() -> None:
    args = (jnp.ones((64, 48)), jnp.ones((48, 48)), jnp.arange(64))
    found = lw.inspect(lw.lift(iterate, schedule="sweep"), *args, in_axes=(0, None, 0))
    (weights,) = [var for var in found.storage.registers if var.aval.shape == (48, 48)]
    assert weights in found.storage.uniform
    expensive = str(found).rsplit("expensive blocks: ", 1)[1].strip()
    assert f"block {expensive} (body)" in str(found)


def test_plain_where_nothing_diverges() -> None:
    found = lw.inspect(iterate, jnp.ones((4, 3)), jnp.ones((3, 3)), 5, in_axes=(0, None, None))
    assert found.plan.plain and "nothing diverges" in found.plan.why
    assert "plainly vectorized" in str(found)
    lone = lw.inspect(iterate, jnp.ones(3), jnp.ones((3, 3)), 5, in_axes=None)
    assert lone.lanes is None and "one lane" in str(lone)


def test_options_are_the_programs_own() -> None:
    asked = lw.inspect(fib.with_options(schedule="most", max_steps=9), jnp.arange(3))
    assert asked.plan.schedule == "most" and asked.plan.why == "asked for"
    assert asked.options.max_steps == 9


def test_keywords_static_leaves_and_keys() -> None:
    @lw.program(static_argnames="kind")
    def draw(key, *, n, kind="normal"):
        x = 0.0
        while n > 0:
            key, sub = jax.random.split(key)
            x = jax.random.normal(sub) if kind == "normal" else jax.random.uniform(sub)
            n -= 1
        return x

    found = lw.inspect(draw, jax.random.split(jax.random.key(0), 4), n=jnp.arange(4))
    assert found.lanes == 4 and "random" in str(found)


def test_wrong_axes_are_named() -> None:
    with pytest.raises(OptionError, match=r"different sizes.*3, 4"):
        lw.inspect(iterate, jnp.ones((3, 2)), jnp.ones((2, 2)), jnp.arange(4), in_axes=(0, None, 0))
    with pytest.raises(OptionError, match=r"in_axes=\(0, 0\) does not fit"):
        lw.inspect(fib, jnp.arange(3), in_axes=(0, 0))
    with pytest.raises(OptionError, match=r"takes a function|made from a function"):
        lw.inspect(3, jnp.arange(3))  # pyright: ignore[reportArgumentType]
