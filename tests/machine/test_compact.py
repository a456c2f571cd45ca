"""Expensive blocks run for the lanes that are there, tile by tile; nothing but the work changes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import Outcome
from lanewise.core.profile import Profile
from lanewise.machine import compact
from lanewise.machine.compact import tile_width
from lanewise.machine.worth import expensive_blocks
from seeing import linked_of, on_profile

WIDTH = 64


@lw.program
def tail(x, n, w):
    """Lanes leave one by one; the last ones are alone with the product."""
    i = 0
    while i < n:
        x = jnp.tanh(w @ (w @ x))
        i += 1
    assert i < 9, "too long"
    return x, i


@pytest.fixture
def always_packed(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Tiles of any size are worth it."""
    monkeypatch.setattr(compact, "CHOICE_OPERATIONS", 0.0)
    monkeypatch.setattr(compact, "AGREEMENT_OPERATIONS", 0.0)
    monkeypatch.setattr(compact, "FEWEST_LANES", 4)
    return on_profile(monkeypatch, tile_operations=0.0)


def arguments(lanes: int) -> tuple:
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.standard_normal((lanes, WIDTH)), jnp.float32)
    n = jnp.asarray(np.minimum(rng.geometric(0.3, lanes), 12), jnp.int32)
    w = jnp.asarray(rng.standard_normal((WIDTH, WIDTH)) / 8.0, jnp.float32)
    return x, n, w


def test_which_blocks_are_cut_into_tiles(always_packed: Profile) -> None:
    x, n, w = arguments(1)
    varying = (True, True, False)
    linked = linked_of(tail, x[0], n[0], w, varying=varying, profile=always_packed)
    (expensive,) = expensive_blocks(linked, 64)
    assert tile_width(linked, expensive, 64) == 4
    assert tile_width(linked, expensive, 8) is None


def test_small_blocks_run_at_full_width() -> None:
    x, n, w = arguments(1)
    linked = linked_of(tail, x[0], n[0], w, varying=(True, True, False))
    (expensive,) = expensive_blocks(linked, 64)
    assert tile_width(linked, expensive, 64) is None


@pytest.mark.parametrize("max_steps", [None, 6])
def test_answers_and_outcomes_are_the_same(always_packed: Profile, max_steps: int | None) -> None:
    lanes = 48
    batch = arguments(lanes)
    how = {"in_axes": (0, 0, None), "throw": False, "stats": True, "max_steps": max_steps}
    (packed, i), outcomes, stats = lw.vmap(tail, schedule="sweep", **how)(*batch)
    (wide, j), expected, full = lw.vmap(tail, schedule="lowest", **how)(*batch)
    assert i.tolist() == j.tolist()
    assert outcomes.code.tolist() == expected.code.tolist()
    assert {int(Outcome.DONE)} < set(outcomes.code.tolist())
    np.testing.assert_allclose(packed, wide, rtol=1e-4, atol=1e-5)
    assert int(stats.steps) == int(full.steps)
    # A run at full width is offered to all lanes, a tile to its own.
    assert float(stats.offered) < float(stats.runs) * lanes
    assert float(full.offered) == float(full.runs) * lanes
