"""What all transports have: traceable sends and receives of any type, by compiled handlers or by callbacks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.place.transports import compiled, interface, plain
from lanewise.place.transports.interface import Session


def carried(dtype: Any) -> np.dtype:
    """The type that values travel as: their own, or one of whole bytes that holds all of its values.

    >>> carried(jnp.bfloat16), carried(jnp.int4)
    (dtype(bfloat16), dtype('int8'))
    """
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return np.dtype(np.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else np.uint8)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 8:
        return np.dtype(np.float32)
    return dtype


class Traceable:
    """The traceable half of a transport. `by_callback`: Python does it; None: where there is no C++ compiler."""

    def __init__(self, by_callback: bool | None) -> None:
        self.by_callback = compiled.library() is None if by_callback is None else by_callback
        self._core = plain if self.by_callback else compiled

    def send(self, token: jax.Array, value: Any, *, target: int, number: int) -> jax.Array:
        value = jnp.asarray(value)
        value = value.astype(carried(value.dtype))
        return self._core.send(token, value, target=target, number=number)

    def receive(
        self, token: jax.Array, aval: jax.ShapeDtypeStruct, *, source: int, number: int
    ) -> tuple[jax.Array, jax.Array]:
        there = jax.ShapeDtypeStruct(aval.shape, carried(aval.dtype))
        token, value = self._core.receive(token, there, source=source, number=number)
        return token, value.astype(aval.dtype)

    def require(self, token: jax.Array, ok: Any, *, number: int) -> jax.Array:
        return self._core.require(token, jnp.asarray(ok, bool).reshape(()), number=number)

    def close(self, session: Session, reason: str | None = None) -> None:
        interface.close(session, reason)
