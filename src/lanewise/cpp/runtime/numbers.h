// Arithmetic with XLA's meaning of what C++ leaves undefined.
#pragma once
#include "kernel.h"
#include "bits.h"

// -- lw_unsigned -- The type integer arithmetic wraps in.
template <class T> struct lw_unsigned {
  typedef uint32 type;
};
template <> struct lw_unsigned<int64> {
  typedef uint64 type;
};
template <> struct lw_unsigned<uint64> {
  typedef uint64 type;
};
// -- lw_lowest -- The least value of an integer type.
template <class T> LW_FUNCTION T lw_lowest() { return T(-1) < T(0) ? T(T(1) << (8 * sizeof(T) - 1)) : T(0); }
// -- lw_add --
template <class T> LW_FUNCTION T lw_add(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) + U(b));
}
// -- lw_sub --
template <class T> LW_FUNCTION T lw_sub(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) - U(b));
}
// -- lw_mul --
template <class T> LW_FUNCTION T lw_mul(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) * U(b));
}
// -- lw_neg --
template <class T> LW_FUNCTION T lw_neg(T a) { return lw_sub(T(0), a); }
// -- lw_abs_int --
template <class T> LW_FUNCTION T lw_abs_int(T a) { return a < T(0) ? lw_sub(T(0), a) : a; }
// -- lw_div -- Integers: by zero gives all ones; the least number by -1 wraps.
template <class T> LW_FUNCTION T lw_div(T a, T b) {
  if (b == T(0)) return T(-1);
  if (T(-1) < T(0) && b == T(-1)) return lw_sub(T(0), a);
  return T(a / b);
}
// -- lw_rem --
template <class T> LW_FUNCTION T lw_rem(T a, T b) {
  if (b == T(0)) return a;
  if (T(-1) < T(0) && b == T(-1)) return T(0);
  return T(a % b);
}
// -- lw_div_power -- By a power of two: a negative number is rounded towards zero.
template <int log, class T> LW_FUNCTION T lw_div_power(T a) {
  const T below = a >> (8 * sizeof(T) - 1) & T((T(1) << log) - 1);
  return lw_add(a, below) >> log;
}
// -- lw_rem_power --
template <int log, class T> LW_FUNCTION T lw_rem_power(T a) {
  return lw_sub(a, lw_mul(lw_div_power<log>(a), T(T(1) << log)));
}
// -- lw_max --
template <class T> LW_FUNCTION T lw_max(T a, T b) { return a > b ? a : b; }
LW_FUNCTION float32 lw_max(float32 a, float32 b) {
  const bool equal = (a == b) & (lw_bits<int32>(a) > lw_bits<int32>(b));
  return (a > b) | (a != a) | equal ? a : b;
}
LW_FUNCTION float64 lw_max(float64 a, float64 b) {
  const bool equal = (a == b) & (lw_bits<int64>(a) > lw_bits<int64>(b));
  return (a > b) | (a != a) | equal ? a : b;
}
// -- lw_min --
template <class T> LW_FUNCTION T lw_min(T a, T b) { return a < b ? a : b; }
LW_FUNCTION float32 lw_min(float32 a, float32 b) {
  const bool equal = (a == b) & (lw_bits<int32>(a) < lw_bits<int32>(b));
  return (a < b) | (a != a) | equal ? a : b;
}
LW_FUNCTION float64 lw_min(float64 a, float64 b) {
  const bool equal = (a == b) & (lw_bits<int64>(a) < lw_bits<int64>(b));
  return (a < b) | (a != a) | equal ? a : b;
}
// -- lw_clamp --
template <class T> LW_FUNCTION T lw_clamp(T low, T a, T high) { return lw_min(lw_max(a, low), high); }
// -- lw_sign --
template <class T> LW_FUNCTION T lw_sign(T a) { return a > T(0) ? T(1) : a < T(0) ? T(-1) : a; }
// -- lw_shift_left -- Shifting by the width or more leaves nothing, or the sign.
template <class T, class U> LW_FUNCTION T lw_shift_left(T a, U by) {
  typedef typename lw_unsigned<T>::type W;
  return uint64(by) < 8 * sizeof(T) ? T(W(a) << by) : T(0);
}
// -- lw_shift_right --
template <class T, class U> LW_FUNCTION T lw_shift_right(T a, U by) {
  return uint64(by) < 8 * sizeof(T) ? T(a >> by) : a < T(0) ? T(-1) : T(0);
}
// -- lw_is_finite -- Only a finite number less itself is zero.
template <class T> LW_FUNCTION bool lw_is_finite(T a) { return a - a == T(0); }
// -- lw_to_int -- Floating point to integer: what is out of range saturates, NaN is zero.
template <class T> LW_FUNCTION T lw_to_int(float64 a) {
  const bool is_signed = T(-1) < T(0);
  const float64 top = is_signed ? 9223372036854775808.0 : 18446744073709551616.0;
  const int spare = 64 - 8 * int(sizeof(T));
  const float64 limit = top / float64(1ull << spare);
  const T low = lw_lowest<T>();
  if (a != a) return T(0);
  if (a >= limit) return T(~low);
  if (a <= (is_signed ? -limit : 0.0)) return low;
  return T(a);
}
template <class T> LW_FUNCTION T lw_to_int(float32 a) {
  const bool is_signed = T(-1) < T(0);
  const float32 top = is_signed ? 9223372036854775808.0f : 18446744073709551616.0f;
  const int spare = 64 - 8 * int(sizeof(T));
  const float32 limit = top / float32(1ull << spare);
  const T low = lw_lowest<T>();
  if (a != a) return T(0);
  if (a >= limit) return T(~low);
  if (a <= (is_signed ? -limit : 0.0f)) return low;
  return T(a);
}
// -- lw_popcount --
template <class T> LW_FUNCTION T lw_popcount(T a) {
  typedef typename lw_unsigned<T>::type U;
  uint64 bits = U(a) & (~uint64(0) >> (64 - 8 * sizeof(T)));
#ifdef __CUDACC__
  return T(__popcll(bits));
#else
  return T(__builtin_popcountll(bits));
#endif
}
// -- lw_clz --
template <class T> LW_FUNCTION T lw_clz(T a) {
  typedef typename lw_unsigned<T>::type U;
  uint64 bits = U(a) & (~uint64(0) >> (64 - 8 * sizeof(T)));
  const int spare = 64 - 8 * int(sizeof(T));
#ifdef __CUDACC__
  return T(__clzll(bits) - spare);
#else
  return T((bits ? __builtin_clzll(bits) : 64) - spare);
#endif
}
// -- lw_choose -- The operand at an index.
template <class T> LW_FUNCTION T lw_choose(int32, T last) { return last; }
template <class T, class... Rest> LW_FUNCTION T lw_choose(int32 index, T first, Rest... rest) {
  return index <= 0 ? first : lw_choose<T>(index - 1, rest...);
}
// -- lw_product -- What powers multiply by: integers wrap, and 16-bit floats are rounded each time.
template <class T> LW_FUNCTION T lw_product(T a, T b) { return T(a * b); }
LW_FUNCTION int8 lw_product(int8 a, int8 b) { return lw_mul(a, b); }
LW_FUNCTION int16 lw_product(int16 a, int16 b) { return lw_mul(a, b); }
LW_FUNCTION int32 lw_product(int32 a, int32 b) { return lw_mul(a, b); }
LW_FUNCTION int64 lw_product(int64 a, int64 b) { return lw_mul(a, b); }
LW_FUNCTION uint8 lw_product(uint8 a, uint8 b) { return lw_mul(a, b); }
LW_FUNCTION uint16 lw_product(uint16 a, uint16 b) { return lw_mul(a, b); }
// -- lw_power --
// A power with a known exponent, by squaring. It is not a loop: one inside of a loop over an array keeps that from
// being vector code.
template <int n, class T> LW_FUNCTION T lw_power_times(T result, T a) {
  if constexpr (n == 0) return result;
  else return lw_power_times<(n >> 1)>(n & 1 ? lw_product(result, a) : result, lw_product(a, a));
}
template <int n, class T> LW_FUNCTION T lw_power(T a) {
  if constexpr (n == 0) return T(1);
  else if constexpr (n & 1) return lw_power_times<(n >> 1)>(a, lw_product(a, a));
  else return lw_power<(n >> 1)>(lw_product(a, a));
}
// -- lw_int_pow -- Integers to an integer power; a negative power of anything but 1 and -1 is zero.
template <class T, class E> LW_FUNCTION T lw_int_pow(T a, E exponent) {
  T result = T(1);
  if (exponent < E(0)) return a == T(1) ? T(1) : T(-1) < T(0) && a == T(-1) ? (exponent & E(1) ? a : T(1)) : T(0);
  for (uint64 left = uint64(exponent); left; left >>= 1) {
    if (left & 1) result = lw_mul(result, a);
    a = lw_mul(a, a);
  }
  return result;
}
// -- lw_rsqrt --
LW_FUNCTION float32 lw_rsqrt(float32 a) { return 1.0f / sqrtf(a); }
LW_FUNCTION float64 lw_rsqrt(float64 a) { return 1.0 / sqrt(a); }
// -- lw_reduce_precision -- Rounds to fewer bits of mantissa and exponent, half to even.
template <int exponent_bits, int mantissa_bits> LW_FUNCTION float32 lw_reduce_precision(float32 a) {
  if (a != a) return a;
  uint32 bits = lw_bits<uint32>(a);
  const uint32 sign = bits & 0x80000000u;
  bits &= 0x7fffffffu;
  if (mantissa_bits < 23 && bits < 0x7f800000u) {
    const int drop = mantissa_bits < 23 ? 23 - mantissa_bits : 1;
    bits += ((1u << (drop - 1)) - 1) + ((bits >> drop) & 1u);
    bits &= ~((1u << drop) - 1);
  }
  if (exponent_bits < 8) {
    const uint32 bias = (1u << (exponent_bits - 1)) - 1;
    const int kept = mantissa_bits < 23 ? mantissa_bits : 23;
    const uint32 top = (127u + bias) << 23 | (0x7fffffu & ~((1u << (23 - kept)) - 1));
    const uint32 least = (127u - bias + 1u) << 23;
    if (bits > top) bits = 0x7f800000u;
    else if (bits < least) bits = 0u;
  }
  return lw_bits<float32>(bits | sign);
}
template <int exponent_bits, int mantissa_bits> LW_FUNCTION float64 lw_reduce_precision(float64 a) {
  if (a != a) return a;
  uint64 bits = lw_bits<uint64>(a);
  const uint64 sign = bits & 0x8000000000000000ull;
  bits &= 0x7fffffffffffffffull;
  if (mantissa_bits < 52 && bits < 0x7ff0000000000000ull) {
    const int drop = mantissa_bits < 52 ? 52 - mantissa_bits : 1;
    bits += ((1ull << (drop - 1)) - 1) + ((bits >> drop) & 1ull);
    bits &= ~((1ull << drop) - 1);
  }
  if (exponent_bits < 11) {
    const uint64 bias = (1ull << (exponent_bits - 1)) - 1;
    const int kept = mantissa_bits < 52 ? mantissa_bits : 52;
    const uint64 top = (1023ull + bias) << 52 | (0xfffffffffffffull & ~((1ull << (52 - kept)) - 1));
    const uint64 least = (1023ull - bias + 1ull) << 52;
    if (bits > top) bits = 0x7ff0000000000000ull;
    else if (bits < least) bits = 0ull;
  }
  return lw_bits<float64>(bits | sign);
}
// -- lw_multiply_add --
// One rounding where the machine has an instruction for it; its libraries use it for products too.
#if defined(__CUDACC__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
LW_FUNCTION float32 lw_multiply_add(float32 a, float32 b, float32 c) { return fmaf(a, b, c); }
LW_FUNCTION float64 lw_multiply_add(float64 a, float64 b, float64 c) { return fma(a, b, c); }
#else
LW_FUNCTION float32 lw_multiply_add(float32 a, float32 b, float32 c) { return a * b + c; }
LW_FUNCTION float64 lw_multiply_add(float64 a, float64 b, float64 c) { return a * b + c; }
#endif
