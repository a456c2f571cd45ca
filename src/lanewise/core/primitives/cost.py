"""Costs of equations that are not a fixed number of operations for each element, for the rows of their primitives.

Operations are those of a kernel, which has the plain algorithm; XLA's own may be better, as its products of all lanes
are (`Profile.product_together`).
"""

from __future__ import annotations

import math

from lanewise._jax import JaxprEqn
from lanewise.core.primitives.facts import (
    ASSUMED_TRIPS,
    INDEXED_OPERATIONS,
    Cost,
    bytes_written,
    cost_of,
    results_size,
    size_of,
)

# It must run only where a lane is: expensive enough never to run without a lane.
CALLBACK_OPERATIONS = 1e7
# Matrices of fewer rows are factorized as fast by a lane itself: a call of LAPACK takes longer than what it saves. (At
# 8 rows 0.1 to 0.34 µs, and 0.15 to 0.7 in XLA; at 32 rows 5 to 13 µs, and 2 to 18; at 64 rows 19 to 98, and 7 to 30.)
FEWEST_ROWS = 32
# A term of the sums of an `fft` over one of a matrix product: four products, each of which takes four times as long.
COMPLEX_TERM = 16.0


def of_cond(eqn: JaxprEqn) -> Cost:
    branches = [cost_of(branch.eqns) for branch in eqn.params["branches"]]
    return max(branches, key=lambda c: c.operations) + Cost(results_size(eqn), bytes_written(eqn))


def of_while(eqn: JaxprEqn) -> Cost:
    once = cost_of(eqn.params["body_jaxpr"].eqns) + cost_of(eqn.params["cond_jaxpr"].eqns)
    return once * ASSUMED_TRIPS


def of_scan(eqn: JaxprEqn) -> Cost:
    return cost_of(eqn.params["jaxpr"].eqns) * max(eqn.params["length"], 1)


def of_product(eqn: JaxprEqn) -> Cost:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return _product(eqn, math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted))


def of_ragged_product(eqn: JaxprEqn) -> Cost:
    return _product(eqn, eqn.invars[0].aval.shape[-1])


def of_convolution(eqn: JaxprEqn) -> Cost:
    kernel, features = eqn.invars[1], eqn.params["dimension_numbers"].rhs_spec[0]
    return _product(eqn, size_of(kernel) // max(kernel.aval.shape[features], 1))


def _product(eqn: JaxprEqn, depth: int) -> Cost:
    operations = 2.0 * results_size(eqn) * depth
    return Cost(operations, bytes_written(eqn), operations)


def of_factorization(eqn: JaxprEqn) -> Cost:
    shape = eqn.invars[0].aval.shape
    return _matrix_work(eqn, float(size_of(eqn.invars[0]) * shape[-1]), min(shape[-2:]))


def of_triangular_solve(eqn: JaxprEqn) -> Cost:
    """One column is no work for a library: a lane by itself takes a third of XLA's time at any size."""
    matrix, right = (atom.aval.shape for atom in eqn.invars)
    columns = right[-1 if eqn.params["left_side"] else -2]
    operations = float(size_of(eqn.invars[1]) * matrix[-1])
    return _matrix_work(eqn, operations, matrix[-1] if columns > 1 else 0)


def _matrix_work(eqn: JaxprEqn, operations: float, rows: int) -> Cost:
    return Cost(operations, bytes_written(eqn), operations if rows >= FEWEST_ROWS else 0.0)


def of_fft(eqn: JaxprEqn) -> Cost:
    """A kernel makes the sums themselves: as many terms for each element as an axis is long."""
    operations = 2.0 * COMPLEX_TERM * results_size(eqn) * sum(eqn.params["fft_lengths"])
    return Cost(operations, bytes_written(eqn), operations)


def of_sort(eqn: JaxprEqn) -> Cost:
    given = sum(map(size_of, eqn.invars))
    return Cost(4.0 * given * max(math.log2(max(given, 2)), 1.0), bytes_written(eqn))


def of_window(eqn: JaxprEqn) -> Cost:
    sizes = [size for size in map(size_of, (*eqn.invars, *eqn.outvars)) if size > 1]
    windows = min(sizes, default=1)
    return Cost(float(windows * math.prod(eqn.params["window_dimensions"])), bytes_written(eqn))


def of_lookup(eqn: JaxprEqn) -> Cost:
    return Cost(INDEXED_OPERATIONS / 2 + 2.0 * results_size(eqn), bytes_written(eqn))


def of_slice_update(eqn: JaxprEqn) -> Cost:
    return Cost(INDEXED_OPERATIONS + 4.0 * size_of(eqn.invars[1]))


def of_scatter(eqn: JaxprEqn) -> Cost:
    return Cost(INDEXED_OPERATIONS + 4.0 * size_of(eqn.invars[2]))


def of_accumulation(eqn: JaxprEqn) -> Cost:
    added = size_of(eqn.invars[1 if eqn.params["places"] else 0])
    at_index = INDEXED_OPERATIONS if len(eqn.invars) > 1 else 0.0
    return Cost(at_index, sums=float(added))


def of_callback(eqn: JaxprEqn) -> Cost:
    return Cost(CALLBACK_OPERATIONS, bytes_written(eqn))
