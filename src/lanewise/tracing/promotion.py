"""How two types meet, as JAX has it: shapes must be equal, weak types give way to strong ones."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.core import ShapedArray

from lanewise import _jax


def show(aval: Any) -> str:
    """A type as messages print it.

    >>> show(_jax.shaped((3,), jnp.float32))
    'float32[3]'
    """
    return aval.str_short()


def join(first: ShapedArray, second: ShapedArray) -> ShapedArray | None:
    """The type both can become, or None where there is none.

    A weak type (a Python scalar's) becomes the strong type it meets if JAX's promotion says so.

    >>> weak_int = _jax.aval_of(1)
    >>> join(weak_int, _jax.shaped((), jnp.int8))
    ShapedArray(int8[])
    >>> join(_jax.shaped((), jnp.int32), _jax.shaped((), jnp.float32)) is None
    True
    """
    if first.shape != second.shape:
        return None
    first_weak, second_weak = bool(first.weak_type), bool(second.weak_type)
    if first.dtype == second.dtype:
        return _jax.shaped(first.shape, first.dtype, first_weak and second_weak)
    if _jax.is_extended(first.dtype) or _jax.is_extended(second.dtype):
        return None
    if first_weak and second_weak:
        return _jax.shaped(first.shape, jnp.promote_types(first.dtype, second.dtype), True)
    if first_weak and _gives_way(first, second):
        return second
    if second_weak and _gives_way(second, first):
        return first
    return None


def _gives_way(weak: ShapedArray, strong: ShapedArray) -> bool:
    # `jnp.result_type` looks for a weak type on values only: a `ShapeDtypeStruct` always counts as strong.
    return jnp.result_type(weak_example(weak.dtype), strong.dtype) == strong.dtype


def weak_example(dtype: Any) -> Any:
    """A Python number, so weakly typed, of a dtype's kind.

    >>> weak_example(jnp.int32), weak_example(jnp.float32)
    (0, 0.0)
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return 0j
    return 0.0 if jnp.issubdtype(dtype, jnp.floating) else 0


def convert(value: Any, aval: Any) -> Any:
    """`value` as exactly the type `aval`, weak type included."""
    have = _jax.aval_of(value)
    if have.dtype == aval.dtype and have.weak_type == aval.weak_type:
        return value
    return _jax.convert_to_aval(value, aval)
