"""Sums over rows: the same numbers as each row's value added up, made by products where they are products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lanewise import _jax
from lanewise.arrays.summed import add_rows_in_slices, sum_over_rows

ROWS = 7


def _values(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


def _reads(table: Any, i: Any, g: Any) -> Any:
    return jnp.zeros_like(table).at[i].add(g)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[bool]]] = {
    "outer": (lambda x, g: jnp.outer(x, g), [(3,), (4,)], [True, True]),
    "transposed": (lambda x, g: jnp.outer(x, g).T * 2.0, [(3,), (4,)], [True, True]),
    "dot, no contraction": (
        lambda x, g: lax.dot_general(x, g, (((), ()), ((), ()))),
        [(3,), (4,)],
        [True, True],
    ),
    "of matrices": (lambda x, g: x.T @ g, [(5, 3), (5, 4)], [True, True]),
    "one side shared": (lambda x, w: x @ w, [(3,), (3, 4)], [True, False]),
    "a vector": (lambda x, y: x + y * 3.0, [(3,), (3,)], [True, True]),
    "a shared term": (lambda x, y: x + y, [(3,), (3,)], [True, False]),
    "nothing varies but one": (lambda x, y: y * 2.0, [(3,), (3,)], [True, False]),
    "not linear": (lambda x, g: jnp.sin(jnp.outer(x, g)), [(3,), (4,)], [True, True]),
    "spread": (lambda x, g: x[:, None, None] * g[None], [(3,), (2, 4)], [True, True]),
    "difference": (lambda x, g: jnp.outer(x, g) - jnp.outer(g, x), [(3,), (3,)], [True, True]),
    "padded": (lambda x, g: jnp.pad(jnp.outer(x, g), ((1, 2), (0, 1))), [(3,), (4,)], [True, True]),
    "sum of it": (lambda x, g: jnp.outer(x, g).sum(0), [(3,), (4,)], [True, True]),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_each_row_added_up(name: str, masked: bool) -> None:
    fun, shapes, varies = CASES[name]
    args = _values(*((ROWS, *s) if flag else s for s, flag in zip(shapes, varies, strict=True)))
    mask = jnp.arange(ROWS) % 3 != 1 if masked else None
    avals = [_jax.shaped(shape, jnp.float32.dtype) for shape in shapes]
    code = _jax.trace(lambda *values: [fun(*values)], avals).jaxpr
    (found,) = sum_over_rows(code, args, varies, mask)
    each = jax.vmap(fun, [0 if flag else None for flag in varies], axis_size=ROWS)(*args)
    wanted = each.sum(0) if mask is None else each[mask].sum(0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shared_index", [False, True])
def test_writes_by_index(shared_index: bool) -> None:
    table, rows = _values((10, 2), (ROWS, 2))
    index = jnp.int32(3) if shared_index else jnp.arange(ROWS, dtype=jnp.int32) * 2
    avals = [_jax.aval_of(table), _jax.shaped((), jnp.int32.dtype), _jax.aval_of(rows[0])]
    code = _jax.trace(lambda *values: [_reads(*values)], avals).jaxpr
    flags = [False, not shared_index, True]
    (found,) = sum_over_rows(code, [table, index, rows], flags)
    axes = [0 if flag else None for flag in flags]
    np.testing.assert_allclose(found, jax.vmap(_reads, axes)(table, index, rows).sum(0), rtol=1e-6)


def test_no_row_has_an_array_of_the_products_size() -> None:
    avals = [_jax.shaped((8,), jnp.float32.dtype), _jax.shaped((9,), jnp.float32.dtype)]
    code = _jax.trace(lambda x, g: [jnp.outer(x, g)], avals).jaxpr
    x, g = _values((ROWS, 8), (ROWS, 9))
    made = jax.make_jaxpr(lambda x, g: sum_over_rows(code, [x, g], [True, True]))(x, g)
    shapes = {v.aval.shape for eqn in made.jaxpr.eqns for v in eqn.outvars}
    assert (ROWS, 8, 9) not in shapes and (8, 9) in shapes


def test_a_masked_row_may_hold_anything() -> None:
    x, g = _values((ROWS, 3), (ROWS, 3))
    bad = x.at[2].set(jnp.nan)
    mask = jnp.arange(ROWS) != 2
    code = _jax.trace(lambda x, g: [jnp.outer(x, g)], [_jax.aval_of(x[0])] * 2).jaxpr
    (found,) = sum_over_rows(code, [bad, g.at[2].set(jnp.inf)], [True, True], mask)
    np.testing.assert_allclose(found, (x[mask].T @ g[mask]), rtol=1e-5, atol=1e-6)


def test_slices_are_clipped_as_a_slice_is() -> None:
    array, parts = jnp.zeros((5, 4)), jnp.ones((3, 1, 2))
    starts = [jnp.array([0, 9, -2]), jnp.array([0, 3, 1])]
    found = add_rows_in_slices(array, parts, starts, jnp.array([True, True, True]))
    wanted = np.zeros((5, 4))
    for i, j in ((0, 0), (4, 2), (0, 1)):
        wanted[i, j : j + 2] += 1
    np.testing.assert_array_equal(found, wanted)
