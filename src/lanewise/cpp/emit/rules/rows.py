"""Rows by one matrix, for a host: the form of a product whose matrix lies in memory row by row.

Each term is added to all of a row's answer. Four terms go at a time, so that the answer is read and written less often,
and four rows, which share what is read of the matrix. Every answer is the sum of its terms in their order, each added
with one rounding: it does not depend on which rows are beside it.

On a core that reads 100 GB/s (weights of 128 by 128 to 512, 2.4 MB in all) a row alone takes 23 µs, one of four 8, one
of sixteen 7.6: 158 GFLOP/s, where XLA's library has 128 for 16 rows and 191 for 64. What was not tried: tiles of
answers that stay in registers over all terms, as libraries have them, which want the matrix in another order.
"""

from __future__ import annotations

import math

from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.meeting import LARGE_BYTES, MANY_ROWS
from lanewise.cpp.emit.rules import helpers
from lanewise.cpp.emit.values import Part, Place, Stored, Value
from lanewise.cpp.emit.writer import Writer

# A part of the answer of this many columns stays near while all terms are added to it.
NEAR_COLUMNS = 512

helpers(
    {
        "lw_terms": r"""
#ifndef __CUDACC__
#define LW_ROW(r) \
  const T* const row##r = left[r < rows ? r : 0]; \
  T* const sum##r = answer[r < rows ? r : 0]; \
  const T f##r##0 = row##r[0], f##r##1 = terms > 1 ? row##r[1] : T(0), f##r##2 = terms > 1 ? row##r[2] : T(0), \
          f##r##3 = terms > 1 ? row##r[3] : T(0);
#define LW_ADD(r) \
  if (r < rows) { \
    T total = lw_multiply_add(f##r##0, right0[i], sum##r[i]); \
    if (terms > 1) \
      total = lw_multiply_add(f##r##3, right3[i], \
                              lw_multiply_add(f##r##2, right2[i], lw_multiply_add(f##r##1, right1[i], total))); \
    sum##r[i] = total; \
  }
template <int rows, int terms, class T>
static inline __attribute__((always_inline)) void lw_terms(const T* const* left, T* const* answer, const T* right0,
                                                           int stride, int count) {
  const T *right1 = right0 + stride, *right2 = right1 + stride, *right3 = right2 + stride;
  LW_ROW(0) LW_ROW(1) LW_ROW(2) LW_ROW(3)
  LW_IN_STEP
  for (int i = 0; i < count; ++i) { LW_ADD(0) LW_ADD(1) LW_ADD(2) LW_ADD(3) }
}
#endif""",
        "lw_terms_of": r"""
#ifndef __CUDACC__
template <int terms, class T>
static inline __attribute__((always_inline)) void lw_terms_of(int rows, const T* const* left, T* const* answer,
                                                              const T* right, int stride, int count) {
  if (rows == 4) lw_terms<4, terms>(left, answer, right, stride, count);
  else if (rows == 3) lw_terms<3, terms>(left, answer, right, stride, count);
  else if (rows == 2) lw_terms<2, terms>(left, answer, right, stride, count);
  else lw_terms<1, terms>(left, answer, right, stride, count);
}
#endif""",
        "lw_rows": r"""
#ifndef __CUDACC__
template <class T, int terms, int columns>
LW_CALLED lw_rows(const T* const* left, T* const* answer, int rows, const T* right) {
  for (int first = 0; first < columns; first += NEAR) {
    const int count = columns - first < NEAR ? columns - first : NEAR;
    for (int r = 0; r < rows; ++r) memset(answer[r] + first, 0, count * sizeof(T));
    for (int k = 0; k < terms; k += k + 4 <= terms ? 4 : 1) {
      for (int r = 0; r < rows; r += 4) {
        const int some = rows - r < 4 ? rows - r : 4;
        const T* from[4];
        T* to[4];
        for (int i = 0; i < some; ++i) from[i] = left[r + i] + k, to[i] = answer[r + i] + first;
        const T* const at = right + (long long)k * columns + first;
        if (k + 4 <= terms) lw_terms_of<4>(some, from, to, at, columns, count);
        else lw_terms_of<1>(some, from, to, at, columns, count);
      }
    }
  }
}
#endif""".replace("NEAR", str(NEAR_COLUMNS)),
        "lw_by_matrix": r"""
#ifndef __CUDACC__
template <class T, int terms, int columns>
static void lw_rows_of(const void* const* left, void* const* answer, int rows, const void* right) {
  lw_rows<T, terms, columns>((const T* const*)left, (T* const*)answer, rows, (const T*)right);
}
// A lane's rows by a matrix: at once, or when others want it as well.
template <class T, int rows, int terms, int columns>
static inline void lw_by_matrix(const T* left, const T* right, T* answer) {
#ifdef LW_MEETS
  if (rows <= MOST_ROWS && terms * columns * sizeof(T) >= LARGE && lw_meets(right)) {
    const int from = terms * sizeof(T), to = columns * sizeof(T);
    return lw_meet({lw_rows_of<T, terms, columns>, right, (const char*)left, (char*)answer, rows, from, to});
  }
#endif
  const T* from[rows];
  T* to[rows];
  for (int r = 0; r < rows; ++r) from[r] = left + r * terms, to[r] = answer + r * columns;
  lw_rows<T, terms, columns>(from, to, rows, right);
}
#endif""".replace("MOST_ROWS", str(MANY_ROWS)).replace("LARGE", str(LARGE_BYTES)),
    }
)


def in_one_piece(value: Value) -> bool:
    """Whether a value lies in memory as it is."""
    return isinstance(value, Stored | Part)


def write_rows(w: Writer, left: Value, right: Value, room: Place) -> None:
    """The product of `left` [..., terms] and `right` [terms, columns], which lies in memory, for the host alone."""
    terms, columns = right.shape
    rows = math.prod(left.shape) // terms
    given = left if in_one_piece(left) else w.named(left)
    kind = dtypes.ctype(room.dtype)
    addresses = ", ".join(f"&{value.flat(0)}" for value in (given, right, room))
    w.line(f"lw_by_matrix<{kind}, {rows}, {terms}, {columns}>({addresses});")
