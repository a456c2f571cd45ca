"""Products, extremes and log-sum-exp of a whole axis, with derivatives that are exact and cheap.

*Product.* Its derivative by one factor is the product of all others. P / xᵢ is wrong where a factor is zero and where
P underflows; what is counted and divided apart (the number of zeros, the product of the rest) is right once and wrong
when it is differentiated again. So the products of all others are computed by halving: the two halves are multiplied
with each other, the others of that shorter sequence are found alike, and each half gets them times its counterpart in
the other half. That is three multiplications an element, no division, and itself made of products, so that
derivatives of any order are as exact. Measured beside the division form on a million numbers it costs the same.

*Extremes.* The derivative goes to one element: the first that equals the extreme. A mask picks it on the way forward
and places it on the way back; nothing is scattered.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise.arrays.operators import MAXIMUM

# Halving ends here; the rest is one small table.
_SMALL = 16


def product(x: Any) -> Any:
    """The product along the first axis."""
    return _product(x) if jnp.issubdtype(x.dtype, jnp.inexact) else _plain_product(x)


def _plain_product(x: Any) -> Any:
    return jnp.prod(x, axis=0, dtype=x.dtype)


@jax.custom_jvp
def _product(x: Any) -> Any:
    return _plain_product(x)


@_product.defjvp
def _product_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (moved,) = primals, tangents
    return _product(x), jnp.sum(products_of_others(x) * moved, axis=0)


def products_of_others(x: Any) -> Any:
    """For each element along the first axis, the product of all others.

    >>> products_of_others(jnp.array([2.0, 0.0, 5.0])).tolist()
    [0.0, 10.0, 0.0]
    """
    length, halvings = x.shape[0], 0
    while -(-length // 2**halvings) > _SMALL:
        halvings += 1
    whole = -(-length // 2**halvings) * 2**halvings
    ones = jnp.ones((whole - length, *x.shape[1:]), x.dtype)
    return _others(jnp.concatenate([x, ones]) if whole > length else x, halvings)[:length]


def _others(x: Any, halvings: int) -> Any:
    if halvings == 0:
        own = jnp.eye(x.shape[0], dtype=bool).reshape(*x.shape[:1] * 2, *(1,) * (x.ndim - 1))
        return _product_along_second(jnp.where(own, jnp.ones((), x.dtype), x[None]))
    half = x.shape[0] // 2
    first, second = lax.split(x, (half, half))
    others = _others(first * second, halvings - 1)
    return jnp.concatenate([others * second, others * first])


def _product_along_second(table: Any) -> Any:
    found = table[:, 0]
    for i in range(1, table.shape[1]):
        found = found * table[:, i]
    return found


def log_sum_exp(x: Any) -> Any:
    """The logarithm of the sum of exponentials along the first axis; nothing at all has a derivative of zero."""
    largest = lax.stop_gradient(jnp.max(x, axis=0))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    total = jnp.sum(jnp.exp(x - largest), axis=0)
    some = total != 0
    return jnp.where(some, jnp.log(jnp.where(some, total, 1)) + largest, -jnp.inf)


def extreme(x: Any, kind: str) -> Any:
    """The maximum or minimum along the first axis, which is not empty; NaN if there is one."""
    return (_extreme if jnp.issubdtype(x.dtype, jnp.inexact) else _plain_extreme)(x, kind)


def _plain_extreme(x: Any, kind: str) -> Any:
    return jnp.max(x, axis=0) if kind == MAXIMUM else jnp.min(x, axis=0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _extreme(x: Any, kind: str) -> Any:
    return _plain_extreme(x, kind)


@_extreme.defjvp
def _extreme_jvp(kind: str, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (moved,) = primals, tangents
    found = _extreme(x, kind)
    place = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    first = jnp.min(jnp.where((x == found) | (x != x), place, x.shape[0]), axis=0)
    return found, jnp.sum(jnp.where(place == first, moved, 0), axis=0)
