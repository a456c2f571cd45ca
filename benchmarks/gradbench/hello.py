"""The square of a number, and its derivative."""

from __future__ import annotations

import jax
import numpy as np

import lanewise as lw
from gradbench.protocol import Function, listed


@lw.program
def square(x):
    return x * x


FUNCTIONS = {
    "square": Function(lambda given: (square, (np.float64(given),)), listed),
    "double": Function(lambda given: (jax.grad(square), (np.float64(given),)), listed),
}
