"""`lw.arrays.segmented_reduce` and `segmented_scan`: sequences of different lengths in one array."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import lanewise as lw
from associative import EVERY, SMOOTH, Sample, neutral_of, row, sequence
from associative import in_loop as prefixes
from comparing import assert_same
from derivatives import check_against_differences, check_derivatives

segmented_reduce, segmented_scan = lw.arrays.segmented_reduce, lw.arrays.segmented_scan

SIZES = np.array([0, 3, 1, 0, 280, 2, 30, 0])


def parts(xs: Any, sizes: Any) -> list[Any]:
    ends = np.cumsum(sizes)
    return [
        jax.tree.map(lambda x, a=end - size, b=end: x[a:b], xs) for end, size in zip(ends, sizes)
    ]


def reduced(sample: Sample, xs: Any, sizes: Any) -> Any:
    rows = [
        row(prefixes(sample, part), -1) if size else neutral_of(sample, xs)
        for part, size in zip(parts(xs, sizes), sizes)
    ]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def scanned(sample: Sample, xs: Any, sizes: Any) -> Any:
    rows = [prefixes(sample, p) for p, size in zip(parts(xs, sizes), sizes) if size]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *rows)


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_meaning(sample: Sample) -> None:
    swapped = Sample("", lambda a, b: sample.operator(b, a), sample.neutral, sample.make)
    flip = lambda tree: jax.tree.map(lambda x: x[::-1], tree)  # noqa: E731
    owner = np.repeat(np.arange(len(SIZES)), SIZES)

    @jax.jit
    def pairs(xs: Any, sizes: Any) -> Any:
        given = (sample.operator, xs, sizes)
        whole = segmented_reduce(*given, neutral=sample.neutral)
        forwards = segmented_scan(*given, neutral=sample.neutral)
        backwards = segmented_scan(*given, neutral=sample.neutral, reverse=True)
        before = segmented_scan(*given, neutral=sample.neutral, exclusive=True)
        after = segmented_scan(*given, neutral=sample.neutral, exclusive=True, reverse=True)
        again = lambda a, x, b: sample.operator(sample.operator(a, x), b)  # noqa: E731
        return (
            (whole, reduced(sample, xs, SIZES)),
            (forwards, scanned(sample, xs, SIZES)),
            (backwards, flip(scanned(swapped, flip(xs), SIZES[::-1]))),
            # What comes before, the element, and what comes after make up the segment.
            (jax.vmap(again)(before, xs, after), row(whole, owner)),
        )

    for found, expected in pairs(sequence(sample, SIZES.sum()), SIZES):
        assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_derivatives_of_reductions(sample: Sample) -> None:
    sizes = np.array([2, 0, 5, 1])

    def finite(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0.0), tree)

    check_derivatives(
        lambda x: finite(
            segmented_reduce(sample.operator, x, jnp.asarray(sizes), neutral=sample.neutral)
        ),
        lambda x: finite(reduced(sample, x, sizes)),
        sequence(sample, 8),
    )


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_derivatives_of_scans(sample: Sample) -> None:
    check_against_differences(
        lambda x: segmented_scan(sample.operator, x, jnp.asarray(SIZES), neutral=sample.neutral),
        sequence(sample, SIZES.sum()),
    )


@hypothesis.given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
@hypothesis.settings(max_examples=6, deadline=None)
def test_any_sizes(sizes: list[int]) -> None:
    x = np.arange(1, sum(sizes) + 1)
    ends = np.cumsum(sizes)
    expected = [x[e - s : e].sum() for e, s in zip(ends, sizes)]
    assert segmented_reduce(jnp.add, x, np.array(sizes)).tolist() == expected
    last_wins = segmented_reduce(
        lambda a, b: jnp.where(b == 0, a, b), x, np.array(sizes), neutral=0
    )
    assert last_wins.tolist() == [x[e - 1] if s else 0 for e, s in zip(ends, sizes)]


def test_traced_sizes_that_do_not_add_up() -> None:
    for operator, neutral in ((jnp.add, None), (lambda a, b: a + b + 0 * a * b, 0)):
        reduce = jax.jit(
            lambda s, o=operator, e=neutral: segmented_reduce(o, jnp.arange(6), s, neutral=e)
        )
        np.testing.assert_array_equal(reduce(jnp.array([2, 1])), [1, 2])
        np.testing.assert_array_equal(reduce(jnp.array([2, 9, 1])), [1, 14, 0])
    scan = jax.jit(lambda s: segmented_scan(jnp.add, jnp.ones(5), s))
    np.testing.assert_array_equal(scan(jnp.array([2, 1])), [1, 2, 1, 1, 2])


def test_no_elements_at_all() -> None:
    x, sizes = jnp.ones((0, 2)), jnp.zeros(3, int)
    np.testing.assert_array_equal(segmented_reduce(jnp.add, x, sizes), np.zeros((3, 2)))
    mixed = segmented_reduce(lambda a, b: a + b + a * b, x, sizes, neutral=0.0)
    np.testing.assert_array_equal(mixed, np.zeros((3, 2)))
    assert segmented_scan(jnp.add, x, sizes).shape == (0, 2)


ERRORS = [
    (lambda: segmented_reduce(jnp.add, jnp.ones(3), jnp.array([1, 1])), "add up to 2.*3 elements"),
    (lambda: segmented_scan(jnp.add, jnp.ones(3), jnp.array([4, -1])), "negative entry"),
    (lambda: segmented_scan(jnp.add, jnp.ones(3), jnp.array([3.0])), "`sizes` is float64"),
]


@pytest.mark.parametrize("call, message", ERRORS)
def test_what_does_not_fit_is_reported(call: Any, message: str) -> None:
    with pytest.raises(lw.errors.OptionError, match=message):
        call()


def test_other_operators_need_a_neutral_element() -> None:
    with pytest.raises(lw.errors.OperatorError, match="empty segments"):
        segmented_reduce(lambda a, b: a + b + jnp.sin(a * b), jnp.ones(2), jnp.array([2]))
