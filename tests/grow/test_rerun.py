"""Stacks that grow where each lane runs separately: only lanes whose stacks were full start again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.carriers import native
from lanewise.core.errors import Outcome
from lanewise.grow.rerun import Rerun
from seeing import forget_plans

pytestmark = needs.on_cpu  # it asks for `native`


@lw.program
def down(n, key):
    """As deep as it is asked to, with a key to hand back."""
    if n == 0:
        return jnp.float32(0.0), key
    below, key = down(n - 1, key)
    return below + 1.0, key


def counting(widths: list[int]) -> Rerun:
    """Lanes that want as much room as their number; `widths` records how many run at a time."""

    def run(n: Any, *, capacity: int) -> list[Any]:
        full = n > capacity
        jax.debug.callback(lambda n: widths.append(n.size), n, ordered=True)
        code = jnp.where(full, int(Outcome.STACK_OVERFLOW), int(Outcome.DONE))
        return [jnp.where(full, -1, 2 * n), code, jnp.zeros_like(n)]

    def part(n: Any, *, rows: Any, capacity: int) -> list[Any]:
        return run(n.reshape(-1)[rows], capacity=capacity)

    return Rerun(run, part, codes=1, first=4, most=1000, around=lambda run: run)


def test_only_full_lanes_start_again() -> None:
    widths: list[int] = []
    n = jnp.array([[1, 2, 30, 3], [4, 100, 2, 17]])
    out = counting(widths).run_growing([n])
    jax.effects_barrier()
    np.testing.assert_array_equal(out[0], 2 * n)
    assert not np.any(out[1])
    assert widths == [8, 4, 4, 1]


def test_most_lanes_start_again_together() -> None:
    widths: list[int] = []
    out = counting(widths).run_growing([jnp.array([9, 10, 11, 1])])
    jax.effects_barrier()
    np.testing.assert_array_equal(out[0], [18, 20, 22, 2])
    assert widths == [4, 4]


def test_the_room_is_remembered() -> None:
    widths: list[int] = []
    machine = counting(widths)
    for _ in range(2):
        machine.run_growing([jnp.array([1, 2, 3, 10])])
    jax.effects_barrier()
    assert widths == [4, 1, 4]


@pytest.mark.parametrize("axes", [(0, 0), (0, None)])
def test_deep_lanes_among_shallow_ones(axes: tuple[Any, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "DEEP", 4)
    forget_plans()
    n = jnp.array([1, 90, 3, 0, 5, 2, 1, 20])
    keys = jax.random.split(jax.random.key(0), 8)
    given = keys if axes[1] == 0 else keys[0]
    depth, back = lw.vmap(down, in_axes=axes, carrier="native")(n, given)
    np.testing.assert_array_equal(depth, n)
    assert (jax.random.key_data(back) == jax.random.key_data(given)).all()
