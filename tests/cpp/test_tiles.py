"""Lanes in step answer what each answers alone, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from cpp.checking import words
from lanewise.core.options import Options
from lanewise.cpp.emit.emit import emit
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import kernel_blocks
from lanewise.cpp.toolchain import host
from lanewise.cpp.variants.tiles import TILE, tiled


def in_step(f: Callable[..., Any], args: Sequence[Any], varying: Sequence[bool]) -> Emitted | None:
    staged, _ = lw.program(f).stage(*args)
    linked = kernel_blocks(staged.program, varying, Options(), selects=True)
    return tiled(linked, varying)


def alone(f: Callable[..., Any], args: Sequence[Any], varying: Sequence[bool]) -> Emitted:
    staged, _ = lw.program(f).stage(*args)
    linked = kernel_blocks(staged.program, varying, Options())
    return emit(linked, varying)


def everything(x: jax.Array, n: jax.Array, key: jax.Array, limit: jax.Array) -> Any:
    """One loop with every operation that lanes in step have, and code before and after it."""
    x = x * 2.0

    def going(state: Any) -> jax.Array:
        return (state[2] < limit) & (state[1] != 1)

    def step(state: Any) -> Any:
        x, n, count, seen = state
        bits = jax.random.bits(jax.random.fold_in(key, count))
        even = n % 2 == 0
        n = jnp.where(even, n // 2, 3 * n + 1)
        n = jnp.clip(n ^ (bits >> 31).astype(jnp.int32), -100_000, 100_000) % 60_013
        y = jnp.sqrt(jnp.abs(x)) - jnp.floor(x / 3.0) + jnp.maximum(x, -x) * 0.25
        y = jnp.where(lax.is_finite(y), y, jnp.sign(x)) + lax.rsqrt(x * x + 1.0) + x**3 * 1e-9
        y = lax.clamp(jnp.float32(-1e4), lax.round(y * 8.0) / 8.0 - jnp.ceil(x), jnp.float32(1e4))
        seen = seen | (~bits & (jnp.uint32(1) << (count & 31).astype(jnp.uint32)))
        seen = seen + lax.bitcast_convert_type(y, jnp.uint32) % 7
        return y, n, count + 1, seen

    start = (x, n, jnp.int32(0), jnp.uint32(0))
    x, n, count, seen = lax.while_loop(going, step, start)
    return jnp.sin(x), n, count, seen


def batch(examples: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x = rng.normal(scale=50.0, size=examples).astype(np.float32)
    n = np.where(rng.random(examples) < 0.2, 1, rng.integers(-9, 9_999, examples)).astype(np.int32)
    keys = jax.random.split(jax.random.key(3), examples)
    return x, n, keys, np.int32(40)


FLAGS = [True, True, True, False]


@pytest.mark.parametrize(("examples", "threads"), [(1, 1), (TILE - 1, 2), (300, 3)])
def test_lanes_in_step_answer_the_same_bits(examples: int, threads: int) -> None:
    args = batch(examples)
    one = [x[0] if varies else x for x, varies in zip(args, FLAGS, strict=True)]
    tile = in_step(everything, one, FLAGS)
    assert tile is not None
    given = [words(x) for x in args]
    found = host.run(tile, given, examples, threads=threads)
    wanted = host.run(alone(everything, one, FLAGS), given, examples, threads=1)
    for ours, theirs in zip(found.answers, wanted.answers, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not found.code.any() and (found.site == -1).all()


def test_a_loop_that_starts_the_program() -> None:
    def halve(n):
        while True:
            n = n // 2
            if n < 3:
                break
        return n

    tile = in_step(halve, [np.int32(1)], [True])
    assert tile is not None
    n = np.arange(-50, 50, dtype=np.int32)
    np.testing.assert_array_equal(
        host.run(tile, [n], len(n)).answers[0], jax.vmap(lw.program(halve))(n)
    )


def sine(x):
    while x > 0.1:
        x = jnp.sin(x)
    return x


def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


def walks_an_array(x):
    total = jnp.zeros(3)
    while total[0] < x:
        total = total + 1.0
    return total


def nested(n):
    count = 0
    while n > 1:
        k = n
        while k > 0:
            k = k - 1
            count = count + 1
        n = n // 2
    return count


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (sine, [np.float32(1)]),
        (gcd, [np.int32(4), np.int32(6)]),
        (walks_an_array, [np.float32(2)]),
        (nested, [np.int32(3)]),
        (lambda x: x * 2.0, [np.float32(1)]),
    ],
    ids=["a call", "a division", "an array", "two loops", "no loop"],
)
def test_what_does_not_fit(f: Callable[..., Any], args: Sequence[Any]) -> None:
    assert in_step(f, args, [True] * len(args)) is None
