"""A determinant by expansion along rows: recursion over the columns that are left.

The columns that are left are bits of an integer, and the loop goes from one to the next: a step for each minor, and
none for a column that is taken.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import one_lane
from gradbench.protocol import Function, flat, listed


@lw.program
def minor(matrix, row, left):
    """The determinant of the rows from `row` on, of the columns whose bits are set in `left`."""
    if left & (left - 1) == 0:
        return matrix[row, lax.population_count(left - 1)]
    total = jnp.zeros((), matrix.dtype)
    sign = jnp.ones((), matrix.dtype)
    rest = left
    while rest != 0:
        bit = rest & -rest
        entry = matrix[row, lax.population_count(bit - 1)]
        total = total + sign * entry * minor(matrix, row + 1, left ^ bit)
        sign = -sign
        rest = rest ^ bit
    return total


def records(size: int) -> int:
    """What the tape of an expansion must hold: a record for each call and for each turn of a loop, which makes a call.

    >>> records(3)
    19
    """
    calls = 1
    for columns in range(2, size + 1):
        calls = 1 + columns * calls
    return 2 * calls - 1


def determinant(size: int) -> Any:
    expand = minor.with_options(carrier=one_lane(), tape=records(size))
    return lambda matrix: expand(matrix, 0, (1 << size) - 1)


def arguments(given: Any) -> tuple[np.ndarray]:
    return (np.array(given["A"]).reshape(given["ell"], given["ell"]),)


FUNCTIONS = {
    "primal": Function(lambda given: (determinant(given["ell"]), arguments(given)), listed),
    "gradient": Function(
        lambda given: (jax.grad(determinant(given["ell"])), arguments(given)), flat
    ),
}
