"""`lw.arrays.histogram`: values combined by index, and their derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from associative import EVERY, SMOOTH, Sample, neutral_of, row, sequence
from comparing import assert_same
from derivatives import check_against_differences, check_derivatives

histogram = lw.arrays.histogram

BINS = 5


def some_indices(length: int, seed: int = 0) -> np.ndarray:
    """In range mostly, and a bin (3) that nothing goes to."""
    found = np.random.default_rng(seed).integers(-2, BINS + 3, length)
    return np.where(found == 3, 0, found)


def in_loop(sample: Sample, index: np.ndarray, xs: Any, start: list[Any]) -> Any:
    bins = list(start)
    for i, b in enumerate(index):
        if 0 <= b < BINS:
            bins[b] = sample.operator(bins[b], row(xs, i))
    return jax.tree.map(lambda *x: jnp.stack(x), *bins)


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_meaning(sample: Sample) -> None:
    indices = [some_indices(length) for length in (0, 1, 50)]

    @jax.jit
    def pairs(given: list[Any], many: list[Any]) -> Any:
        return [
            (
                histogram(sample.operator, i, xs, BINS, neutral=sample.neutral),
                in_loop(sample, index, xs, [neutral_of(sample, xs)] * BINS),
            )
            for i, index, xs in zip(given, indices, many)
        ]

    for found, expected in pairs(indices, [sequence(sample, len(index)) for index in indices]):
        assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_into(sample: Sample) -> None:
    index = some_indices(20)

    @jax.jit
    def both(xs: Any, into: Any) -> Any:
        found = histogram(sample.operator, index, xs, into=into, neutral=sample.neutral)
        return found, in_loop(sample, index, xs, [row(into, i) for i in range(BINS)])

    found, expected = both(sequence(sample, 20), sequence(sample, BINS, seed=1))
    assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_derivatives(sample: Sample) -> None:
    index, xs, into = some_indices(12), sequence(sample, 12), sequence(sample, BINS, seed=1)

    def ours(x: Any, into: Any) -> Any:
        return histogram(sample.operator, index, x, into=into, neutral=sample.neutral)

    def plain(x: Any, into: Any) -> Any:
        return in_loop(sample, index, x, [row(into, i) for i in range(BINS)])

    check_derivatives(ours, plain, xs, into)


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_finite_differences(sample: Sample) -> None:
    index = some_indices(300)

    def filled(x: Any) -> Any:
        found = histogram(sample.operator, index, x, BINS, neutral=sample.neutral)
        return jax.tree.map(lambda y: jnp.where(jnp.isfinite(y), y, 0.0), found)

    check_against_differences(filled, sequence(sample, 300))


def test_products_with_zeros_in_some_bins() -> None:
    index = np.array([0, 0, 0, 1, 1, 2, 2, 2, 7, 4])
    x = np.array([2.0, 3.0, 4.0, 0.0, 5.0, 0.0, 0.0, 6.0, 9.0, 0.0])
    weights = jnp.arange(1.0, 6.0)

    def ours(x: Any) -> Any:
        return jnp.sum(weights * histogram(jnp.multiply, index, x, BINS))

    def plain(x: Any) -> Any:
        bins = [jnp.ones(())] * BINS
        for i, b in enumerate(index):
            if b < BINS:
                bins[b] = bins[b] * x[i]
        return jnp.sum(weights * jnp.stack(bins))

    def orders(fun: Any) -> Any:
        return jax.jit(lambda x: [jax.grad(fun)(x), jax.hessian(fun)(x), third(fun)(x)])(x)

    third = lambda fun: jax.jacfwd(jax.hessian(fun))  # noqa: E731
    for found, expected in zip(orders(ours), orders(plain)):
        np.testing.assert_allclose(found, expected)


def test_the_first_of_equals_has_the_derivative() -> None:
    index, x = jnp.array([1, 0, 1, 1, 0]), jnp.array([3.0, 2.0, 3.0, 1.0, 2.0])
    found = jax.grad(lambda x: jnp.sum(histogram(jnp.maximum, index, x, 2)))(x)
    np.testing.assert_array_equal(found, [1, 1, 0, 0, 0])
    into = jnp.array([2.0, 0.0])
    both = jax.grad(
        lambda x, into: jnp.sum(histogram(jnp.maximum, index, x, into=into)), argnums=(0, 1)
    )(x, into)
    assert_same(both, (jnp.array([1.0, 0, 0, 0, 0]), jnp.array([1.0, 0])), 0)


def test_a_neutral_element_of_ones_own_fills_empty_bins() -> None:
    found = histogram(jnp.maximum, jnp.array([1]), jnp.array([3.0]), 2, neutral=0.0)
    np.testing.assert_array_equal(found, [0.0, 3.0])
    slope = jax.grad(lambda x: jnp.sum(histogram(jnp.maximum, jnp.array([1]), x, 2, neutral=0.0)))(
        jnp.zeros(1)
    )
    np.testing.assert_array_equal(slope, [1.0])


def test_the_adjoint_of_a_sum_is_a_gather() -> None:
    def loss(x: Any, index: Any) -> Any:
        return jnp.sum(jnp.sin(histogram(jnp.add, index, x, BINS)))

    text = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones(9), jnp.zeros(9, jnp.int32)))
    assert text.count("scatter-add") == 1 and "gather" in text


def test_batches_of_indices() -> None:
    index = jnp.asarray(np.stack([some_indices(8, seed) for seed in range(3)]))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)))

    @jax.jit
    def pairs(index: Any, x: Any) -> Any:
        return [
            (
                jax.vmap(lambda i, x, o=operator: histogram(o, i, x, BINS))(index, x),
                jnp.stack([histogram(operator, index[k], x[k], BINS) for k in range(3)]),
            )
            for operator in (jnp.add, jnp.multiply, jnp.maximum, jnp.logaddexp)
        ]

    for found, expected in pairs(index, x):
        assert_same(found, expected, 1e-12)


ERRORS = [
    (lambda: histogram(jnp.add, jnp.zeros(3), jnp.ones(3), 2), r"`indices` is float64\[3\]"),
    (lambda: histogram(jnp.add, jnp.zeros(3, int), jnp.ones(4), 2), "`indices`: 3, `values`: 4"),
    (lambda: histogram(jnp.add, jnp.zeros(3, int), jnp.ones(3)), "either `size`"),
    (lambda: histogram(jnp.add, jnp.zeros(3, int), jnp.ones(3), -1), "`size` is -1"),
    (lambda: histogram(jnp.add, jnp.zeros(3, int), jnp.ones(3), 2.0), r"`size` is 2\.0"),  # type: ignore[arg-type]
    (
        lambda: histogram(jnp.add, jnp.zeros(3, int), jnp.ones(3), into=jnp.ones((2, 2))),
        r"`into` are float64\[2\], those of `values` float64\[\]",
    ),
    (
        lambda: histogram(jnp.add, jnp.zeros(3, int), jnp.ones(3), into=(jnp.ones(2),)),
        "`into` has structure",
    ),
]


@pytest.mark.parametrize("call, message", ERRORS)
def test_what_does_not_fit_is_reported(call: Any, message: str) -> None:
    with pytest.raises(lw.errors.OptionError, match=message):
        call()


def test_other_operators_need_a_neutral_element() -> None:
    with pytest.raises(lw.errors.OperatorError, match="bins without values"):
        histogram(lambda a, b: a + b + jnp.sin(a * b), jnp.zeros(3, int), jnp.ones(3), 2)
