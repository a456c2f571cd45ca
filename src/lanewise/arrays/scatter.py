"""`scatter`: values written by index, the last one counts.

XLA leaves open which of several writes to one place wins, and the derivative of such a write is then open too. So
writes that a later one overwrites are taken out first; what is left touches each place once. Its derivative is
linear: the adjoint of the values is read at the places they were written to, that of the array is zero there. No old
value is kept for it, and nothing is copied that XLA can update in place.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise.arrays.operands import elements, indices_of, same_elements, same_length, within

# Up to this many writes are compared pairwise; beyond, a table as long as the array finds the last of each place.
_COMPARED = 64


def scatter(into: Any, indices: Any, values: Any, *, unique: bool = False) -> Any:
    """`into` with `values[i]` at `indices[i]`; where an index comes twice, the last value counts.

    `into` and `values` are arrays or trees of arrays with one structure. An index out of range, a negative one too, is
    dropped with its value. `unique=True` promises that no index in range comes twice, and saves looking for it.

    >>> import jax.numpy as jnp, lanewise as lw
    >>> lw.arrays.scatter(jnp.zeros(4), jnp.array([1, 3, 1, 9]), jnp.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [0.0, 3.0, 0.0, 2.0]
    """
    what = "scatter"
    target, given = elements(what, "into", into), elements(what, "values", values)
    index = indices_of(what, "indices", indices)
    count = same_length(what, {"indices": index.shape[0], "values": given.length})
    same_elements(what, target, given)
    with _jax.our_transfers():
        index = within(index, target.length)
        if not unique and count > 1:
            index = jnp.where(_is_last(index, target.length), index, target.length)
        # Dropped writes get places of their own beyond the end, so that no two are the same.
        index = jnp.where(index < target.length, index, target.length + jnp.arange(count))
        return target.rebuilt(
            [
                x.at[index].set(v, mode="drop", unique_indices=True)
                for x, v in zip(target.leaves, given.leaves, strict=True)
            ]
        )


def _is_last(index: Any, size: int) -> Any:
    """Whether no later index is the same."""
    place = jnp.arange(index.shape[0], dtype=jnp.int32)
    if index.shape[0] <= _COMPARED:
        return ~((index[:, None] == index) & (place[:, None] < place)).any(axis=1)
    last = jnp.full(size, -1, jnp.int32).at[index].max(place, mode="drop")
    return last.at[index].get(mode="fill", fill_value=-1) == place
