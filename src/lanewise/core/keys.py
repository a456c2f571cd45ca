"""Values as they are kept: typed PRNG keys as the integers they are made of, all else as it is."""

from __future__ import annotations

from typing import Any

import jax

from lanewise import _jax
from lanewise._jax import Var


def stored(value: Any, aval: Any) -> Any:
    """A value as it is kept."""
    return jax.random.key_data(value) if _jax.is_key(aval) else value


def loaded(value: Any, aval: Any) -> Any:
    """A kept value as the program sees it."""
    return _jax.wrap_key(value, aval) if _jax.is_key(aval) else value


def storage_struct(var: Var) -> jax.ShapeDtypeStruct:
    struct = _jax.shape_dtype_struct(var.aval)
    return jax.eval_shape(lambda x: stored(x, var.aval), struct)
