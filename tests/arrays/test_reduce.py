"""`lw.arrays.reduce`: what it gives, its derivatives, and what it refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from associative import EVERY, KNOWN, SMOOTH, Sample, in_loop, neutral_of, row, sequence
from comparing import assert_same
from derivatives import check_against_differences, check_derivatives

reduce = lw.arrays.reduce


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_meaning(sample: Sample) -> None:
    @jax.jit
    def both(many: list[Any]) -> Any:
        return [(reduce(sample.operator, xs), row(in_loop(sample, xs), -1)) for xs in many]

    for found, expected in both([sequence(sample, length) for length in (1, 2, 33, 300, 1103)]):
        assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_an_empty_sequence_gives_the_neutral_element(sample: Sample) -> None:
    xs = sequence(sample, 0)
    expected = neutral_of(sample, xs)
    assert_same(reduce(sample.operator, xs, neutral=sample.neutral), expected, 0)
    if sample in KNOWN and sample.name != "largest_integer":
        assert_same(reduce(sample.operator, xs), expected, 0)


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
@pytest.mark.parametrize("length", [1, 301])
def test_derivatives(sample: Sample, length: int) -> None:
    xs = sequence(sample, length)
    check_derivatives(
        lambda x: reduce(sample.operator, x), lambda x: row(in_loop(sample, x), -1), xs
    )


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_finite_differences(sample: Sample) -> None:
    check_against_differences(lambda x: reduce(sample.operator, x), sequence(sample, 300))


@pytest.mark.parametrize("places", [(), (2,), (2, 5), (0, 3, 6)], ids=len)
def test_a_product_with_zeros_is_differentiated_exactly(places: tuple[int, ...]) -> None:
    x = np.array([2.0, -3.0, 0.5, 1.5, -1.0, 4.0, 0.7])
    x[list(places)] = 0.0
    others = np.array([np.prod(np.delete(x, i)) for i in range(7)])
    slopes, second = jax.jit(
        lambda x: [d(lambda x: reduce(jnp.multiply, x))(x) for d in (jax.grad, jax.hessian)]
    )(x)
    np.testing.assert_allclose(slopes, others)
    pairs = np.array(
        [[np.prod(np.delete(x, [i, j])) if i != j else 0 for j in range(7)] for i in range(7)]
    )
    np.testing.assert_allclose(second, pairs)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 100, 1023])
def test_products_of_any_length_with_a_zero(length: int) -> None:
    x = np.random.default_rng(length).uniform(0.9, 1.1, length)
    x[length // 3] = 0.0
    found = jax.jit(jax.grad(lambda x: reduce(jnp.multiply, x)))(x)
    expected = np.zeros(length)
    expected[length // 3] = np.prod(np.delete(x, length // 3))
    np.testing.assert_allclose(found, expected)


def test_a_product_that_underflows_has_its_derivative() -> None:
    x = jnp.array([1e-30, 1e-30, *[1.0] * 40, 2.0], jnp.float32)
    found = jax.jit(jax.grad(lambda x: reduce(jnp.multiply, x)))(x)
    np.testing.assert_allclose(found, [2e-30, 2e-30, *[0.0] * 41], rtol=1e-6)


def test_a_batch_of_products_some_with_zeros() -> None:
    x = np.random.default_rng(0).uniform(0.9, 1.1, (3, 21, 2))
    x[1, 4, 0] = x[2, 5, 1] = x[2, 6, 1] = 0.0
    found = jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(reduce(jnp.multiply, x)))))(x)
    expected = [[np.prod(np.delete(row, i, axis=0), axis=0) for i in range(21)] for row in x]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("operator", [jnp.maximum, jnp.minimum])
def test_the_first_of_equals_has_the_derivative(operator: Any) -> None:
    x = jnp.array([[1.0, 7.0], [3.0, 7.0], [3.0, 7.0], [1.0, 7.0]])
    found = jax.grad(lambda x: reduce(operator, x).sum())(x)
    first = 1 if operator is jnp.maximum else 0
    expected = np.zeros((4, 2))
    expected[first, 0] = expected[0, 1] = 1.0
    np.testing.assert_array_equal(found, expected)


def test_nothing_added_to_nothing_has_a_derivative() -> None:
    """Minus infinity is the logarithm of nothing."""
    x = jnp.array([-jnp.inf, -jnp.inf, 0.5, 0.5])

    @jax.jit
    def slopes(x: Any) -> Any:
        return [
            jax.grad(lambda x: reduce(jnp.logaddexp, x))(x),
            jax.grad(lambda x: lw.arrays.scan(jnp.logaddexp, x)[-1])(x),
            jax.grad(lambda x: lw.arrays.histogram(jnp.logaddexp, jnp.zeros(4, int), x, 2)[0])(x),
        ]

    for found in slopes(x):
        np.testing.assert_allclose(found, [0, 0, 0.5, 0.5])
    nothing, *_ = slopes(jnp.full(4, -jnp.inf))
    np.testing.assert_array_equal(nothing, np.zeros(4))
    assert np.isnan(reduce(jnp.logaddexp, jnp.array([0.0, jnp.nan])))


@pytest.mark.parametrize("operator", [jnp.maximum, jnp.minimum])
def test_nan_counts(operator: Any) -> None:
    x = jnp.array([1.0, jnp.nan, 3.0])
    assert np.isnan(reduce(operator, x))
    np.testing.assert_array_equal(jax.grad(lambda x: reduce(operator, x))(x), [0, 1, 0])


def test_what_an_operator_closes_over_is_differentiated() -> None:
    def weighted(a: Any, b: Any, c: Any) -> Any:
        return a + b + c * a * b

    def ours(c: Any, x: Any) -> Any:
        return reduce(lambda a, b: weighted(a, b, c), x)

    def plain(c: Any, x: Any) -> Any:
        return jax.lax.fori_loop(1, x.shape[0], lambda i, y: weighted(y, x[i], c), x[0])

    x = 0.1 * np.random.default_rng(3).normal(size=301)
    check_derivatives(ours, plain, jnp.float64(0.7), jnp.asarray(x))


def test_nested_in_a_map_in_a_reduce() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 5))

    def ours(x: Any) -> Any:
        rows = lw.arrays.map(
            lambda table: reduce(jnp.add, lw.arrays.map(lambda r: reduce(jnp.multiply, r), table)),
            x,
        )
        return reduce(jnp.logaddexp, rows)

    def plain(x: Any) -> Any:
        return jax.nn.logsumexp(jnp.sum(jnp.prod(x, axis=2), axis=1))

    check_derivatives(ours, plain, jnp.asarray(x))


def test_an_operator_may_reduce() -> None:
    """Elements are polynomials; their product is one, cut off at the third power."""

    def times(a: Any, b: Any) -> Any:
        def power(k: Any) -> Any:
            terms = jnp.where(jnp.arange(4) <= k, a * b[(k - jnp.arange(4)) % 4], 0.0)
            return reduce(jnp.add, terms)

        return lw.arrays.map(power, jnp.arange(4))

    x = np.random.default_rng(0).normal(size=(6, 4))
    expected = x[0]
    for factor in x[1:]:
        expected = np.convolve(expected, factor)[:4]
    np.testing.assert_allclose(jax.jit(lambda x: reduce(times, x))(x), expected)
    check_against_differences(lambda x: reduce(times, x), jnp.asarray(x))


def test_known_operators_take_the_fast_form() -> None:
    """By what they compute, however they are written."""
    for sample in KNOWN:
        text = str(jax.make_jaxpr(lambda x, s=sample: reduce(s.operator, x))(sequence(sample, 8)))
        assert "scan" not in text, sample
    both = lambda a, b: (a[0] + b[0], a[1] * b[1])  # noqa: E731
    mixed = lambda a, b: (a[0] + b[1], a[1] * b[0])  # noqa: E731
    xs = (jnp.ones(8), jnp.ones(8))
    assert "scan" not in str(jax.make_jaxpr(lambda x: reduce(both, x))(xs))
    assert "scan" in str(jax.make_jaxpr(lambda x: reduce(mixed, x))(xs))


def test_half_precision_and_small_integers_stay_what_they_are() -> None:
    for dtype in (jnp.float16, jnp.bfloat16, jnp.int8, jnp.uint32, jnp.complex64):
        for operator in (jnp.add, jnp.multiply):
            assert reduce(operator, jnp.ones(3, dtype)).dtype == dtype


ERRORS = [
    (lambda: reduce(lambda a, b: (a, b), jnp.ones(3)), "structure"),
    (lambda: reduce(lambda a, b: jnp.stack([a, b]), jnp.ones(3)), r"float64\[2\].*float64\[\]"),
    (lambda: reduce(lambda a, b: a / b, jnp.arange(3)), r"float64\[\].*int64\[\].*cast"),
    (lambda: reduce(lambda a, b: a > b, jnp.ones(3)), r"bool\[\].*float64\[\]"),
    (lambda: reduce(jnp.add, jnp.arange(3), neutral=0.5), r"neutral.*float64\[\].*int64\[\]"),
    (lambda: reduce(jnp.add, jnp.ones((3, 2)), neutral=jnp.zeros(3)), r"neutral.*\[3\].*\[2\]"),
    (lambda: reduce(jnp.add, jnp.ones(3), neutral=(0.0, 0.0)), "neutral.*structure"),
    (lambda: reduce(jnp.add, jnp.ones(3), neutral="0"), "neutral.*'0'"),
    (lambda: reduce(lambda a, b: a - b, jnp.ones(0)), "neutral element"),
    (lambda: reduce(3, jnp.ones(3)), "`operator` is 3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call, message", ERRORS)
def test_operators_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(lw.errors.OperatorError, match=message):
        call()


ARGUMENTS = [
    (lambda: reduce(jnp.add, (jnp.ones(3), jnp.ones(4))), r"xs\[0\]: 3, xs\[1\]: 4"),
    (lambda: reduce(jnp.add, 3.0), "`xs` is a scalar"),
    (lambda: reduce(jnp.add, [1.0, 2.0]), r"`xs\[0\]` is a scalar.*a list counts as a tree"),
    (lambda: reduce(jnp.add, ()), "no array"),
    (lambda: reduce(jnp.add, "text"), "'text', not an array"),
]


@pytest.mark.parametrize("call, message", ARGUMENTS)
def test_arrays_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(lw.errors.OptionError, match=message):
        call()
