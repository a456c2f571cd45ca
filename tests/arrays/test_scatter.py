"""`lw.arrays.scatter`: the last write counts, and derivatives follow it."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import lanewise as lw
from comparing import assert_same
from derivatives import check_derivatives

scatter = lw.arrays.scatter


def in_loop(into: np.ndarray, indices: Any, values: np.ndarray) -> np.ndarray:
    written = into.copy()
    for place, value in zip(indices, values, strict=True):
        if 0 <= place < len(into):
            written[place] = value
    return written


@hypothesis.given(
    st.integers(1, 6), st.lists(st.integers(-2, 8), max_size=8), st.sampled_from([(), (2,)])
)
@hypothesis.settings(max_examples=15, deadline=None)
def test_the_last_write_counts(size: int, indices: list[int], shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        into, values = rng.normal(size=(size, *shape)), rng.normal(size=(len(indices), *shape))
        found = scatter(into, np.array(indices, np.int32), values)
        assert_same(found, in_loop(into, indices, values), 0)


def test_many_writes() -> None:
    rng = np.random.default_rng(0)
    into, values = np.zeros(300), rng.normal(size=500)
    index = rng.integers(-5, 305, 500)
    found = jax.jit(scatter)(into, index, values)
    np.testing.assert_array_equal(found, in_loop(into, index, values))


@pytest.mark.parametrize("count", [1, 7, 80])
def test_derivatives(count: int) -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(-1, 12, count)
    last = {place: i for i, place in enumerate(index) if 0 <= place < 10}
    source = jnp.asarray([last.get(place, -1) for place in range(10)])

    def plain(into: Any, values: Any) -> Any:
        return jnp.where((source < 0)[:, None], into, values[source])

    check_derivatives(
        lambda into, values: scatter(into, jnp.asarray(index), values),
        plain,
        jnp.asarray(rng.normal(size=(10, 2))),
        jnp.asarray(rng.normal(size=(count, 2))),
    )


def test_trees_and_batches() -> None:
    into = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((2, 3, 2))}
    values = {"a": jnp.ones((2, 2)), "b": jnp.ones((2, 2, 2))}
    index = jnp.array([[0, 2], [1, 1]])
    found = jax.vmap(scatter)(into, index, values)
    np.testing.assert_array_equal(found["a"], [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(found["b"][..., 1], [[1, 0, 1], [0, 1, 0]])


def test_unique_saves_the_search() -> None:
    index, values = jnp.array([3, 1, 9]), jnp.array([1.0, 2.0, 3.0])
    found = scatter(jnp.zeros(4), index, values, unique=True)
    np.testing.assert_array_equal(found, [0, 2, 0, 1])
    text = str(jax.make_jaxpr(lambda i: scatter(jnp.zeros(4), i, values, unique=True))(index))
    assert "scatter" in text and "reduce_or" not in text


def test_nothing_is_kept_but_the_places() -> None:
    """The pullback holds what it needs to find where values went: not the array, and not its old values."""
    index = jnp.array([3, 1, 7])

    def saved(into: Any, values: Any) -> Any:
        return jax.vjp(lambda into, values: scatter(into, index, values), into, values)[1]

    kept = jax.eval_shape(saved, jnp.zeros(10_000), jnp.ones(3))
    assert sum(x.size for x in jax.tree.leaves(kept)) <= 12


ERRORS = [
    (lambda: scatter(jnp.ones(3), jnp.array([1]), jnp.ones(2)), "`indices`: 1, `values`: 2"),
    (lambda: scatter(jnp.ones(3), jnp.array([1.0]), jnp.ones(1)), r"`indices` is float64\[1\]"),
    (lambda: scatter(jnp.ones(3), jnp.array([1]), jnp.ones((1, 2))), r"float64\[\].*float64\[2\]"),
    (lambda: scatter((jnp.ones(3),), jnp.array([1]), jnp.ones(1)), "`into` has structure"),
]


@pytest.mark.parametrize("call, message", ERRORS)
def test_what_does_not_fit_is_reported(call: Any, message: str) -> None:
    with pytest.raises(lw.errors.OptionError, match=message):
        call()
