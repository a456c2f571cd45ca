"""`histogram`: values combined by index.

The usual operators write each bin at once (`bins.py`). For any other, values are sorted by bin, in a stable order,
and the bins are then segments (`segmented.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index as as_integer
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.arrays.bins import Layout, combine_bins
from lanewise.arrays.operands import (
    Elements,
    elements,
    indices_of,
    same_elements,
    same_length,
    within,
)
from lanewise.arrays.operators import Operator, operator_on
from lanewise.arrays.segmented import reduce_segments
from lanewise.core.errors import OptionError


def histogram(
    operator: Callable[[Any, Any], Any],
    indices: Any,
    values: Any,
    size: int | None = None,
    *,
    into: Any = None,
    neutral: Any = None,
) -> Any:
    """Combine the values that have the same index: bin `b` gets those with `indices[i] == b`, in order.

    There are `size` bins that begin as the neutral element (the usual operators have one of their own), or they begin
    as the elements of `into`, a tree of arrays like `values`. An index out of range, a negative one too, names no bin,
    and its value is dropped. For operator, elements and derivatives see `reduce`.

    >>> import jax.numpy as jnp, lanewise as lw
    >>> lw.arrays.histogram(jnp.add, jnp.array([0, 2, 0, 7]), jnp.array([1, 2, 3, 4]), 3).tolist()
    [4, 0, 2]
    >>> lw.arrays.histogram(jnp.maximum, jnp.array([0, 2, 0]), jnp.array([1, 2, 3]), into=jnp.array([2, 5, 9])).tolist()
    [3, 5, 9]
    """
    what = "histogram"
    given = elements(what, "values", values)
    index = indices_of(what, "indices", indices)
    same_length(what, {"indices": index.shape[0], "values": given.length})
    start, count = _start(given, size, into)
    with _jax.our_transfers():
        op = operator_on(what, operator, given, neutral)
        index = within(index, count)
        if op.kinds is not None:
            found = combine_bins(op, given.leaves, index, Layout(count, ascending=False))
        else:
            found = _by_sorting(op, given, index, count)
        return given.rebuilt(found if start is None else jax.vmap(op)(list(start), found))


def _by_sorting(op: Operator, given: Elements, index: Any, count: int) -> list[Any]:
    neutral = op.neutral_for("histogram", "for bins without values")
    order = jnp.argsort(index, stable=True)
    sizes = jnp.zeros(count, jnp.int32).at[index].add(1, mode="drop")
    # Those of no bin come last, beyond the last segment.
    return reduce_segments(op, [x[order] for x in given.leaves], sizes, neutral)


def _start(given: Elements, size: Any, into: Any) -> tuple[tuple[Any, ...] | None, int]:
    if (size is None) == (into is None):
        raise OptionError("`histogram`: give either `size`, the number of bins, or `into`.")
    if into is None:
        try:
            count = as_integer(size)
        except TypeError:
            count = -1
        if count < 0:
            raise OptionError(
                f"`histogram`: `size` is {size!r}. Give the number of bins as a Python integer."
            )
        return None, count
    start = elements("histogram", "into", into)
    same_elements("histogram", start, given)
    return start.leaves, start.length
