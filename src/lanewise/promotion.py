"""How two types meet, as JAX has it: shapes must be equal, weak types give way to strong ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax


def show(aval: Any) -> str:
    """A type as messages print it.

    >>> show(_jax.shaped((3,), jnp.float32))
    'float32[3]'
    """
    return aval.str_short()


def join(first: Any, second: Any) -> Any | None:
    """The type both can become, or None where there is none.

    A weak type (a Python scalar's) becomes the strong type it meets if JAX's promotion says so.

    >>> weak_int = _jax.aval_of(1)
    >>> join(weak_int, _jax.shaped((), jnp.float32)).dtype
    dtype('float32')
    >>> join(_jax.shaped((), jnp.int32), _jax.shaped((), jnp.float32)) is None
    True
    """
    if first.shape != second.shape:
        return None
    if first.dtype == second.dtype:
        return _jax.shaped(first.shape, first.dtype, first.weak_type and second.weak_type)
    if not (first.weak_type or second.weak_type):
        return None
    if any(jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended) for a in (first, second)):
        return None
    scalars = [jax.ShapeDtypeStruct((), a.dtype, weak_type=a.weak_type) for a in (first, second)]
    promoted = jnp.result_type(*scalars)
    if first.weak_type and second.weak_type:
        return _jax.shaped(first.shape, promoted, True)
    strong = second if first.weak_type else first
    return strong if promoted == strong.dtype else None


def convert(value: Any, aval: Any) -> Any:
    """`value` as exactly the type `aval`, weak type included."""
    have = _jax.aval_of(value)
    if have.dtype == aval.dtype and have.weak_type == aval.weak_type:
        return value
    return _jax.convert_to_aval(value, aval)
