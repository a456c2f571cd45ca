"""What lanes share stays structured; what parts them becomes blocks."""

from __future__ import annotations

from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call

import lanewise as lw
from seeing import all_blocks, blocks_of, branches, operations

INT = jnp.int32(3)
FLOAT = jnp.float32(1)


def counted(x, n):
    return lax.fori_loop(0, n, lambda i, x: jnp.sin(x) + i, x)


def test_a_uniform_trip_count_stays_one_equation() -> None:
    program = blocks_of(counted, FLOAT, INT, varying=[True, False])
    assert len(all_blocks(program)) == 1
    assert "while" in operations(all_blocks(program))


def test_a_varying_trip_count_is_flattened() -> None:
    program = blocks_of(counted, FLOAT, INT, varying=[True, True])
    assert branches(program)
    assert "while" not in operations(all_blocks(program))


def test_a_scan_stays_a_scan_unless_its_body_parts() -> None:
    def summed(xs, n):
        return lax.scan(lambda c, x: (c + x, c), FLOAT, xs)

    def parting(xs, n):
        return lax.scan(
            lambda c, x: (lax.while_loop(lambda c: c < n, lambda c: c + x + 1, c), c), FLOAT, xs
        )

    xs = jnp.arange(3.0)
    assert "scan" in operations(all_blocks(blocks_of(summed, xs, FLOAT)))
    flat = blocks_of(parting, xs, FLOAT)
    assert "scan" not in operations(all_blocks(flat)) and branches(flat)
    expected = jax.vmap(parting, in_axes=(0, 0))(jnp.stack([xs, xs + 1]), jnp.array([5.0, 9.0]))
    found = lw.vmap(parting)(jnp.stack([xs, xs + 1]), jnp.array([5.0, 9.0]))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), found, expected))


def expensive(flag, m):
    return lax.cond(flag > 0, lambda: m @ m @ m, lambda: m)


def test_a_uniform_cond_stays_a_cond() -> None:
    m = jnp.ones((16, 16))
    program = blocks_of(expensive, INT, m, varying=[False, True])
    assert len(all_blocks(program)) == 1 and "cond" in operations(all_blocks(program))
    parted = blocks_of(expensive, INT, m, varying=[True, True])
    assert branches(parted) and "cond" not in operations(all_blocks(parted))


def test_every_loop_is_flattened_to_count_steps() -> None:
    program = blocks_of(counted, FLOAT, INT, varying=[True, False], every_loop=True)
    assert "while" not in operations(all_blocks(program))
    assert sum(block.steps for block in all_blocks(program)) == 2


@pytest.mark.parametrize("schedule", ["auto", "sweep", "most", "lowest"])
def test_equinox_looks_at_its_own_lane_only(schedule: str) -> None:
    def any_of(x):
        return jnp.where(eqxi.unvmap_any(x > 0), x, -x) + jnp.where(eqxi.unvmap_all(x > 0), 10, 0)

    def looped(x):
        return any_of(lax.while_loop(lambda x: x > 5, lambda x: x - 1, x))

    xs = jnp.array([3, -3, 9])
    assert lw.vmap(looped, schedule=schedule)(xs).tolist() == [13, 3, 15]
    assert lw.vmap(any_of, schedule=schedule)(xs).tolist() == [int(any_of(x)) for x in xs]


def test_what_refuses_lanes_is_plain_code_on_one() -> None:
    """Equinox's checkpointed loop, differentiated for one lane, has counters that its rules refuse to batch."""

    def grown(x):
        def step(c):
            return c[0] * 1.3 + 0.1 * x, c[1] + 1

        start = (x + 1.0, 0)
        return eqxi.while_loop(
            lambda c: c[0] < 20.0, step, start, max_steps=64, kind="checkpointed"
        )[0]

    xs = jnp.array([0.3, 4.0, 9.5])
    want = [jax.grad(grown)(x) for x in xs]
    for found in (
        lw.vmap(jax.grad(lw.lift(grown)))(xs),
        jax.jit(jax.vmap(jax.grad(lw.lift(grown))))(xs),
    ):
        np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"schedule": "sweep"}, {"schedule": "plain"}])
def test_what_jax_does_not_batch(options: dict[str, Any]) -> None:
    named = lax.composite(lambda x: jnp.sin(x) * x, "ours.named")

    def linear(x):
        return linear_call(lambda r, x: r * x, lambda r, x: r * x, 1.2, x)

    def grown(x, n):
        return lax.fori_loop(0, n, lambda _, x: linear(x) + 0.1 * named(x), x)

    x, n = jnp.array([0.3, 1.2, 0.7]), jnp.array([0, 3, 5])
    want = [grown(*args) for args in zip(x, n, strict=True)]
    np.testing.assert_allclose(lw.vmap(grown, **options)(x, n), want, rtol=1e-5)


def test_a_uniform_loop_never_runs_on_values_that_are_not_there() -> None:
    # `step` is made in an expensive block that no lane reaches in the first tick; a loop that ran on it would not end.
    def f(x, w):
        x = lax.while_loop(lambda x: x > 0, lambda x: x - 1, x)
        step = 1.0 + (w @ w)[0, 0] * 0
        x = lax.while_loop(lambda x: x < 3, lambda x: x + 1, x)
        return x + lax.while_loop(lambda t: t < 10.0, lambda t: t + step, 0.0)

    found = lw.vmap(f, in_axes=(0, None), schedule="sweep")(
        jnp.array([3.0, 5.0]), jnp.ones((64, 64))
    )
    assert found.tolist() == [13.0, 13.0]


def test_effects_in_a_parting_program_are_refused_with_their_line() -> None:
    def talks(x):
        x = lax.while_loop(lambda x: x > 0, lambda x: x - 1, x)
        jax.debug.print("{}", x)
        return x

    with pytest.raises(lw.errors.TransformError, match="test_divergence"):
        lw.vmap(talks)(jnp.array([1, 2]))
