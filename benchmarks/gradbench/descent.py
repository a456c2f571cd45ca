"""Gradient descent as Pearlmutter and Siskind's two examples have it, with derivatives of either mode.

A step is taken if it lowers the function; ten good ones in turn double its length, a bad one halves it. It ends where
the gradient, or the step, is shorter than 1e-5 (GradBench's `gd.hpp` and `solver.fut` define it so).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import lanewise as lw

Scalar = Callable[[Any], Any]

# "f" and "r", as GradBench names the modes.
MODES: dict[str, Callable[[Scalar], Callable[[Any], Any]]] = {"f": jax.jacfwd, "r": jax.grad}
SHORT = 1e-5


def argmin(function: Scalar, mode: str) -> Callable[[Any], Any]:
    """From where to start to where `function` is least nearby."""
    gradient = MODES[mode](function)

    @lw.program
    def descend(x):
        value, slope = function(x), gradient(x)
        length, good, going = 1e-5, 0, True
        while going:
            if norm(slope) <= SHORT:
                going = False
            elif good == 10:
                length = 2.0 * length
                good = 0
            else:
                new = x - length * slope
                if norm(new - x) <= SHORT:
                    going = False
                else:
                    lower = function(new)
                    if lower < value:
                        x, value, slope = new, lower, gradient(new)
                        good += 1
                    else:
                        length = length / 2.0
                        good = 0
        return x

    return descend


def argmax(function: Scalar, mode: str) -> Callable[[Any], Any]:
    return argmin(lambda x: -function(x), mode)


def norm(x: Any) -> jax.Array:
    return jnp.sqrt(jnp.sum(x**2))
