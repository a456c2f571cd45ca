"""Control that pieces read, as words of a record: integers and flags of any width, and small arrays of them."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def words_in(aval: Any) -> int:
    """How many words of a record an array of integers takes."""
    return math.prod(aval.shape) * (2 if np.dtype(aval.dtype).itemsize == 8 else 1)


def words(value: Any) -> list[Any]:
    """An array of integers as words."""
    flat = jnp.ravel(value)
    each = [flat[i] if value.shape else value for i in range(flat.shape[0])]
    if value.dtype.itemsize < 8:
        return [_word(x) for x in each]
    low = [_word(lax.convert_element_type(x & 0xFFFFFFFF, jnp.uint32)) for x in each]
    high = [_word(lax.convert_element_type(x >> 32, jnp.int32)) for x in each]
    return [w for pair in zip(low, high, strict=True) for w in pair]


def _word(value: Any) -> Any:
    if value.dtype == np.uint32:
        return lax.bitcast_convert_type(value, jnp.int32)
    return lax.convert_element_type(value, jnp.int32)


def from_words(rows: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Arrays of integers from rows of words."""
    dtype = np.dtype(dtype)
    if dtype.itemsize == 8 or dtype == np.uint32:
        found = np.ascontiguousarray(rows).view(dtype)
    else:
        found = rows.astype(dtype)
    return found.reshape(len(rows), *shape)
