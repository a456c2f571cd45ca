"""A host's vectors: as wide as its registers, and products and sums of them.

Loops that compilers make vector code of keep what they add to in memory, unless all of it is written out. So tiles of
products hold their answers in variables of a vector type, which g++ and clang++ both have.

`lw_fused` is one rounding for a product and a sum, which neither has a word for that works on vectors of any width: a
loop over the elements becomes the one instruction. `lw_totals` sums each of as many vectors as a vector has elements.
Halves of two vectors are added at a time and stay side by side, so that no step has less than a whole vector to do.
"""

from __future__ import annotations

from lanewise.cpp.emit.rules import helpers

helpers(
    {
        "lw_vectors": r"""
#ifndef __CUDACC__
#if defined(__AVX512F__)
#define LW_WIDE 64
#elif defined(__AVX__)
#define LW_WIDE 32
#else
#define LW_WIDE 16
#endif
// How many vectors of answers there are room for beside each other, with six rows of them, and rows with two of them.
#if defined(__AVX512F__) || defined(__aarch64__)
#define LW_BESIDE 4
#define LW_TALL 8
#else
#define LW_BESIDE 2
#define LW_TALL 4
#endif
#define LW_INLINE static inline __attribute__((always_inline))
template <class T> struct lw_vectors {
  static const int wide = LW_WIDE / sizeof(T);
  typedef T type __attribute__((vector_size(LW_WIDE)));
};
#endif""",
        "lw_fused": r"""
#ifndef __CUDACC__
// a * b + c. What is written as a loop over elements is an instruction.
template <class T, class V> LW_INLINE V lw_fused(V a, V b, V c) {
  const int wide = lw_vectors<T>::wide;
  T x[wide], y[wide], z[wide];
  memcpy(x, &a, sizeof(V));
  memcpy(y, &b, sizeof(V));
  memcpy(z, &c, sizeof(V));
  LW_IN_STEP
  for (int i = 0; i < wide; ++i) z[i] = lw_multiply_add(x[i], y[i], z[i]);
  memcpy(&c, z, sizeof(V));
  return c;
}
#endif""",
        "lw_totals": r"""
#ifndef __CUDACC__
template <int... i> struct lw_places {};
template <int n, int... i> struct lw_count : lw_count<n - 1, n - 1, i...> {};
template <int... i> struct lw_count<0, i...> { typedef lw_places<i...> type; };
template <class T> struct lw_index { typedef int type; };
template <> struct lw_index<float64> { typedef long long type; };
template <class T, class V, int... i> LW_INLINE V lw_shuffled(V a, V b, lw_places<i...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, i...);
#else
  typedef typename lw_index<T>::type I __attribute__((vector_size(sizeof(V))));
  return __builtin_shuffle(a, b, I{i...});
#endif
}
// Blocks of `2 * half` elements, of which the halves are added.
template <class T, int half, class V, int... i> LW_INLINE V lw_halves(V a, V b, lw_places<i...>) {
  return lw_shuffled<T>(a, b, lw_places<(i / half * 2 * half + i % half)...>()) +
         lw_shuffled<T>(a, b, lw_places<(i / half * 2 * half + half + i % half)...>());
}
// The sums of the elements of `count` vectors, in order: each in `wide / count` parts.
template <class T, int count, class V> LW_INLINE V lw_totals(const V* vectors) {
  const int wide = lw_vectors<T>::wide;
  if constexpr (count == 1) return vectors[0];
  else
    return lw_halves<T, wide / count>(lw_totals<T, count / 2>(vectors), lw_totals<T, count / 2>(vectors + count / 2),
                                      typename lw_count<wide>::type());
}
#endif""",
    }
)
