// Rows by a matrix, or by its transpose, on a host (`rules/rows.py`).
#pragma once
#include "kernel.h"
#include "vectors.h"
#include "meeting.h"

// A part of the answer of this many columns stays near while all terms are added to it.
#define LW_NEAR_COLUMNS 512
// With fewer rows, a matrix that is not near is best read in its order.
#define LW_TILED_ROWS 4

// -- lw_terms --
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
  // clang-format off
  LW_ROW(0) LW_ROW(1) LW_ROW(2) LW_ROW(3)
  LW_IN_STEP
  for (int i = 0; i < count; ++i) { LW_ADD(0) LW_ADD(1) LW_ADD(2) LW_ADD(3) }
  // clang-format on
}
#endif
// -- lw_terms_of --
#ifndef __CUDACC__
template <int terms, class T>
static inline __attribute__((always_inline)) void lw_terms_of(int rows, const T* const* left, T* const* answer,
                                                              const T* right, int stride, int count) {
  if (rows == 4) lw_terms<4, terms>(left, answer, right, stride, count);
  else if (rows == 3) lw_terms<3, terms>(left, answer, right, stride, count);
  else if (rows == 2) lw_terms<2, terms>(left, answer, right, stride, count);
  else lw_terms<1, terms>(left, answer, right, stride, count);
}
#endif
// -- lw_rows_by_terms --
#ifndef __CUDACC__
template <class T>
static void lw_rows_by_terms(const T* const* left, T* const* answer, int rows, const T* right, int terms, int columns) {
  for (int first = 0; first < columns; first += LW_NEAR_COLUMNS) {
    const int count = columns - first < LW_NEAR_COLUMNS ? columns - first : LW_NEAR_COLUMNS;
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
#endif
// -- lw_rows_tile --
#ifndef __CUDACC__
// A tile of answers: `rows` by `beside` vectors from column `at` on.
template <int beside, int rows, class T>
LW_INLINE void lw_rows_tile(const T* const* left, T* const* answer, const T* right, int terms, int columns, int at) {
  typedef typename lw_vectors<T>::type V;
  const int wide = lw_vectors<T>::wide;
  V sums[rows * beside] = {};
  for (int k = 0; k < terms; ++k) {
    V read[beside];
    LW_UNROLL
    for (int c = 0; c < beside; ++c) read[c] = lw_read<V>(right + (long long)k * columns + at + c * wide);
    LW_UNROLL
    for (int r = 0; r < rows; ++r) {
      const V factor = left[r][k] - V{};
      LW_UNROLL
      for (int c = 0; c < beside; ++c) sums[r * beside + c] = lw_fused<T>(factor, read[c], sums[r * beside + c]);
    }
  }
  LW_UNROLL
  for (int r = 0; r < rows; ++r) {
    LW_UNROLL
    for (int c = 0; c < beside; ++c) memcpy(answer[r] + at + c * wide, &sums[r * beside + c], sizeof(V));
  }
}
#endif
// -- lw_rows --
#ifndef __CUDACC__
// Rows in groups of up to six, which are as equal as can be.
template <int beside, class T>
LW_INLINE void lw_rows_at(const T* const* left, T* const* answer, int rows, const T* right, int terms, int columns,
                          int at) {
  for (int r = 0, groups = (rows + 5) / 6; groups; --groups) {
    const int some = (rows - r) / groups;
    if (some == 6) lw_rows_tile<beside, 6>(left + r, answer + r, right, terms, columns, at);
    else if (some == 5) lw_rows_tile<beside, 5>(left + r, answer + r, right, terms, columns, at);
    else if (some == 4) lw_rows_tile<beside, 4>(left + r, answer + r, right, terms, columns, at);
    else if (some == 3) lw_rows_tile<beside, 3>(left + r, answer + r, right, terms, columns, at);
    else if (some == 2) lw_rows_tile<beside, 2>(left + r, answer + r, right, terms, columns, at);
    else lw_rows_tile<beside, 1>(left + r, answer + r, right, terms, columns, at);
    r += some;
  }
}
template <class T>
LW_CALLED lw_rows(const void* const* rows_of, void* const* answers, int rows, const void* matrix, int terms,
                  int columns) {
  const T *const *left = (const T* const*)rows_of, *right = (const T*)matrix;
  T* const* answer = (T* const*)answers;
  const int wide = lw_vectors<T>::wide;
  const bool few = rows < LW_TILED_ROWS && (long long)terms * columns * (int)sizeof(T) > LW_LARGE_BYTES;
  if (few || columns < wide) return lw_rows_by_terms(left, answer, rows, right, terms, columns);
  for (int at = 0; at < columns;) {
    const int more = (columns - at) / wide;
    if (more >= LW_BESIDE) {
      lw_rows_at<LW_BESIDE>(left, answer, rows, right, terms, columns, at);
      at += LW_BESIDE * wide;
    } else if (more >= 2) {
      lw_rows_at<2>(left, answer, rows, right, terms, columns, at);
      at += 2 * wide;
    } else {
      // The last vector has some answers again, which are the same.
      if (!more) at = columns - wide;
      lw_rows_at<1>(left, answer, rows, right, terms, columns, at);
      at += wide;
    }
  }
}
#endif
// -- lw_turned_tile --
#ifndef __CUDACC__
// A tile of answers, `rows` by as many columns as make a vector in all, of which `count` are wanted.
template <int rows, class T>
LW_INLINE void lw_turned_tile(const T* const* left, T* const* answer, const T* right, int terms, int count) {
  typedef typename lw_vectors<T>::type V;
  typedef typename lw_index<T>::type I __attribute__((vector_size(sizeof(V))));
  const int wide = lw_vectors<T>::wide, columns = wide / rows;
  V sums[wide] = {};
  const T* from[columns];
  for (int c = 0; c < columns; ++c) from[c] = right + (c < count ? c : count - 1) * (long long)terms;
  I kept = ~I{};
  for (int k = 0; k < terms; k += wide) {
    // The last terms are read together with some before them, which count for nothing.
    int at = k;
    if (k + wide > terms) {
      at = terms - wide;
      for (int i = 0; i < wide; ++i) kept[i] = at + i < k ? 0 : -1;
    }
    V row[rows];
    LW_UNROLL
    for (int r = 0; r < rows; ++r) row[r] = (V)((I)lw_read<V>(left[r] + at) & kept);
    LW_UNROLL
    for (int c = 0; c < columns; ++c) {
      const V read = (V)((I)lw_read<V>(from[c] + at) & kept);
      LW_UNROLL
      for (int r = 0; r < rows; ++r) sums[r * columns + c] = lw_fused<T>(row[r], read, sums[r * columns + c]);
    }
  }
  const V totals = lw_totals<T, wide>(sums);
  for (int r = 0; r < rows; ++r) {
    if (count >= columns) memcpy(answer[r], (const T*)&totals + r * columns, columns * sizeof(T));
    else memcpy(answer[r], (const T*)&totals + r * columns, count * sizeof(T));
  }
}
#endif
// -- lw_turned_rows --
#ifndef __CUDACC__
template <int rows, class T>
LW_INLINE void lw_turned_at(const T* const* left, T* const* answer, const T* right, int terms, int at, int count) {
  const int columns = lw_vectors<T>::wide / rows;
  T* to[rows];
  for (int i = 0; i < count; i += columns) {
    for (int r = 0; r < rows; ++r) to[r] = answer[r] + at + i;
    lw_turned_tile<rows>(left, to, right + (long long)(at + i) * terms, terms, count - i);
  }
}
// Rows by the transpose of a matrix of at least a vector's terms, a few of whose rows stay near for all of them.
template <class T>
LW_CALLED lw_turned_rows(const void* const* rows_of, void* const* answers, int rows, const void* matrix, int terms,
                         int columns) {
  const T *const *left = (const T* const*)rows_of, *right = (const T*)matrix;
  T* const* answer = (T* const*)answers;
  const int wide = lw_vectors<T>::wide, most = wide >= 8 ? 4 : 2;
  for (int at = 0; at < columns; at += wide) {
    const int count = columns - at < wide ? columns - at : wide;
    int r = 0;
    for (; r + most <= rows; r += most) lw_turned_at<most>(left + r, answer + r, right, terms, at, count);
    for (; r + 2 <= rows; r += 2) lw_turned_at<2>(left + r, answer + r, right, terms, at, count);
    if (r < rows) lw_turned_at<1>(left + r, answer + r, right, terms, at, count);
  }
}
#endif
// -- lw_by_matrix --
#ifndef __CUDACC__
// A lane's rows by a matrix, or by its transpose (`turned`): at once, or when others want it too.
template <bool turned, class T, int rows, int terms, int columns>
static inline void lw_by_matrix(const T* left, const T* right, T* answer) {
  void (*const multiply)(const void* const*, void* const*, int, const void*, int, int) =
      turned ? lw_turned_rows<T> : lw_rows<T>;
#ifdef LW_MEETS
  if (rows <= LW_MANY_ROWS && terms * columns * sizeof(T) >= LW_LARGE_BYTES && lw_meets(right)) {
    const int from = terms * sizeof(T), to = columns * sizeof(T);
    return lw_meet({multiply, right, (const char*)left, (char*)answer, rows, from, to, terms, columns});
  }
#endif
  const void* from[rows];
  void* to[rows];
  for (int r = 0; r < rows; ++r) from[r] = left + r * terms, to[r] = answer + r * columns;
  multiply(from, to, rows, right, terms, columns);
}
#endif
