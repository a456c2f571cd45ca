"""Adjoints of reads by index are added in place, whatever they are added to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise import _jax
from lanewise.diff.fold import folded


def traced(fun: Any, *args: Any) -> _jax.Jaxpr:
    return _jax.trace(fun, [_jax.aval_of(x) for x in args]).jaxpr


def names(code: _jax.Jaxpr) -> Counter[str]:
    return Counter(eqn.primitive.name for eqn in code.eqns)


def adding(total: Any, i: Any, x: Any) -> list[Any]:
    """A sum of sums: zeros with one number, zeros with a slice, and a whole array."""
    one = jnp.zeros_like(total).at[i].add(x)
    part = lax.dynamic_update_slice(jnp.zeros_like(total), jnp.stack([x, -x]), (i,))
    return [(total + one) + (part + jnp.arange(8.0))]


def kept(total: Any, i: Any, x: Any) -> list[Any]:
    """What is read elsewhere stays."""
    one = jnp.zeros_like(total).at[i].add(x)
    return [total + one, one * 2.0]


def not_zeros(total: Any, i: Any, x: Any) -> list[Any]:
    return [total + jnp.ones_like(total).at[i].add(x)]


def clipped(total: Any, i: Any, x: Any) -> list[Any]:
    """A start that is negative to XLA is out of range: it does not count from the end."""
    own: Any = {"allow_negative_indices": False}
    return [total + lax.dynamic_update_slice(jnp.zeros_like(total), x[None], (i,), **own)]


@pytest.mark.parametrize("fun", [adding, kept, not_zeros, clipped])
def test_folding_keeps_the_meaning(fun: Any) -> None:
    for i in (0, 3, 6, -2, -9, 20):
        args = (jnp.linspace(0.0, 1.0, 8), jnp.int32(i), jnp.float32(0.5))
        code = folded(traced(fun, *args))
        for ours, plain in zip(_jax.eval_jaxpr(code, *args), fun(*args), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-6)


def test_sums_are_written_in_place() -> None:
    args = (jnp.zeros(8), jnp.int32(0), jnp.float32(1))
    before, after = traced(adding, *args), _jax.without_unused(folded(traced(adding, *args)))
    whole = [
        eqn
        for eqn in after.eqns
        if eqn.primitive.name in ("add", "add_any") and eqn.outvars[0].aval.shape == (8,)
    ]
    assert len(whole) == 1 and names(before)["add"] + names(before)["add_any"] >= 3
    assert names(after)["scatter-add"] + names(after)["scatter_add"] == 1
    # Nothing to fold: the code is handed back as it is.
    for fun in (kept, not_zeros):
        code = traced(fun, *args)
        assert folded(code) is code


def test_a_gather_in_a_loop_adds_to_one_element() -> None:
    """The adjoint of a table is carried along and never added up as a whole."""

    def total(table: Any, start: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            at, s = carry
            return ((at * 5 + 3) % table.shape[0], s + jnp.sin(table[at])), None

        return lax.scan(step, (start, jnp.float32(0)), None, length=6)[0][1]

    table = jnp.linspace(0.0, 1.0, 50)
    np.testing.assert_allclose(
        jax.jit(lw.grad(total))(table, 1), jax.grad(total)(table, 1), rtol=1e-5
    )
    text = jax.jit(lw.grad(total)).lower(table, 1).as_text()
    adds = [
        line for line in text.splitlines() if "stablehlo.add" in line and "tensor<50xf32>" in line
    ]
    assert not adds
