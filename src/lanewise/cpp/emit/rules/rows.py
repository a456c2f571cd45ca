"""Rows by one matrix, for a host: the form of a product whose matrix is stored row by row.

Each answer is the sum of its terms in their order, each added with one rounding: it does not depend on which rows are
beside it, nor on which of two ways it is made. A tile of answers, six rows by a few vectors, stays in registers over
all terms; with fewer rows than that pays for, each term is added to all of a row's answer, four terms at a time, so
that the matrix is read in the order it has in memory and the answer less often.

On a core (AVX-512) that reads 100 GB/s, one row by weights of 768 by 256 has 77 GFLOP/s, two have 124; four have
195 as a tile and 165 term by term, sixteen 252 and 178. What was not tried: the matrix in another order, as libraries
have it.

Rows by the *transpose* of a matrix that is stored row by row (a cotangent by the weights) are sums along its rows. A
tile has as many answers as a vector has elements: four rows by four for vectors of sixteen. Each is summed in as many
parts, and all parts of a tile are added together in the end: 245 GFLOP/s for four rows or more, 70 for one. What is
called here is in `cpp/runtime/products.h`.
"""

from __future__ import annotations

import math

from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.values import Part, Place, Stored, Value
from lanewise.cpp.emit.writer import Writer


def in_one_piece(value: Value) -> bool:
    """Whether a value is in memory as it is."""
    return isinstance(value, Stored | Part)


def write_rows(w: Writer, left: Value, right: Value, room: Place, *, turned: bool = False) -> None:
    """The product of `left` [..., terms] and `right` [terms, columns], which is in memory, for the host alone.

    If it is `turned`, `right` is [columns, terms].
    """
    columns, terms = right.shape if turned else right.shape[::-1]
    rows = math.prod(left.shape) // terms
    given = left if in_one_piece(left) else w.named(left)
    kind = dtypes.ctype(room.dtype)
    addresses = ", ".join(f"&{value.flat(0)}" for value in (given, right, room))
    shape = f"{'true' if turned else 'false'}, {kind}, {rows}, {terms}, {columns}"
    w.line(f"lw_by_matrix<{shape}>({addresses});")
