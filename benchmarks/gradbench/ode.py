"""A chain of equations, each driven by the one before it, by Runge and Kutta's method in s steps to time two."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from gradbench.protocol import Function, listed

END = 2.0


def slope(x: Any, y: Any) -> jax.Array:
    return x * jnp.concatenate([jnp.ones(1, y.dtype), y[:-1]])


@lw.program
def solve(x, clock):
    h = END / clock.shape[0]
    y = jnp.zeros_like(x)
    for _ in clock:
        k1 = slope(x, y)
        k2 = slope(x, y + h / 2.0 * k1)
        k3 = slope(x, y + h / 2.0 * k2)
        k4 = slope(x, y + h * k3)
        y = y + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return y


def last(x: Any, clock: Any) -> jax.Array:
    return solve(x, clock)[-1]


def arguments(given: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.array(given["x"]), np.arange(given["s"])


FUNCTIONS = {
    "primal": Function(lambda given: (solve, arguments(given)), listed),
    "gradient": Function(lambda given: (jax.grad(last), arguments(given)), listed),
}
