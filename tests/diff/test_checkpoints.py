"""Which states a loop keeps: properties of the scheme, and gradients of loops of every length."""

from __future__ import annotations

import functools
import math
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

import lanewise as lw
from lanewise.diff.checkpoint import Checkpoints, next_kept, recomputed

ROOM = 200
AT_WORK = 4  # states that a step and its reverse have in hand


@lw.program
def rotated(x, w, n):
    """Every state differs, and the order matters."""
    i = 0
    while i < n:
        x = jnp.sin(x + 0.1 * i) * w + 0.3 * x
        i += 1
    return x


@jax.jit
def plain_gradient(x: Any, w: Any, n: Any) -> Any:
    def last(x: Any, w: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            return jnp.where(i < n, jnp.sin(x + 0.1 * i) * w + 0.3 * x, x), None

        return lax.scan(step, x, jnp.arange(ROOM))[0]

    return jax.grad(last, (0, 1))(x, w)


@functools.cache
def gradient(setting: Any) -> Any:
    return jax.jit(jax.grad(rotated.with_options(checkpoints=setting, tape=ROOM), (0, 1)))


@pytest.mark.parametrize("setting", ["auto", "all", "sqrt", 1, 2, 3, 8])
def test_loops_of_every_length(setting: Any) -> None:
    @hypothesis.settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @hypothesis.given(st.integers(0, ROOM))
    @hypothesis.example(0)
    @hypothesis.example(1)
    @hypothesis.example(ROOM)
    def compare(n: int) -> None:
        found, expected = gradient(setting)(0.4, 1.4, n), plain_gradient(0.4, 1.4, n)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)

    compare()


@pytest.mark.parametrize("setting", ["sqrt", 3, 64])
@pytest.mark.parametrize("reverse", [False, True])
def test_strips_of_a_scan(setting: Any, reverse: bool) -> None:
    """Lengths that strips do and do not divide, state, slices and results."""

    def last(x: Any, table: Any) -> Any:
        def step(x: Any, row: Any) -> Any:
            x = jnp.sin(x + row[0]) * row[1]
            return x, x * x

        x, squares = lax.scan(step, x, table, reverse=reverse)
        return x + jnp.sum(squares * jnp.arange(len(table)))

    for length in (9, 10):
        table = jax.random.normal(jax.random.key(0), (length, 2))
        found = jax.jit(lw.grad(last, (0, 1), checkpoints=setting))(0.4, table)
        for ours, theirs in zip(found, jax.grad(last, (0, 1))(0.4, table), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


# -- the scheme in plain Python -----------------------------------------------------------------------

_next_kept = jax.jit(next_kept)


def kept_by_forward_sweep(n: int, slots: int) -> list[int]:
    """Iterations whose states are kept: at even distances, doubled whenever an even number of slots is full."""
    even = slots - slots % 2
    distance = 1
    while n > even * distance:
        if not even:
            return [0]
        distance *= 2
    return list(range(0, n, distance))


def iterations_run_again(n: int, slots: int) -> int:
    """How often the reverse sweep runs the body only to reach a state."""
    kept, again = kept_by_forward_sweep(n, slots), 0
    for wanted in reversed(range(n)):
        if kept[-1] > wanted:
            kept.pop()
        at = kept[-1]
        while at < wanted:
            ahead = int(_next_kept(jnp.int32(wanted - at), jnp.int32(slots - len(kept))))
            assert 1 <= ahead <= wanted - at
            at, again = at + ahead, again + ahead
            if len(kept) < slots:
                kept.append(at)
        assert at == wanted and len(kept) <= slots
    return again


def fewest_iterations(n: int, slots: int) -> int:
    """The optimum where the length is known ahead (Griewank and Walther 2000), less the first run."""
    times = 0
    while math.comb(slots + times, slots) < n:
        times += 1
    return max(times * n - math.comb(slots + times, slots + 1) - n, 0)


@hypothesis.settings(max_examples=60, deadline=None, database=None, derandomize=True)
@hypothesis.given(st.integers(1, 400), st.integers(1, 24))
def test_the_scheme_is_near_the_optimum(n: int, slots: int) -> None:
    again, fewest = iterations_run_again(n, slots), fewest_iterations(n, slots)
    # With very few slots the even distances of the forward sweep leave too few free ones for the way back.
    assert again <= (2 if slots >= 8 else 5) * (fewest + n)
    assert again == recomputed(n, slots)
    if n <= slots - slots % 2:
        assert again == 0


@pytest.mark.parametrize("setting", [1, 7, 64])
def test_a_loop_holds_as_many_states_as_it_is_given(setting: int) -> None:
    """Counted by what XLA takes in memory beside arguments and results: the states, and a few that are at work."""
    numbers = 4096

    def held(setting: int) -> float:
        grad = lw.grad(settled, argnums=(0, 1), checkpoints=setting)
        made = jax.jit(grad).lower(jnp.zeros(numbers), jnp.zeros(numbers), 10).compile()
        memory = made.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes / (4 * numbers)

    assert held(setting) - held(1) == pytest.approx(setting - 1, abs=0.5)
    assert held(setting) <= setting + AT_WORK


@lw.program
def settled(x, w, n):
    while n > 0:
        x = x + 0.1 * jnp.sin(w * x)
        n -= 1
    return jnp.sum(x**2)


@hypothesis.settings(max_examples=100, deadline=None, database=None, derandomize=True)
@hypothesis.given(st.integers(1, 2**30), st.integers(1, 1024))
def test_strips_and_slots(length: int, number: int) -> None:
    strip = Checkpoints(number).strip(length, 0)
    if strip:
        assert 1 < strip < length and math.ceil(length / strip) <= max(number, 2)
    else:
        assert length <= max(number, 3)
    assert Checkpoints(number).slots(4) == number
    root = Checkpoints("sqrt").strip(length, 0)
    assert root == 0 if length < 4 else root * root >= length > (root - 1) ** 2
