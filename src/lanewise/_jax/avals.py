"""Types of values: shape, dtype, memory, tangents; typed PRNG keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.interpreters.ad as ad
from jax._src import core as _core
from jax._src.lax import lax as _lax
from jax.core import ShapedArray

HOST, DEVICE = _core.MemorySpace.Host, _core.MemorySpace.Device


def shape_dtype_struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def aval_of(value: Any) -> ShapedArray:
    """The abstract value of an array-like (Python scalars are weakly typed)."""
    return jax.typeof(value)


def strong(aval: ShapedArray) -> ShapedArray:
    return _core.ShapedArray(aval.shape, aval.dtype, weak_type=False)


def shaped(shape: Sequence[int], dtype: Any, weak_type: bool = False) -> ShapedArray:
    return _core.ShapedArray(tuple(shape), dtype, weak_type=weak_type)


def in_memory_of(aval: ShapedArray, like: ShapedArray) -> ShapedArray:
    """The type, of values in the same memory as another's: the device's, or the host's."""
    return aval.update(memory_space=like.memory_space)


def convert_to_aval(value: Any, aval: ShapedArray) -> Any:
    """Convert dtype and weak type (the public conversion always makes the type strong)."""
    return _lax._convert_element_type(value, aval.dtype, weak_type=bool(aval.weak_type))


def zeros(aval: ShapedArray) -> Any:
    """Zeros of a type, typed PRNG keys included."""
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, shape_dtype_struct(aval))
        return wrap_key(jax.numpy.zeros(data.shape, data.dtype), aval)
    return jax.lax.full(aval.shape, 0, aval.dtype)


def is_extended(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


def is_key(aval: ShapedArray) -> bool:
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key))


def wrap_key(data: Any, aval: ShapedArray) -> Any:
    return jax.random.wrap_key_data(data, impl=aval.dtype._impl.name)


def key_implementation(dtype: Any) -> str:
    """The name of the random generator a typed key's dtype belongs to."""
    return str(dtype._impl.name)


def has_tangent(aval: ShapedArray) -> bool:
    """Whether values of this type have derivatives."""
    return not is_extended(aval.dtype) and bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact))


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    return shaped(aval.shape, aval.dtype)


def zero_tangent(value: Any) -> Any:
    """The symbolic zero that stands for the tangent of a value."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())


def is_symbolic(*sizes: Any) -> bool:
    """Whether one of these sizes is a variable of `jax.export.symbolic_shape`.

    >>> is_symbolic(3, *jax.export.symbolic_shape("n"))
    True
    """
    return any(_core.is_symbolic_dim(size) for size in sizes)
