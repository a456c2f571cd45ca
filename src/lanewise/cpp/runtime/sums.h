// Sums that all lanes add to (`rules/sums.py`).
#pragma once
#include "kernel.h"
#include "vectors.h"

// -- lw_sum --
// The type of a sum that all lanes add to. A long sum of float32 would lose much: a host holds it in float64.
template <class T> struct lw_sum {
  typedef T type;
};
#ifndef __CUDACC__
template <> struct lw_sum<float32> {
  typedef float64 type;
};
#endif
// -- lw_add_to_sum --
// Add to a sum that all lanes add to. A thread of a host has one of its own, which joins the others' in the end.
template <class S, class T> LW_FUNCTION void lw_add_to_sum(S& sum, T more) {
  LW_PLATFORM(atomicAdd(&sum, more), sum += more);
}
// -- lw_add_products --
#ifndef __CUDACC__
// Add `count` outer products to a part of a sum, `LW_TALL` rows by `beside` vectors, which registers hold.
template <int beside, class T, class S>
LW_INLINE void lw_add_products_at(S* sum, const T* a, const T* b, int count, int m, int n, int stride, int high,
                                  int wide) {
  typedef typename lw_vectors<T>::type V;
  const int size = lw_vectors<T>::wide;
  V totals[LW_TALL * beside] = {};
  for (int row = 0; row < count; ++row) {
    V read[beside];
    LW_UNROLL
    for (int c = 0; c < beside; ++c) read[c] = lw_read<V>(b + row * wide + c * size);
    LW_UNROLL
    for (int k = 0; k < LW_TALL; ++k) {
      const V factor = a[row * high + k] - V{};
      LW_UNROLL
      for (int c = 0; c < beside; ++c) totals[k * beside + c] = lw_fused<T>(factor, read[c], totals[k * beside + c]);
    }
  }
  T all[LW_TALL][beside * size];
  memcpy(all, totals, sizeof(all));
  const int here = m < LW_TALL ? m : LW_TALL, there = n < beside * size ? n : beside * size;
  for (int k = 0; k < here; ++k) {
    S* to = sum + (long long)k * stride;
    if (there == beside * size)
      for (int l = 0; l < beside * size; ++l) to[l] += (S)all[k][l];
    else
      for (int l = 0; l < there; ++l) to[l] += (S)all[k][l];
  }
}
template <class T, class S>
LW_CALLED lw_add_products(S* sum, const T* a, const T* b, int count, int m, int n, int high, int wide) {
  const int size = lw_vectors<T>::wide;
  // A few rows of the sum at a time, in the order of memory.
  for (int i = 0; i < m; i += LW_TALL) {
    for (int j = 0; j < n; j += 2 * size) {
      S* const to = sum + (long long)i * n + j;
      if (n - j > size) lw_add_products_at<2>(to, a + i, b + j, count, m - i, n - j, n, high, wide);
      else lw_add_products_at<1>(to, a + i, b + j, count, m - i, n - j, n, high, wide);
    }
  }
}
#endif
// -- lw_outer_rows --
#ifndef __CUDACC__
// Pairs of vectors whose outer products are to be added to a sum, which they follow in memory. A large sum is read and
// written again for each `most` of them: they may take as much memory as it does, while they stay near.
template <class T, int m, int n> struct lw_outer_rows {
  static const long long balanced = (long long)m * n / (m + n);
  static const int most = balanced < 32 ? 32 : balanced > 128 ? 128 : (int)balanced;
  static const int high = (m + 7) / 8 * 8, wide = (n + 31) / 32 * 32;
  long long count;
  T a[most][high], b[most][wide];
};
template <class T, int m, int n, class S> static void lw_flush_outer(S* sum) {
  typedef lw_outer_rows<T, m, n> rows_type;
  rows_type* rows = (rows_type*)(sum + (long long)m * n);
  lw_add_products(sum, rows->a[0], rows->b[0], (int)rows->count, m, n, rows_type::high, rows_type::wide);
  rows->count = 0;
}
#endif
// -- lw_add_outer -- Add the outer product of two vectors to a sum that all lanes add to.
template <class T, int m, int n, class S, class A, class B> LW_FUNCTION void lw_add_outer(S* sum, A a, B b) {
#ifdef __CUDACC__
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) lw_add_to_sum(sum[(long long)i * n + j], T(a(i) * b(j)));
  }
#else
  lw_outer_rows<T, m, n>* rows = (lw_outer_rows<T, m, n>*)(sum + (long long)m * n);
  const long long row = rows->count;
  for (int i = 0; i < m; ++i) rows->a[row][i] = a(i);
  for (int j = 0; j < n; ++j) rows->b[row][j] = b(j);
  rows->count = row + 1;
  if (rows->count == rows->most) lw_flush_outer<T, m, n>(sum);
#endif
}
