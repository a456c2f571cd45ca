"""Rows of arrays, taken and put back by number."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def taken(array: Any, places: Any) -> Any:
    """The rows at these places, all of which exist.

    >>> taken(jnp.array([[1, 2], [3, 4], [5, 6]]), jnp.array([2, 0]))
    Array([[5, 6],
           [1, 2]], dtype=int32)
    """
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, array.ndim)), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    # NumPy's indexing would also wrap negative indices, which is code in each kernel that reads.
    return lax.gather(
        array,
        places[:, None],
        numbers,
        (1, *array.shape[1:]),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def put(array: Any, places: Any, rows: Any) -> Any:
    """An array with these rows at these places; a row whose place does not exist is dropped.

    >>> put(jnp.zeros(3), jnp.array([1, 3]), jnp.array([5.0, 6.0]))
    Array([0., 5., 0.], dtype=float32)
    """
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, array.ndim)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    return lax.scatter(
        array,
        places[:, None],
        jnp.asarray(rows, array.dtype),
        numbers,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
