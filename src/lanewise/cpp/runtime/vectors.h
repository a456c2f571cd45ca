// A host's vectors: as wide as its registers, and products and sums of them.
//
// Loops that compilers make vector code of keep what they add to in memory, unless all of it is written out. So tiles of
// products hold their answers in variables of a vector type, which g++ and clang++ both have.
//
// `lw_fused` is one rounding for a product and a sum. Each compiler has its own word for that; where there is none, a
// loop over the elements becomes the one instruction. g++ does not make it one where it prefers vectors narrower than
// the registers, as it does for most of Intel's processors: products took ten times as long there.
//
// `lw_totals` sums each of as many vectors as a vector has elements. Halves of two vectors are added at a time and stay
// side by side, so that no step has less than a whole vector to do.
#pragma once
#include "kernel.h"
#include "numbers.h"

// -- lw_read --
#ifndef __CUDACC__
template <class V> static inline V lw_read(const void* from) {
  V read;
  memcpy(&read, from, sizeof(V));
  return read;
}
#endif
// -- lw_vectors --
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
#endif
// -- lw_fused --
#ifndef __CUDACC__
#ifdef __has_builtin
#define LW_HAS(name) __has_builtin(name)
#else
#define LW_HAS(name) 0
#endif
// a * b + c.
template <class T, class V> LW_INLINE V lw_fused(V a, V b, V c) {
#if defined(__clang__) && LW_HAS(__builtin_elementwise_fma) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
  return __builtin_elementwise_fma(a, b, c);
#elif !defined(__clang__) && defined(__AVX512F__)
  // All elements, rounded as the mode is.
  if constexpr (sizeof(T) == 4) return (V)__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
  else return (V)__builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#elif !defined(__clang__) && defined(__FMA__)
  if constexpr (sizeof(T) == 4) return (V)__builtin_ia32_vfmaddps256(a, b, c);
  else return (V)__builtin_ia32_vfmaddpd256(a, b, c);
#else
  const int wide = lw_vectors<T>::wide;
  T x[wide], y[wide], z[wide];
  memcpy(x, &a, sizeof(V));
  memcpy(y, &b, sizeof(V));
  memcpy(z, &c, sizeof(V));
  LW_IN_STEP
  for (int i = 0; i < wide; ++i) z[i] = lw_multiply_add(x[i], y[i], z[i]);
  memcpy(&c, z, sizeof(V));
  return c;
#endif
}
#endif
// -- lw_totals --
#ifndef __CUDACC__
template <int... i> struct lw_places {};
template <int n, int... i> struct lw_count : lw_count<n - 1, n - 1, i...> {};
template <int... i> struct lw_count<0, i...> {
  typedef lw_places<i...> type;
};
template <class T> struct lw_index {
  typedef int type;
};
template <> struct lw_index<float64> {
  typedef long long type;
};
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
#endif
// -- lw_dots --
// Sums of products of `size` elements, several at a time: each in parts that vectors hold, which are then summed in
// pairs.
#ifndef __CUDACC__
template <int count, int size, class T> LW_FUNCTION void lw_dots(const T* const* a, const T* const* b, T* totals) {
  typedef T v16 __attribute__((vector_size(16 * sizeof(T))));
  typedef T v8 __attribute__((vector_size(8 * sizeof(T))));
  typedef T v4 __attribute__((vector_size(4 * sizeof(T))));
  v16 sixteens[count];
  LW_UNROLL
  for (int n = 0; n < count; ++n) sixteens[n] = v16{};
  for (int k = 0; k + 16 <= size; k += 16) {
    LW_UNROLL
    for (int n = 0; n < count; ++n) sixteens[n] += lw_read<v16>(a[n] + k) * lw_read<v16>(b[n] + k);
  }
  LW_UNROLL
  for (int n = 0; n < count; ++n) {
    int k = size - size % 16;
    const T* parts = (const T*)&sixteens[n];
    v8 eight = lw_read<v8>(parts) + lw_read<v8>(parts + 8);
    if (size % 16 >= 8) eight += lw_read<v8>(a[n] + k) * lw_read<v8>(b[n] + k), k += 8;
    parts = (const T*)&eight;
    v4 four = lw_read<v4>(parts) + lw_read<v4>(parts + 4);
    if (size % 8 >= 4) four += lw_read<v4>(a[n] + k) * lw_read<v4>(b[n] + k), k += 4;
    T total = (four[0] + four[1]) + (four[2] + four[3]);
    for (; k < size; ++k) total = lw_multiply_add(a[n][k], b[n][k], total);
    totals[n] += total;
  }
}
#endif
// -- lw_sum_of_parts --
#ifdef __CUDACC__
template <class T> LW_FUNCTION T lw_sum_of_parts(T part) {
  for (int apart = 16; apart; apart /= 2) part += __shfl_xor_sync(0xffffffffu, part, apart);
  return part;
}
#endif
