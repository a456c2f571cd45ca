"""Least squares of a polynomial against the sign function, at n points between minus one and one.

The polynomial is taken at all points together, by Horner's rule: a loop over coefficients, whose reverse saves nothing,
for it is linear in what it carries. A table of powers, one row for each point, would be written and read from memory.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from gradbench.protocol import Function, listed


@lw.program
def polynomial(coefficients, t):
    value = jnp.zeros_like(t)
    for coefficient in coefficients[::-1]:
        value = value * t + coefficient
    return value


def half_squares(x: Any, n: int) -> jax.Array:
    t = -1.0 + jnp.arange(n) * 2.0 / (n - 1.0)
    off = jnp.sign(t) - polynomial(x, t)
    return 0.5 * lw.arrays.reduce(jnp.add, off**2)


def bound(given: Any) -> tuple[Any, tuple[np.ndarray]]:
    return functools.partial(half_squares, n=given["n"]), (np.array(given["x"]),)


def gradient(given: Any) -> tuple[Any, tuple[np.ndarray]]:
    fun, arguments = bound(given)
    return jax.grad(fun), arguments


FUNCTIONS = {"primal": Function(bound, listed), "gradient": Function(gradient, listed)}
