"""`lw.arrays.scan`: prefixes and suffixes by any operator, and their derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from associative import EVERY, SMOOTH, Sample, in_loop, neutral_of, sequence
from comparing import assert_same
from derivatives import check_against_differences, check_derivatives
from lanewise.arrays import blocked

scan = lw.arrays.scan


def in_loop_backwards(sample: Sample, xs: Any) -> Any:
    swapped = Sample("", lambda a, b: sample.operator(b, a), sample.neutral, sample.make)
    back = jax.tree.map(lambda x: x[::-1], xs)
    return jax.tree.map(lambda x: x[::-1], in_loop(swapped, back))


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_meaning(sample: Sample) -> None:
    @jax.jit
    def pairs(many: list[Any]) -> Any:
        return [
            pair
            for xs in many
            for pair in (
                (scan(sample.operator, xs), in_loop(sample, xs)),
                (scan(sample.operator, xs, reverse=True), in_loop_backwards(sample, xs)),
            )
        ]

    for found, expected in pairs([sequence(sample, length) for length in (1, 33, 1103)]):
        assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_exclusive(sample: Sample) -> None:
    @jax.jit
    def pairs(xs: Any) -> Any:
        first = neutral_of(sample, xs)
        found = scan(sample.operator, xs, neutral=sample.neutral, exclusive=True)
        back = scan(sample.operator, xs, neutral=sample.neutral, exclusive=True, reverse=True)
        joined = jax.tree.map(
            lambda e, x: jnp.concatenate([e[None], x[:-1]]), first, in_loop(sample, xs)
        )
        joined_back = jax.tree.map(
            lambda e, x: jnp.concatenate([x[1:], e[None]]), first, in_loop_backwards(sample, xs)
        )
        return (found, joined), (back, joined_back)

    for found, expected in pairs(sequence(sample, 5)):
        assert_same(found, expected, 1e-9)


@pytest.mark.parametrize("sample", EVERY, ids=repr)
def test_an_empty_sequence_stays_empty(sample: Sample) -> None:
    xs = sequence(sample, 0)
    assert_same(scan(sample.operator, xs), xs, 0)


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_derivatives(sample: Sample) -> None:
    check_derivatives(
        lambda x: scan(sample.operator, x),
        lambda x: in_loop(sample, x),
        sequence(sample, 301),
        rtol=1e-8,
    )


@pytest.mark.parametrize("sample", SMOOTH, ids=repr)
def test_derivatives_of_exclusive_suffixes(sample: Sample) -> None:
    check_against_differences(
        lambda x: jax.tree.map(
            lambda y: jnp.where(jnp.isfinite(y), y, 0.0),
            scan(sample.operator, x, neutral=sample.neutral, exclusive=True, reverse=True),
        ),
        sequence(sample, 300),
    )


def test_what_an_operator_closes_over_is_differentiated() -> None:
    def ours(c: Any, x: Any) -> Any:
        return scan(lambda a, b: a + b + c * a * b, x)

    def plain(c: Any, x: Any) -> Any:
        def step(y: Any, x: Any) -> Any:
            y = y + x + c * y * x
            return y, y

        return jax.lax.scan(step, jnp.zeros_like(x[0]), x)[1]

    x = 0.1 * np.random.default_rng(3).normal(size=(301, 2))
    check_derivatives(ours, plain, jnp.array([0.7, -0.2]), jnp.asarray(x))


def test_the_first_of_equals_has_the_derivative() -> None:
    x = jnp.array([1.0, 3.0, 3.0, 2.0, 3.0])
    found = jax.grad(lambda x: scan(jnp.maximum, x).sum())(x)
    np.testing.assert_array_equal(found, [1, 4, 0, 0, 0])


@pytest.mark.parametrize("places", [(0,), (3,), (2, 40)])
def test_products_with_zeros(places: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).uniform(0.8, 1.2, 45)
    x[list(places)] = 0.0

    expected = jax.jit(jax.jacfwd(jnp.cumprod))(x)
    np.testing.assert_allclose(jax.jit(jax.jacrev(lambda x: scan(jnp.multiply, x)))(x), expected)


def test_code_hardly_grows_with_the_length() -> None:
    """What takes JAX's own associative scan long to compile: a level of slices for each doubling."""

    def size(length: int) -> int:
        def loss(x: Any) -> Any:
            return jnp.sum(scan(lambda a, b: a + b + a * b, x))

        text = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones(length)))
        return text.count("\n")

    assert size(2**20) < 3 * size(2**10)


def test_a_step_keeps_its_state_only() -> None:
    """What the operator computes on the way is computed again, not kept: it is longer than an element."""

    def wide(a: Any, b: Any) -> Any:
        return a + b + 0.1 * jnp.sum(jnp.sin(a * jnp.ones(64)) * 0.0)

    _, pull = jax.eval_shape(lambda x: jax.vjp(lambda x: scan(wide, x), x), jnp.ones(1024))
    kept = sum(x.size for x in jax.tree.leaves(pull))
    assert kept < 8 * 1024


def test_exclusive_needs_a_neutral_element() -> None:
    with pytest.raises(lw.errors.OperatorError, match=r"to be exclusive.*neutral="):
        scan(lambda a, b: a + b + jnp.sin(a * b), jnp.ones(3), exclusive=True)


def test_three_levels_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short blocks make many levels of a sequence that is not long, with tails and without."""
    monkeypatch.setattr(blocked, "_SHORT", 4)
    monkeypatch.setattr(blocked, "_STEP_BITS", 2)
    sample = next(sample for sample in SMOOTH if sample.name == "affine")
    for length, neutral in ((64, (1.0, 0.0)), (61, None)):
        check_derivatives(
            lambda x, e=neutral: scan(sample.operator, x, neutral=e),
            lambda x: in_loop(sample, x),
            sequence(sample, length),
        )
