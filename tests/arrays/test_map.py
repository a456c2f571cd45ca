"""`lw.arrays.map`: functions of elements, with what they close over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from comparing import assert_same
from derivatives import check_derivatives

map_ = lw.arrays.map


def test_several_sequences_and_trees() -> None:
    xs = {"a": jnp.arange(4.0), "b": jnp.arange(8).reshape(4, 2)}
    found = map_(lambda x, y: (x["a"] * y, x["b"][0]), xs, np.arange(4.0))
    assert_same(found, (jnp.arange(4.0) ** 2, jnp.array([0, 2, 4, 6])), 0)


def test_nothing_to_map() -> None:
    assert map_(lambda x: x + 1, jnp.ones((0, 3))).shape == (0, 3)


def test_nested_with_free_variables() -> None:
    def ours(w: Any, x: Any) -> Any:
        return map_(lambda row: map_(lambda v, u: jnp.tanh(v * u) + w[0] * v, row, w), x)

    def plain(w: Any, x: Any) -> Any:
        return jnp.tanh(x * w) + w[0] * x

    rng = np.random.default_rng(0)
    check_derivatives(ours, plain, jnp.asarray(rng.normal(size=3)), rng.normal(size=(4, 3)))


def test_the_adjoint_of_a_free_variable_is_a_sum() -> None:
    text = str(
        jax.make_jaxpr(jax.grad(lambda w, x: jnp.sum(map_(lambda v: w[1] * v, x))))(
            jnp.ones(2), jnp.ones(9)
        )
    )
    assert "reduce_sum" in text and "scatter" not in text


def test_the_adjoint_of_indexed_reads_is_one_histogram() -> None:
    def loss(table: Any, index: Any) -> Any:
        return jnp.sum(map_(lambda i: jnp.sin(table[i]), index))

    index = jnp.array([0, 2, 2, 1])
    text = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones(5), index))
    assert text.count("scatter-add") == 1
    found = jax.grad(loss)(jnp.arange(5.0), index)
    np.testing.assert_allclose(found, np.cos(np.arange(5.0)) * [1, 1, 2, 0, 0])


ERRORS = [
    (lambda: map_(lambda x: x), "nothing to map over"),
    (lambda: map_(3, jnp.ones(2)), "`function` is 3"),  # type: ignore[arg-type]
    (lambda: map_(lambda x, y: x, jnp.ones(2), jnp.ones(3)), r"`xs\[0\]`: 2, `xs\[1\]`: 3"),
    (lambda: map_(lambda x: x, 1.0), r"`xs\[0\]` is a scalar"),
]


@pytest.mark.parametrize("call, message", ERRORS)
def test_what_does_not_fit_is_reported(call: Any, message: str) -> None:
    with pytest.raises(lw.errors.OptionError, match=message):
        call()
