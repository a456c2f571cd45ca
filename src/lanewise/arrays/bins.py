"""Known operators by index: every value goes to the bin its index names; `size` names no bin.

The one place that writes by index for `histogram` and `segmented_reduce`. Each bin is combined with one scatter by that
operator, and each has its own derivative:

* a sum's is a gather;
* an extreme's goes to one value a bin, the first among equals, whose position a second scatter finds;
* a product's needs the product of the bin's other values. It comes from the number of zeros in the bin and the product
  of the rest, without dividing by zero (where that product overflows or underflows, so does the derivative). To
  differentiate it again, the same values are computed exactly, by sorting into segments and scanning from both sides;
* log-sum-exp is shifted by its bin's maximum and left to JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise.arrays.blocked import scan_leaves
from lanewise.arrays.operators import (
    ADD,
    AND,
    KNOWN,
    LOGADDEXP,
    MAXIMUM,
    MINIMUM,
    MULTIPLY,
    OR,
    Operator,
)


@dataclass(frozen=True)
class Layout:
    """How many bins, and whether the indices ascend."""

    size: int
    ascending: bool


def combine_bins(op: Operator, leaves: Sequence[Any], indices: Any, layout: Layout) -> list[Any]:
    """The values of each bin combined by an operator of known kinds; its neutral element where there are none."""
    assert op.kinds is not None and op.neutral is not None
    found = [_FAST[k](x, indices, layout) for k, x in zip(op.kinds, leaves, strict=True)]
    if not op.neutral_given:
        return found
    # The bins come first: among equals they get the derivative.
    return jax.vmap(op, in_axes=(0, None))(found, op.neutral)


def _written(kind: str, method: str, values: Any, indices: Any, layout: Layout) -> Any:
    start = jnp.full(
        (layout.size, *values.shape[1:]), KNOWN[kind].neutral(values.dtype), values.dtype
    )
    write = getattr(start.at[indices], method)
    return write(values, mode="drop", indices_are_sorted=layout.ascending)


def _looked_up(bins: Any, indices: Any, fill: Any = 0) -> Any:
    """What each value's bin holds; `fill` for values that are in none."""
    return bins.at[indices].get(mode="fill", fill_value=fill)


def _sum(values: Any, indices: Any, layout: Layout) -> Any:
    return _written(ADD, "add", values, indices, layout)


# -- extremes ---------------------------------------------------------------------------------------


def _extreme(kind: str, values: Any, indices: Any, layout: Layout) -> Any:
    if jnp.issubdtype(values.dtype, jnp.inexact):
        return _smooth_extreme(values, indices, kind, layout)
    return _plain_extreme(kind, values, indices, layout)


def _plain_extreme(kind: str, values: Any, indices: Any, layout: Layout) -> Any:
    return _written(kind, "max" if kind == MAXIMUM else "min", values, indices, layout)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _smooth_extreme(values: Any, indices: Any, kind: str, layout: Layout) -> Any:
    return _plain_extreme(kind, values, indices, layout)


@_smooth_extreme.defjvp
def _extreme_jvp(
    kind: str, layout: Layout, primals: tuple[Any, Any], tangents: tuple[Any, Any]
) -> tuple[Any, Any]:
    (values, indices), (moved, _) = primals, tangents
    found = _smooth_extreme(values, indices, kind, layout)
    count = values.shape[0]
    place = lax.broadcasted_iota(jnp.int32, values.shape, 0)
    equal = (values == _looked_up(found, indices)) | (values != values)
    firsts = _plain_extreme(MINIMUM, jnp.where(equal, place, count), indices, layout)
    firsts = jnp.minimum(firsts, count)
    if count == 0:
        return found, jnp.zeros_like(found)
    taken = jnp.take_along_axis(moved, jnp.minimum(firsts, count - 1), axis=0)
    return found, jnp.where(firsts < count, taken, 0)


# -- products ---------------------------------------------------------------------------------------


def _product(values: Any, indices: Any, layout: Layout) -> Any:
    if jnp.issubdtype(values.dtype, jnp.inexact):
        return _smooth_product(values, indices, layout)
    return _plain_product(values, indices, layout)


def _plain_product(values: Any, indices: Any, layout: Layout) -> Any:
    return _written(MULTIPLY, "multiply", values, indices, layout)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _smooth_product(values: Any, indices: Any, layout: Layout) -> Any:
    return _plain_product(values, indices, layout)


@_smooth_product.defjvp
def _product_jvp(
    layout: Layout, primals: tuple[Any, Any], tangents: tuple[Any, Any]
) -> tuple[Any, Any]:
    (values, indices), (moved, _) = primals, tangents
    weighted = _products_of_others(values, indices, layout) * moved
    return _smooth_product(values, indices, layout), _sum(weighted, indices, layout)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _products_of_others(values: Any, indices: Any, layout: Layout) -> Any:
    zero = values == 0
    rest = jnp.where(zero, 1, values)
    zeros = _looked_up(_sum(zero.astype(jnp.int32), indices, layout), indices)
    others = _looked_up(_plain_product(rest, indices, layout), indices)
    return jnp.where(zeros == 0, others / rest, jnp.where(zero & (zeros == 1), others, 0))


@_products_of_others.defjvp
def _others_jvp(
    layout: Layout, primals: tuple[Any, Any], tangents: tuple[Any, Any]
) -> tuple[Any, Any]:
    (values, indices), (moved, _) = primals, tangents
    _, out = jax.jvp(lambda v: _exact_others(v, indices), (values,), (moved,))
    return _products_of_others(values, indices, layout), out


def _exact_others(values: Any, indices: Any) -> Any:
    """The same from products alone: what comes before in the bin times what comes after."""
    order = jnp.argsort(indices, stable=True)
    values, sorted_indices = values[order], indices[order]
    same = sorted_indices[1:] == sorted_indices[:-1]
    before = _prefixes(values, jnp.concatenate([jnp.ones_like(same[:1]), ~same]))
    after = _prefixes(values[::-1], jnp.concatenate([jnp.ones_like(same[:1]), ~same[::-1]]))[::-1]
    return jnp.zeros_like(values).at[order].set(before * after, unique_indices=True)


def _prefixes(values: Any, starts: Any) -> Any:
    """Exclusive products since the last start."""
    spread = starts.reshape(-1, *(1,) * (values.ndim - 1))
    shifted = jnp.where(spread, 1, jnp.concatenate([jnp.ones_like(values[:1]), values[:-1]]))

    def combine(a: Any, b: Any) -> list[Any]:
        return [a[0] | b[0], jnp.where(b[0], b[1], a[1] * b[1])]

    start = [jnp.zeros((), bool), jnp.ones_like(values[0])]
    return scan_leaves(combine, [starts, shifted], start)[1]


# -- the rest ---------------------------------------------------------------------------------------


def _logsumexp(values: Any, indices: Any, layout: Layout) -> Any:
    largest = _plain_extreme(MAXIMUM, lax.stop_gradient(values), indices, layout)
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    total = _sum(jnp.exp(values - _looked_up(largest, indices)), indices, layout)
    some = total != 0
    return jnp.where(some, jnp.log(jnp.where(some, total, 1)) + largest, -np.inf)


def _bits(kind: str, values: Any, indices: Any, layout: Layout) -> Any:
    """Bit by bit: an "and" is a minimum and an "or" a maximum of bits."""
    if values.dtype == np.bool_:
        method = "min" if kind == AND else "max"
        return _written(kind, method, values, indices, layout)
    width = jnp.iinfo(values.dtype).bits
    places = jnp.arange(width).astype(values.dtype)
    bits = (values[..., None] >> places) & 1 == 1
    return jnp.sum(
        _bits(kind, bits, indices, layout).astype(values.dtype) << places,
        axis=-1,
        dtype=values.dtype,
    )


_FAST: dict[str, Callable[[Any, Any, Layout], Any]] = {
    ADD: _sum,
    MULTIPLY: _product,
    MAXIMUM: functools.partial(_extreme, MAXIMUM),
    MINIMUM: functools.partial(_extreme, MINIMUM),
    LOGADDEXP: _logsumexp,
    AND: functools.partial(_bits, AND),
    OR: functools.partial(_bits, OR),
}
