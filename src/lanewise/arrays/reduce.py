"""`reduce`: all elements of a sequence combined into one.

The fast forms are XLA's own reductions, each with the derivative that suits it (`extremes.py`); any other operator
takes the blocked path (`blocked.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.arrays.blocked import reduce_leaves
from lanewise.arrays.extremes import extreme, log_sum_exp, product
from lanewise.arrays.operands import elements
from lanewise.arrays.operators import (
    ADD,
    AND,
    LOGADDEXP,
    MAXIMUM,
    MINIMUM,
    MULTIPLY,
    OR,
    operator_on,
)
from lanewise.arrays.ragged import are_items, as_ragged, masked


def reduce(operator: Callable[[Any, Any], Any], xs: Any, *, neutral: Any = None) -> Any:
    """Combine the elements of `xs` along their first axis, in order: `x[0] ⊕ x[1] ⊕ ... ⊕ x[n-1]`.

    `operator(a, b)` takes two elements and gives one of the same type; it must be associative, need not commute, and
    may close over values, by which one can differentiate too. `xs` is an array or a tree of arrays of one length; an
    element is the tree of their rows. `neutral` is what an empty sequence gives; the usual operators have one of
    their own.

    Derivatives of a maximum or minimum go to one element, the first among equals; those of a product are exact where
    factors are zero.

    >>> import jax, jax.numpy as jnp, lanewise as lw
    >>> float(lw.arrays.reduce(jnp.multiply, jnp.array([2.0, 3.0, 4.0])))
    24.0
    >>> def later_of_equals(a, b):
    ...     swap = b[0] >= a[0]
    ...     return jnp.where(swap, b[0], a[0]), jnp.where(swap, b[1], a[1])
    >>> value, index = lw.arrays.reduce(later_of_equals, (jnp.array([1, 5, 5, 2]), jnp.arange(4)))
    >>> int(value), int(index)
    (5, 2)
    """
    ragged = as_ragged("reduce", xs) if are_items([xs]) else None
    given = elements("reduce", "xs", xs if ragged is None else ragged.values)
    with _jax.our_transfers():
        op = operator_on("reduce", operator, given, neutral)
        if ragged is not None:
            start = op.neutral_for("reduce", "where there are no elements")
            given = replace(given, leaves=tuple(masked(ragged, given.leaves, start)))
        if given.length == 0:
            return given.rebuilt(op.neutral_for("reduce", "where there are no elements"))
        if op.kinds is None:
            return given.rebuilt(reduce_leaves(op, given.leaves))
        return given.rebuilt([_FAST[k](x) for k, x in zip(op.kinds, given.leaves, strict=True)])


def _sum(x: Any) -> Any:
    return jnp.sum(x, axis=0, dtype=x.dtype)


# Each of an axis that is not empty.
_FAST: dict[str, Callable[[Any], Any]] = {
    ADD: _sum,
    MULTIPLY: product,
    MAXIMUM: lambda x: extreme(x, MAXIMUM),
    MINIMUM: lambda x: extreme(x, MINIMUM),
    LOGADDEXP: log_sum_exp,
    AND: lambda x: lax.reduce_and(x, (0,)),
    OR: lambda x: lax.reduce_or(x, (0,)),
}
