"""Several small values as one array, so that they travel as one message.

A message costs several microseconds, however short; a few values that are copied next to each other cost one
operation. Types of four bytes and more are taken apart into words by their bits, so every value arrives as it left,
NaNs too; shorter ones have a word each. Large values travel alone: there the copies would cost more than the
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise.place.transports.traceable import carried

# Above it, two copies of a value take longer than a message.
MOST_BYTES = 16384

_WORD = jnp.uint32


def packed(values: Sequence[Any]) -> Any:
    """All values in one array of words.

    >>> packed([jnp.float32(1), jnp.arange(2), jnp.asarray([True])]).tolist()
    [1065353216, 0, 1, 1]
    """
    return jnp.concatenate([_words(jnp.asarray(x)) for x in values])


def unpacked(words: Any, avals: Sequence[Any]) -> list[Any]:
    """The values of these types that an array of words holds."""
    ends = np.cumsum([size_of(aval) for aval in avals])
    return [
        _value(words[end - size_of(aval) : end], aval)
        for aval, end in zip(avals, ends.tolist(), strict=True)
    ]


def struct_of(avals: Sequence[Any]) -> jax.ShapeDtypeStruct:
    """The type of the array that holds values of these types."""
    return jax.ShapeDtypeStruct((sum(map(size_of, avals)),), _WORD)


def size_of(aval: Any) -> int:
    """How many words a value has."""
    per = max(1, np.dtype(carried(aval.dtype)).itemsize // 4)
    return per * int(np.prod(aval.shape, dtype=np.int64))


def _words(value: Any) -> Any:
    kept = carried(value.dtype)
    value = value.astype(kept)
    if jnp.issubdtype(kept, jnp.complexfloating):
        value = jnp.stack([value.real, value.imag], axis=-1)
    elif kept == np.bool_:
        value = value.astype(jnp.uint8)
    size = value.dtype.itemsize
    if size < 4:
        value = lax.bitcast_convert_type(value, _UNSIGNED[size]).astype(_WORD)
    else:
        value = lax.bitcast_convert_type(value, _WORD)
    return value.ravel()


def _value(words: Any, aval: Any) -> Any:
    kept = carried(aval.dtype)
    if kept == np.bool_:
        return (words != 0).reshape(aval.shape)
    if jnp.issubdtype(kept, jnp.complexfloating):
        each = jnp.float64 if kept.itemsize == 16 else jnp.float32
        both = _from_bits(words, (*aval.shape, 2), np.dtype(each))
        return lax.complex(both[..., 0], both[..., 1])
    return _from_bits(words, aval.shape, kept).astype(aval.dtype)


def _from_bits(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if dtype.itemsize < 4:
        return lax.bitcast_convert_type(words.astype(_UNSIGNED[dtype.itemsize]), dtype).reshape(
            shape
        )
    several = (dtype.itemsize // 4,) if dtype.itemsize > 4 else ()
    return lax.bitcast_convert_type(words.reshape((*shape, *several)), dtype)


_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16}
