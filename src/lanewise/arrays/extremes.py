"""Products, extremes and log-sum-exp of a whole axis, with derivatives that are exact and cheap.

*Product.* Its derivative by one factor is the product of all others. The first form that applies is used: P / xᵢ,
if P is a normal number, which also shows that no factor is zero; from the number of zeros and the product of the
rest, if that is a normal number; by halves. There the two halves are multiplied with each other, the others of that
shorter sequence are found in the same way, and each half gets them times its counterpart in the other half. That needs
no division and is itself made of products, so its derivatives of any order are exact: when the products of others are
differentiated again, it is this form that is differentiated. (A form that divides, or counts zeros, is right once and
wrong when it is differentiated.)

*Extremes.* The derivative goes to one element: the first that equals the extreme. A mask picks it on the way forward
and places it on the way back; nothing is scattered.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise.arrays.blocked import written
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


@jax.custom_jvp
def products_of_others(x: Any) -> Any:
    """For each element along the first axis, the product of all others.

    >>> products_of_others(jnp.array([2.0, 0.0, 5.0])).tolist()
    [0.0, 10.0, 0.0]
    """
    if x.shape[0] <= _SMALL:
        return _others_of_few(x)
    whole = _plain_product(x)
    return lax.cond(
        jnp.all(_is_normal(whole)), lambda: whole / x, lambda: _others_by_zeros_or_halves(x)
    )


def _is_normal(x: Any) -> Any:
    """Neither zero, nor so small that digits are lost, nor infinite or NaN."""
    limits = jnp.finfo(x.dtype)
    return (jnp.abs(x) >= limits.tiny) & (jnp.abs(x) <= limits.max)


def _others_by_zeros_or_halves(x: Any) -> Any:
    zero = x == 0
    rest = jnp.where(zero, jnp.ones((), x.dtype), x)
    others, zeros = _plain_product(rest), jnp.sum(zero, axis=0)

    def by_zeros() -> Any:
        lone = jnp.where(zero & (zeros == 1), others, jnp.zeros((), x.dtype))
        return jnp.where(zeros == 0, others / rest, lone)

    settled = jnp.all(_is_normal(others) | (zeros > 1))
    return lax.cond(settled, by_zeros, lambda: _others_by_halves(x))


@products_of_others.defjvp
def _others_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    _, moved = jax.jvp(_others_by_halves, primals, tangents)
    return products_of_others(*primals), moved


def _others_by_halves(x: Any) -> Any:
    length = x.shape[0]
    if length <= _SMALL:
        return _others_of_few(x)
    half = -(-length // 2)
    first, second = x[:half], x[half:]
    if length % 2:
        second = written(jnp.ones_like(first), second, 0)
    others = _others_by_halves(first * second)
    return jnp.concatenate([others * second, others * first])[:length]


def _others_of_few(x: Any) -> Any:
    """The same from the table of all pairs."""
    own = jnp.eye(x.shape[0], dtype=bool).reshape(*x.shape[:1] * 2, *(1,) * (x.ndim - 1))
    factors = jnp.where(own, jnp.ones((), x.dtype), x[None])
    found = factors[:, 0]
    for i in range(1, x.shape[0]):
        found = found * factors[:, i]
    return found


def log_sum_exp(x: Any) -> Any:
    """The logarithm of the sum of exponentials along the first axis; its derivative is zero where all are -inf."""
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
