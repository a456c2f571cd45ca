"""The saddle point of a quadratic: descent on the greatest value that another ascent finds.

The outer derivative passes through all of the inner ascent, an unbounded loop with gradients in it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from gradbench.descent import argmax, argmin
from gradbench.protocol import Function, listed


def height(p: Any, q: Any) -> jax.Array:
    return jnp.sum(p**2) - jnp.sum(q**2)


def variant(outer: str, inner: str) -> Function:
    @lw.program
    def solve(start):
        def greatest(p):
            return height(p, argmax(lambda q: height(p, q), inner)(start))

        least = argmin(greatest, outer)(start)
        most = argmax(lambda q: height(least, q), outer)(start)
        return jnp.concatenate([least, most])

    return Function(lambda given: (solve, (np.array(given["start"]),)), listed)


FUNCTIONS = {outer + inner: variant(outer, inner) for outer in "fr" for inner in "fr"}
