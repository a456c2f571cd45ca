"""Rows by one matrix, and lanes that meet there: the same bits as each lane alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from cpp.checking import kernel_of, run_batch
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.meeting import LARGE_BYTES, MOST_LANES
from lanewise.cpp.toolchain import host

pytestmark = needs.compiler
WIDTH = 96
assert WIDTH * WIDTH * 4 >= LARGE_BYTES


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(
    "left, right",
    [
        ((4,), (4, 16)),
        ((7,), (7, 17)),
        ((1, 5), (5, 600)),
        ((3, 130), (130, 33)),
        ((2, 3, 10), (10, 40)),
        ((13, 9), (9, 513)),
    ],
)
@pytest.mark.parametrize("dtype", needs.in_turns(["float32", "float64"]))
def test_rows_by_a_matrix(left: Any, right: Any, dtype: str) -> None:
    with jax.enable_x64(True):
        x, w = normal(0, 3, *left).astype(dtype), normal(1, *right).astype(dtype)
        (found,) = run_batch(lambda x, w: x @ w, x, w, uniform=(1,))
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(found, x.astype("float64") @ w, rtol=tolerance, atol=tolerance)
        # Each row's bits are those it has alone.
        rows = x.reshape(-1, 1, left[-1])
        (alone,) = run_batch(lambda x, w: x @ w, rows, w, uniform=(1,))
        np.testing.assert_array_equal(found.reshape(-1, right[1]), alone[:, 0])


@pytest.mark.parametrize(
    "left, right",
    [
        ((16,), (16, 16)),
        ((40,), (37, 40)),
        ((1, 65), (100, 65)),
        ((3, 130), (33, 130)),
        ((2, 3, 17), (40, 17)),
        ((13, 31), (16, 31)),
    ],
)
@pytest.mark.parametrize("dtype", needs.in_turns(["float64", "float32"]))
def test_rows_by_a_transposed_matrix(left: Any, right: Any, dtype: str) -> None:
    with jax.enable_x64(True):
        x, w = normal(0, 3, *left).astype(dtype), normal(1, *right).astype(dtype)
        w[0, -1], x[0, ..., 0] = np.inf, np.nan
        by_rows = lambda x, w: jnp.einsum("...k,nk->...n", x, w)  # noqa: E731
        (found,) = run_batch(by_rows, x, w, uniform=(1,))
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        expected = x.astype("float64") @ w.astype("float64").T
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
        # Each row's bits are those it has alone, also where the matrix comes first.
        rows = x.reshape(-1, left[-1])
        (alone,) = run_batch(lambda x, w: w @ x, rows, w, uniform=(1,))
        np.testing.assert_array_equal(found.reshape(-1, right[0]), alone)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows, high, wide", [(5, 8, 16), (33, 24, 48), (64, 16, 160)])
def test_sums_over_the_rows_of_two_matrices(rows: int, high: int, wide: int, dtype: str) -> None:
    with jax.enable_x64(True):
        x = normal(0, 3, rows, high).astype(dtype)
        g = normal(1, 3, rows, wide).astype(dtype)
        (found,) = run_batch(lambda x, g: x.T @ g, x, g)
        (turned,) = run_batch(lambda x, g: jnp.tensordot(g, 2 * x, [[0], [0]]).T, x, g)
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    expected = np.einsum("bki,bkj->bij", x.astype("float64"), g.astype("float64"))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(turned, 2 * expected, rtol=tolerance, atol=tolerance)


def test_a_part_of_a_stack_of_matrices_and_a_transposed_left_side() -> None:
    x, w = normal(0, 2, 20, 3).astype("float32"), normal(1, 4, 20, 32).astype("float32")
    (found,) = run_batch(lambda x, w: x.T @ w[2] + x.T @ w[3], x, w, uniform=(1,))
    np.testing.assert_allclose(found, x.transpose(0, 2, 1) @ (w[2] + w[3]), rtol=1e-4, atol=1e-5)


def turned(x: Any, trips: Any, first: Any, second: Any) -> Any:
    """A loop through two products; some lanes go through the second more often."""

    def body(carry: Any) -> Any:
        x, i = carry
        x = jnp.tanh(x @ first)
        x = jax.lax.cond(i % 3 == trips % 3, lambda x: jnp.sin(x @ second), lambda x: x, x)
        return x, i + 1

    return jax.lax.while_loop(lambda carry: carry[1] < trips, body, (x, jnp.int32(0)))[0]


def arguments(lanes: int) -> list[np.ndarray]:
    weights = normal(2, 2, WIDTH, WIDTH).astype("float32") / 8
    trips = np.random.default_rng(3).integers(0, 12, lanes).astype(np.int32)
    return [normal(4, lanes, WIDTH).astype("float32"), trips, *weights]


def emitted_for(f: Callable[..., Any], batch: list[np.ndarray]) -> Emitted:
    return kernel_of(f, [batch[0][0], batch[1][0], *batch[2:]], (True, True, False, False))


COUNTED = """
extern "C" { int lw_most_rows = 0; }
static void lw_note(int rows) { if (rows > lw_most_rows) lw_most_rows = rows; }
static bool lw_take_turn("""


def with_count(emitted: Emitted) -> Emitted:
    """The kernel, which notes the most rows that had a turn together."""
    text = emitted.text.replace("static bool lw_take_turn(", COUNTED, 1)
    call = "chosen.multiply(left, answer, rows, chosen.right, chosen.terms, chosen.columns);"
    assert call in text
    return replace(emitted, text=text.replace(call, f"{call} lw_note(rows);"))


def by_parts(x: Any, trips: Any, first: Any, second: Any) -> Any:
    """Products with a matrix and its transpose, and with a part of it that begins where it begins."""

    def body(carry: Any) -> Any:
        x, i = carry
        x = jnp.tanh(x @ first) @ first.T
        part = lambda x: jnp.sin(x.at[: WIDTH - 2].set(x[: WIDTH - 2] @ second[: WIDTH - 2, :-2]))  # noqa: E731
        x = jax.lax.cond(i % 3 == trips % 3, lambda x: x[:-1] @ first[:-1], part, x)
        return x, i + 1

    return jax.lax.while_loop(lambda carry: carry[1] < trips, body, (x, jnp.int32(0)))[0]


@pytest.mark.parametrize("f", [turned, by_parts])
@pytest.mark.parametrize("lanes", [1, 2, 5, 40])
def test_lanes_that_meet_answer_the_same_bits(lanes: int, f: Any) -> None:
    batch = arguments(lanes)
    emitted = with_count(emitted_for(f, batch))
    alone = host.run(emitted, batch, lanes, threads=1, lanes=1).answers
    most = ctypes.c_int.in_dll(host.load(emitted.text), "lw_most_rows")
    assert most.value == 0
    together = host.run(emitted, batch, lanes, threads=1).answers
    np.testing.assert_array_equal(together[0], alone[0])
    expected = 0 if lanes == 1 else min(lanes, MOST_LANES)
    # All lanes begin at the first product, but for those that make no trip.
    assert most.value <= expected and (most.value > 1) == (lanes > 1)
    spread = host.run(emitted, batch, lanes, threads=3, lanes=4).answers
    np.testing.assert_array_equal(spread[0], alone[0])


def test_a_lane_alone_at_its_matrix_has_its_turn() -> None:
    """One lane goes round by the second matrix, for long; the others by the first."""

    def f(x: Any, which: Any, first: Any, second: Any) -> Any:
        def by(w: Any) -> Any:
            return lambda x: jax.lax.fori_loop(0, 30, lambda i, x: jnp.tanh(x @ w), x)

        return jax.lax.cond(which > 0, by(first), by(second), x)

    batch = arguments(9)
    batch[1] = np.array([1, 1, 1, 0, 1, 1, 1, 1, 1], np.int32)
    emitted = emitted_for(f, batch)
    alone = host.run(emitted, batch, 9, threads=1, lanes=1).answers
    together = host.run(emitted, batch, 9, threads=1).answers
    np.testing.assert_array_equal(together[0], alone[0])


def test_recursion_and_failures_among_lanes_that_meet() -> None:
    weight = jnp.asarray(normal(5, WIDTH, WIDTH), jnp.float32) / 10

    @lw.program
    def descend(x, n):
        assert n != 7
        x = jnp.tanh(x @ weight)
        if n <= 0:
            return x
        return x + descend(x, n - 1)

    x = jnp.asarray(normal(6, 12, WIDTH), jnp.float32)
    depth = jnp.arange(12, dtype=jnp.int32) % 9
    found, outcomes = lw.vmap(descend, carrier="native", throw=False)(x, depth)
    for lane in range(12):
        if int(depth[lane]) < 7:
            alone = lw.vmap(descend, carrier="native")(x[lane : lane + 1], depth[lane : lane + 1])
            np.testing.assert_array_equal(found[lane], alone[0])
    assert outcomes.ok().tolist() == [int(d) < 7 for d in depth]


def test_lanes_with_large_frames_meet() -> None:
    """Room for many frames is not memory that is used: it keeps no lane from running beside others."""

    @lw.program(carrier="native")
    def descend(weight, x, n):
        y = jnp.tanh(x @ weight)
        if n <= 0:
            return y
        return y * descend(weight, y, n - 1) + x

    weight = normal(5, WIDTH, WIDTH).astype("float32") / 10
    x, n = normal(6, 12, WIDTH).astype("float32"), np.arange(12, dtype=np.int32)
    plan = lw.inspect(descend, weight, x, n, in_axes=(None, 0, 0)).plan
    assert plan.emitted is not None and plan.emitted.frame_bytes > 2 * 4 * WIDTH
    emitted = with_count(plan.emitted)
    found = host.run(emitted, [weight, x, n], 12, threads=1, capacity=1 << 18).answers[0]
    np.testing.assert_allclose(found[0], np.tanh(x[0] @ weight), rtol=1e-5, atol=1e-5)
    assert ctypes.c_int.in_dll(host.load(emitted.text), "lw_most_rows").value == 12


def test_a_gradient_sums_over_lanes_that_meet() -> None:
    x, trips, first, _ = arguments(6)

    def loss(w: Any, mapped: Any) -> Any:
        def f(x: Any, n: Any) -> Any:
            return jax.lax.while_loop(
                lambda c: c[1] < n, lambda c: (jnp.tanh(c[0] @ w), c[1] + 1), (x, jnp.int32(0))
            )[0]

        return jnp.sum(mapped(f)(x, trips) ** 2)

    weight = jnp.asarray(first)
    expected = jax.grad(
        lambda w: jnp.sum(
            jax.vmap(
                lambda x, n: jax.lax.scan(
                    lambda x, i: (jnp.where(i < n, jnp.tanh(x @ w), x), None), x, jnp.arange(12)
                )[0]
            )(x, trips)
            ** 2
        )
    )(weight)
    found = jax.grad(lambda w: loss(w, lambda f: lw.vmap(f, carrier="native")))(weight)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
