"""`map`: a function of each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from lanewise.arrays.operands import elements, same_length
from lanewise.arrays.ragged import are_items, map_items
from lanewise.core.errors import OptionError


def map(function: Callable[..., Any], *xs: Any) -> Any:
    """`function` of each element of one or several sequences of one length: `function(x[i], y[i], ...)`.

    Sequences and results are arrays or trees of arrays. What `function` closes over is shared by all elements; its
    adjoint is a sum over them, and that of what is read by index one histogram.

    The children of a record, and other lists of records, differ in length from lane to lane. `map` over them gives a
    `Ragged`: an array with room for the longest, and the length.

    >>> import jax, jax.numpy as jnp, lanewise as lw
    >>> lw.arrays.map(lambda x, y: x * y + 1, jnp.arange(3), jnp.arange(3)).tolist()
    [1, 2, 5]
    >>> rows = jnp.arange(6.0).reshape(2, 3)
    >>> lw.arrays.map(lambda row: lw.arrays.reduce(jnp.add, row), rows).tolist()
    [3.0, 12.0]
    """
    if not callable(function):
        raise OptionError(f"`map`: `function` is {function!r}, not a function.")
    if not xs:
        raise OptionError("`map`: there is nothing to map over. Give at least one array.")
    if are_items(xs):
        return map_items(function, xs)
    given = [elements("map", f"xs[{i}]", x) for i, x in enumerate(xs)]
    same_length("map", {f"xs[{i}]": x.length for i, x in enumerate(given)})
    return jax.vmap(function)(*(x.rebuilt(x.leaves) for x in given))
