"""Scans by operators that are linear in each operand: which are found, and what their derivatives cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lanewise as lw
from associative import Sample, affine, in_loop, sequence
from comparing import assert_same
from derivatives import check_derivatives
from lanewise.arrays.bilinear import Bilinear
from lanewise.arrays.operands import elements
from lanewise.arrays.operators import operator_on


def plane(f: Any, g: Any) -> Any:
    """One affine map of the plane, then the other."""
    return {"turn": g["turn"] @ f["turn"], "shift": g["turn"] @ f["shift"] + g["shift"]}


def first_then_second(f: Any, g: Any) -> Any:
    """Affine maps the other way round: what is written last is applied first."""
    return f[0] * g[0], f[1] + f[0] * g[1]


def spelt_out(m: Any, n: Any) -> Any:
    (a, b), (c, d) = m
    (p, q), (r, s) = n
    return jnp.array([[a * p + b * r, a * q + b * s], [c * p + d * r, c * q + d * s]])


def dual(a: Any, b: Any) -> Any:
    return jnp.stack([a[0] * b[0], a[0] * b[1] + a[1] * b[0]])


MATRIX, PAIR = jnp.ones((2, 2, 2)), (jnp.ones(2), jnp.ones(2))
ROWS = (jnp.ones((2, 50)), jnp.ones((2, 50)))
CAPTURED = jnp.ones(())
PLANE = {"turn": MATRIX, "shift": jnp.ones((2, 2))}


def found(operator: Any, xs: Any) -> Bilinear | None:
    return operator_on("scan", operator, elements("scan", "xs", xs), None).bilinear


@pytest.mark.parametrize(
    "operator, xs, neutral, groups",
    [
        (affine, PAIR, (1, 0), ((0,), (1,))),
        (first_then_second, PAIR, (1, 0), ((0, 1),)),
        (affine, ROWS, (1, 0), ((0,), (1,))),
        (jnp.matmul, MATRIX, (1, 0, 0, 1), ((0, 1), (2, 3))),
        (lambda a, b: jnp.einsum("ij,ki->kj", a, b), MATRIX, (1, 0, 0, 1), ((0, 2), (1, 3))),
        (spelt_out, MATRIX, (1, 0, 0, 1), ((0, 1), (2, 3))),
        (plane, PLANE, (0, 0, 1, 0, 0, 1), ((0, 1), (2, 4), (3, 5))),
        (dual, jnp.ones((2, 2)), (1, 0), ((0, 1),)),
        (lambda a, b: a + b - 0.5 * a * b, jnp.ones(2), (0,), ((0,),)),
        (lambda a, b: a * b - (a + b) + 2.0, jnp.ones(2), (2,), ((0,),)),
    ],
    ids="affine other_order rows matmul einsum spelt_out plane dual circle constants".split(),
)
def test_found_by_what_they_compute(operator: Any, xs: Any, neutral: Any, groups: Any) -> None:
    op = found(operator, xs)
    assert op is not None
    np.testing.assert_allclose(op.neutral, neutral, atol=1e-12)
    assert op.groups == groups


@jax.custom_jvp
def with_own_derivative(a: Any, b: Any) -> Any:
    return a + b + a * b


with_own_derivative.defjvp(
    lambda primals, tangents: (with_own_derivative(*primals), tangents[0] + tangents[1])
)


def of_two_types(f: Any, g: Any) -> Any:
    return g[0] * f[0], g[0].astype(f[1].dtype) * f[1] + g[1]


@pytest.mark.parametrize(
    "operator, xs",
    [
        (lambda a, b: a, jnp.ones(2)),
        (lambda a, b: a + a * a * b, jnp.ones(2)),
        (lambda a, b: a + b + jnp.sin(a * b), jnp.ones(2)),
        (with_own_derivative, jnp.ones(2)),
        (jnp.matmul, jnp.ones((2, 4, 4))),
        (lambda a, b: (a[0] * b[0], jnp.maximum(a[1], b[1])), PAIR),
        (lambda a, b: a + b + CAPTURED * a * b, jnp.ones(2)),
        (of_two_types, (jnp.ones(2, "float32"), jnp.ones(2, "bfloat16"))),
    ],
    ids="no_neutral squares sine own_derivative large known captures types".split(),
)
def test_others_are_not(operator: Any, xs: Any) -> None:
    assert found(operator, xs) is None


SAMPLES = (
    Sample(
        "plane",
        plane,
        None,
        lambda rng, n: {
            "turn": 0.9 * np.eye(2) + 0.2 * rng.normal(size=(n, 2, 2)),
            "shift": rng.normal(size=(n, 2)),
        },
    ),
    Sample(
        "other_order",
        first_then_second,
        None,
        lambda rng, n: (rng.uniform(-1.1, 1.1, n), rng.normal(size=n)),
    ),
)


@pytest.mark.parametrize(
    "sample, reverse", [(SAMPLES[0], False), (SAMPLES[1], True)], ids=["plane", "other_order"]
)
def test_derivatives(sample: Sample, reverse: bool) -> None:
    def plain(xs: Any) -> Any:
        if not reverse:
            return in_loop(sample, xs)
        swapped = Sample("", lambda a, b: sample.operator(b, a), None, sample.make)
        flip = lambda tree: jax.tree.map(lambda x: x[::-1], tree)  # noqa: E731
        return flip(in_loop(swapped, flip(xs)))

    xs = sequence(sample, 307)
    check_derivatives(lambda x: lw.arrays.scan(sample.operator, x, reverse=reverse), plain, xs)


def as_numbers(values: Any) -> Any:
    return np.asarray(values)


numbers = st.lists(st.floats(-2, 2), min_size=6, max_size=6)


@given(numbers, numbers, numbers, numbers)
@settings(max_examples=10, deadline=None)
def test_laws(x: Any, z: Any, y: Any, s: Any) -> None:
    """Through a block by A of what it amounts to; the transpose; the neutral element; both partial derivatives."""
    op = found(plane, PLANE)
    assert op is not None
    given: list[Any] = [x, z, y, s, op.neutral]
    x, z, y, s, neutral = map(as_numbers, given)
    total = op.combine(x, z)
    np.testing.assert_allclose(op.combine(neutral, x), x, atol=1e-12)
    np.testing.assert_allclose(op.combine(x, neutral), x, atol=1e-12)
    for group in op.groups:
        mine, seed = y[list(group)], s[list(group)]
        twice = op.carried(group, op.carried(group, mine, x), z)
        np.testing.assert_allclose(op.carried(group, mine, total), twice, atol=1e-9)
        back = op.carried_back(group, seed, x)
        np.testing.assert_allclose(
            np.dot(back, mine), np.dot(seed, op.carried(group, mine, x)), atol=1e-9
        )
        # Both operands enter linearly: a whole step is what the derivative promises.
        moved = np.subtract(op.combine(y + s, x), op.combine(y, x))[list(group)]
        np.testing.assert_allclose(op.carried(group, seed, x), moved, atol=1e-9)
        moved = np.subtract(op.combine(y, x + s), op.combine(y, x))[list(group)]
        np.testing.assert_allclose(op.driven(group, y, s), moved, atol=1e-9)


def test_a_neutral_element_is_found() -> None:
    xs = (jnp.array([0.5, 2.0, 3.0]), jnp.ones(3))
    product, state = lw.arrays.scan(affine, xs, exclusive=True)
    np.testing.assert_array_equal(product, [1, 0.5, 1])
    np.testing.assert_array_equal(state, [0, 1, 3])
    none = lw.arrays.reduce(jnp.matmul, jnp.ones((0, 2, 2)))
    np.testing.assert_array_equal(none, np.eye(2))


def test_integers() -> None:
    steps = jnp.broadcast_to(jnp.array([[1, 1], [1, 0]], jnp.uint32), (300, 2, 2))
    expected = in_loop(Sample("", jnp.matmul, None, lambda rng, n: None), steps)
    assert_same(lw.arrays.scan(jnp.matmul, steps), expected, 0)


def equations(loss: Callable[..., Any]) -> str:
    sample = SAMPLES[0]
    return str(jax.make_jaxpr(jax.grad(loss))(sequence(sample, 1024)))


def test_only_what_is_asked_for_is_solved() -> None:
    """The shifts' recurrence is one of three; that of the matrices is not solved for their sake."""

    def shifts(xs: Any) -> Any:
        return jnp.sum(lw.arrays.scan(plane, xs)["shift"] ** 2)

    def all_of_it(xs: Any) -> Any:
        return sum(jnp.sum(y**2) for y in jax.tree.leaves(lw.arrays.scan(plane, xs)))

    assert equations(shifts).count("custom_linear_solve[") == 1
    assert equations(all_of_it).count("custom_linear_solve[") == 3


def test_elements_and_prefixes_are_all_that_is_kept() -> None:
    length = 2**14
    xs = (jnp.ones(length), jnp.ones(length))
    _, pull = jax.eval_shape(lambda x: jax.vjp(lambda x: lw.arrays.scan(affine, x)[1], x), xs)
    kept = sum(x.size for x in jax.tree.leaves(pull))
    assert kept < 3.5 * length


def test_inside_a_program() -> None:
    """A long scan in a loop that lanes leave at different times, differentiated."""

    def smooth(x: Any, times: Any) -> Any:
        def once(state: Any) -> Any:
            x, times = state
            kept = jnp.full(x.shape[0], 0.5)
            return lw.arrays.scan(affine, (kept, 0.5 * x))[1], times - 1

        return jax.lax.while_loop(lambda s: s[1] > 0, once, (x, times))[0]

    def plain(x: Any, times: int) -> Any:
        for _ in range(times):
            step = lambda y, v: (0.5 * y + 0.5 * v,) * 2  # noqa: E731
            x = jax.lax.scan(step, jnp.zeros(()), x)[1]
        return jnp.sum(x**2)

    x, times = jnp.asarray(np.random.default_rng(0).normal(size=(2, 300))), np.array([1, 2])
    gradient = jax.grad(lambda x, t: jnp.sum(lw.lift(smooth)(x, t) ** 2))
    found = jax.jit(jax.vmap(gradient))(x, times)
    for i in range(2):
        assert_same(found[i], jax.grad(plain)(x[i], int(times[i])), 1e-9)
