"""How large an equation may be in a kernel, and in XLA:CPU's one-function code.

A kernel has the plain algorithms: the sums of an `fft` themselves, factorizations and convolutions as loops. Past some
size those take so much longer than a library that no saving elsewhere makes up for it, and the carrier refuses.
Measured for one lane of many on one core, with XLA's time by `jax.vmap` in brackets:

* `fft` of 64 numbers 4.6 µs (0.09), of 128 21 (0.2), of 256 108 (0.5), of 1024 5 ms (2 µs).
* `cholesky` of 128 rows 125 µs (29), of 256 1,560 (213); `lu` 85 (46) and 700 (280); `qr` of 128 284 (130);
  `triangular_solve` with as many columns as rows 475 (37) and 11,300 (280), with one column 65 (150) and 150 (440).
* a convolution by windows of 3 by 3 of 64 features, 8 by 8 places, 1,450 µs (114); of 32 features, 16 by 16, 1,040
  (73); of 16 features, 32 by 32, 1,030 (164). With sums of few terms ours keeps up as sizes grow: 8 features, 64 by
  64, 1,180 (960); 4 features, 128 by 128, 730 (1,960).

A sort has no such size: ours merges runs, and takes a quarter to two thirds of XLA's time from 8 to 65,536 numbers.
"""

from __future__ import annotations

import math

from lanewise._jax import JaxprEqn
from lanewise.core.primitives.facts import eqn_cost, size_of

MOST_OF_FFT = 128
MOST_ROWS = 128
MOST_MULTIPLICATIONS, FEW_TERMS = 1 << 20, 128
# XLA:CPU hands float reductions over more elements than this to a library, which its one-function code cannot call.
MOST_REDUCED = 1024


def fft(eqn: JaxprEqn) -> str | None:
    longest = max(eqn.params["fft_lengths"], default=0)
    if longest <= MOST_OF_FFT:
        return None
    return f"a kernel makes the {longest:,} sums themselves, and does so for at most {MOST_OF_FFT} of them"


def factorization(eqn: JaxprEqn) -> str | None:
    rows = min(eqn.invars[0].aval.shape[-2:])
    if rows <= MOST_ROWS:
        return None
    return f"a kernel factorizes at most {MOST_ROWS} rows, by plain loops, and these are {rows:,}"


def triangular_solve(eqn: JaxprEqn) -> str | None:
    rows, right = eqn.invars[0].aval.shape[-1], eqn.invars[1].aval.shape
    columns = right[-1 if eqn.params["left_side"] else -2]
    if rows <= MOST_ROWS or columns == 1:
        return None
    return f"a kernel solves for several columns with at most {MOST_ROWS} rows, by plain loops, and these are {rows:,}"


def convolution(eqn: JaxprEqn) -> str | None:
    multiplications = int(eqn_cost(eqn).products / 2)
    terms = multiplications // max(size_of(eqn.outvars[0]), 1)
    if terms <= FEW_TERMS or multiplications <= MOST_MULTIPLICATIONS:
        return None
    return (
        f"a kernel convolves by plain loops, with at most {MOST_MULTIPLICATIONS:,} multiplications for sums of more"
        f" than {FEW_TERMS} terms, and these are {multiplications:,} for sums of {terms:,}"
    )


# -- in XLA:CPU's one-function code --------------------------------------------------------------------


def _most_elements(eqn: JaxprEqn) -> int:
    return max(map(size_of, eqn.invars))


def is_reduced_in_code(eqn: JaxprEqn) -> bool:
    return _most_elements(eqn) <= MOST_REDUCED


def is_product_in_code(eqn: JaxprEqn) -> bool:
    """Unless both sides of a product have rows of their own: XLA calls a library for that."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    free = [
        eqn.invars[0].aval.ndim - len(left) - len(left_batch),
        eqn.invars[1].aval.ndim - len(right) - len(right_batch),
    ]
    return not all(free) and _most_elements(eqn) <= MOST_REDUCED**2 // 16


def is_scattered_in_code(eqn: JaxprEqn) -> bool:
    """One update at most."""
    *places, _ = eqn.invars[1].aval.shape or (1,)
    return math.prod(places) <= 1
