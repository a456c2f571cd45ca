"""Least squares of a polynomial against the sign function, at n points between minus one and one."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from gradbench.protocol import Function, listed


def half_squares(x: Any, n: int) -> jax.Array:
    t = -1.0 + jnp.arange(n) * 2.0 / (n - 1.0)
    powers = jnp.cumprod(jnp.broadcast_to(t[:, None], (n, x.shape[0] - 1)), axis=1)
    powers = jnp.concatenate([jnp.ones((n, 1)), powers], axis=1)
    off = lw.arrays.map(lambda t, row: jnp.sign(t) - row @ x, t, powers)
    return 0.5 * lw.arrays.reduce(jnp.add, off**2)


def bound(given: Any) -> tuple[Any, tuple[np.ndarray]]:
    return functools.partial(half_squares, n=given["n"]), (np.array(given["x"]),)


def gradient(given: Any) -> tuple[Any, tuple[np.ndarray]]:
    fun, arguments = bound(given)
    return jax.grad(fun), arguments


FUNCTIONS = {"primal": Function(bound, listed), "gradient": Function(gradient, listed)}
