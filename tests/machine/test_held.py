"""Rows that are held: the sums they lead to are those of adding each at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from comparing import assert_same
from lanewise.machine import held, tiles


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows at a time blocks hold."""
    widths: list[int] = []
    real = held._appended

    def append(parts: Any, totals: Any, rows: Any, values: Any, mask: Any) -> Any:
        widths.append(mask.shape[0])
        return real(parts, totals, rows, values, mask)

    monkeypatch.setattr(held, "_appended", append)
    return widths


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that are full after a few tiles, for sums of any size."""
    monkeypatch.setattr(held, "ROWS", 24)
    monkeypatch.setattr(held, "WIDEST", 16)
    monkeypatch.setattr(held, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(held, "LEAST_RATIO", 0)
    monkeypatch.setattr(tiles, "CHEAP_WIDTH", 16)


def arguments(lanes: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    weight = jnp.asarray(rng.normal(size=(6, 6)) / 3)
    return weight, jnp.asarray(rng.normal(size=(lanes, 6))), jnp.arange(lanes) % 4


def gradient(program: Any, **options: Any) -> Any:
    def loss(weight: Any, x: Any, depth: Any) -> Any:
        return (lw.vmap(program, (None, 0, 0), **options)(weight, x, depth) ** 2).sum()

    return jax.jit(jax.grad(loss, (0, 1)))


@pytest.mark.parametrize(("schedule", "lanes"), [("sweep", 9), ("sweep", 17), ("fork", 3)])
def test_sums_are_those_of_adding_at_once(
    few_rows: None, appended: list[int], schedule: str, lanes: int
) -> None:
    @lw.program
    def layers(weight, x, depth):
        h = jnp.tanh(weight @ x)
        if depth <= 0 or h[0] > 0.7:
            return h
        left = layers(weight, h + 0.3, depth - 1)
        return jnp.tanh(weight @ left) - layers(weight, 0.5 - h, depth - 2) * weight[0]

    with jax.enable_x64(True):
        args = arguments(lanes)
        run = gradient(layers, carrier="ticks", schedule=schedule, tape=64)
        found = run(*args)
        # A product over rows for each lane, and none over lanes: nothing is accumulated.
        each = jax.vmap(
            jax.grad(lambda w, x, d: (layers(w, x, d) ** 2).sum(), (0, 1)), (None, 0, 0)
        )
        weight, x = each(*args)
        assert_same(found, (weight.sum(0), x), 1e-9)
        # Seventeen lanes at once are enough for a product of their own.
        assert set(appended) == {"fork": {16}, "sweep": {9} if lanes == 9 else set()}[schedule]


def test_rows_of_lanes_that_have_ended(few_rows: None, appended: list[int]) -> None:
    """A loop whose lanes end at different times holds rows of no lane."""

    @lw.program
    def loop(weight, x, n):
        while n > 0:
            x = jnp.sin(weight @ x)
            n -= 1
        return x

    with jax.enable_x64(True):
        args = arguments(5)
        found = gradient(loop, carrier="ticks", schedule="sweep", tape=8)(*args)

        def by_hand(weight: Any, x: Any, n: Any) -> Any:
            for step in range(4):
                x = jnp.where(step < n, jnp.sin(weight @ x), x)
            return (x**2).sum()

        whole = jax.grad(lambda w, x: jax.vmap(by_hand, (None, 0, 0))(w, x, args[2]).sum(), (0, 1))
        assert_same(found, whole(*args[:2]), 1e-9)
        assert appended


def test_a_part_at_a_known_place_is_added_at_once(few_rows: None, appended: list[int]) -> None:
    """A row of a table that is always the same one, beside a product whose rows are held."""

    @lw.program
    def shifted(both, x, n):
        weight, table = both
        while n > 0:
            x = jnp.sin(weight @ x + table[1])
            n -= 1
        return x

    with jax.enable_x64(True):
        weight, x, n = arguments(5)
        both = (weight, jnp.concatenate([weight, -weight])[:8])
        found = gradient(shifted, carrier="ticks", schedule="sweep", tape=8)(both, x, n)

        def by_hand(both: Any, x: Any, n: Any) -> Any:
            for step in range(4):
                x = jnp.where(step < n, jnp.sin(both[0] @ x + both[1][1]), x)
            return (x**2).sum()

        whole = jax.grad(lambda w, x: jax.vmap(by_hand, (None, 0, 0))(w, x, n).sum(), (0, 1))
        assert_same(found, whole(both, x), 1e-9)
        assert appended


def test_small_sums_are_added_at_once(appended: list[int]) -> None:
    """What is no larger than its rows is not worth a buffer."""

    @lw.program
    def scaled(weight, x, n):
        while n > 0:
            x = jnp.sin(weight * x)
            n -= 1
        return x

    weight, x, n = arguments(3)
    jax.block_until_ready(gradient(scaled, carrier="ticks", tape=8)(weight[0], x, n))
    assert not appended
