"""Fixtures of the front end's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.frontend.branch import tracing_program
from lanewise.frontend.python import convert


def compare(got: Any, expected: Any) -> None:
    got_leaves, got_tree = jax.tree.flatten(got)
    leaves, tree = jax.tree.flatten(expected)
    assert got_tree == tree, (got, expected)
    for x, y in zip(got_leaves, leaves, strict=True):
        y = jnp.asarray(y)
        assert x.dtype == y.dtype, (x, y)
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if y.dtype.kind in "biu":
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(
                np.asarray(x, np.complex128), np.asarray(y, np.complex128), rtol=1e-5, atol=1e-6
            )


@pytest.fixture(autouse=True)
def _as_in_a_program() -> Iterator[None]:
    """What is converted here is traced as a program's source is: on its own, whatever was traced before."""
    with tracing_program():
        yield


@pytest.fixture
def same() -> Callable[..., Any]:
    """Check that the converted function, traced, answers as plain Python does."""

    def check(fun: Callable[..., Any], *args: Any) -> Any:
        with jax.disable_jit():
            expected = fun(*args)
        arrays = jax.tree.map(jnp.asarray, args)
        got = jax.jit(convert(fun))(*arrays)
        compare(got, expected)
        return got

    return check


@pytest.fixture
def jaxpr() -> Callable[..., str]:
    """The text of a converted function's jaxpr."""

    def show(fun: Callable[..., Any], *args: Any) -> str:
        return str(jax.make_jaxpr(convert(fun))(*args))

    return show
