"""A determinant by expansion along rows: recursion over the columns that are left."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from ad.case import one_lane
from gradbench.protocol import Function, flat, listed


@lw.program
def minor(matrix, row, taken):
    """The determinant of the rows from `row` on, without the columns whose bits are set in `taken`."""
    total = jnp.zeros((), matrix.dtype)
    if row == matrix.shape[0]:
        return total + 1.0
    sign = jnp.ones((), matrix.dtype)
    column = 0
    while column < matrix.shape[0]:
        bit = 1 << column
        if taken & bit == 0:
            total = total + sign * matrix[row, column] * minor(matrix, row + 1, taken | bit)
            sign = -sign
        column += 1
    return total


def calls(size: int) -> int:
    """How many calls an expansion makes, which is what a tape of them must hold.

    >>> calls(3)
    16
    """
    return 1 + size * calls(size - 1) if size else 1


def determinant(size: int) -> Any:
    expand = minor.with_options(carrier=one_lane(), tape=calls(size))
    return lambda matrix: expand(matrix, 0, 0)


def arguments(given: Any) -> tuple[np.ndarray]:
    return (np.array(given["A"]).reshape(given["ell"], given["ell"]),)


FUNCTIONS = {
    "primal": Function(lambda given: (determinant(given["ell"]), arguments(given)), listed),
    "gradient": Function(
        lambda given: (jax.grad(determinant(given["ell"])), arguments(given)), flat
    ),
}
