"""The logarithm of a sum of exponentials, by its two reductions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from gradbench.protocol import Function, listed


def log_sum_exp(x: Any) -> jax.Array:
    top = lw.arrays.reduce(jnp.maximum, x)
    return top + jnp.log(lw.arrays.reduce(jnp.add, jnp.exp(x - top)))


def points(given: Any) -> tuple[np.ndarray]:
    return (np.array(given["x"]),)


FUNCTIONS = {
    "primal": Function(lambda given: (log_sum_exp, points(given)), listed),
    "gradient": Function(lambda given: (jax.grad(log_sum_exp), points(given)), listed),
}
