"""Arithmetic: XLA's meaning of what C++ leaves undefined."""

from __future__ import annotations

from lanewise.cpp.emit.prelude import helpers


def _extremum(name: str, better: str) -> str:
    """The larger or the smaller: a NaN on either side is the answer, and -0 is below 0.

    Where numbers below the normal range are taken for zero they count as equal, and their signs decide.
    """
    floats = "".join(
        f"""
LW_FUNCTION float{bits} lw_{name}(float{bits} a, float{bits} b) {{
  const float{bits} equal = lw_bits<int{bits}>(a) {better} lw_bits<int{bits}>(b) ? a : b;
  return a == b ? equal : a {better} b || a != a ? a : b;
}}"""
        for bits in (32, 64)
    )
    return f"""
template <class T> LW_FUNCTION T lw_{name}(T a, T b) {{ return a {better} b ? a : b; }}{floats}"""


helpers(
    {
        "lw_unsigned": r"""
// The type integer arithmetic wraps in.
template <class T> struct lw_unsigned { typedef uint32 type; };
template <> struct lw_unsigned<int64> { typedef uint64 type; };
template <> struct lw_unsigned<uint64> { typedef uint64 type; };""",
        "lw_lowest": r"""
// The least value of an integer type.
template <class T> LW_FUNCTION T lw_lowest() {
  return T(-1) < T(0) ? T(T(1) << (8 * sizeof(T) - 1)) : T(0);
}""",
        "lw_add": r"""
template <class T> LW_FUNCTION T lw_add(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) + U(b));
}""",
        "lw_sub": r"""
template <class T> LW_FUNCTION T lw_sub(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) - U(b));
}""",
        "lw_mul": r"""
template <class T> LW_FUNCTION T lw_mul(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) * U(b));
}""",
        "lw_neg": r"""
template <class T> LW_FUNCTION T lw_neg(T a) { return lw_sub(T(0), a); }""",
        "lw_abs_int": r"""
template <class T> LW_FUNCTION T lw_abs_int(T a) { return a < T(0) ? lw_sub(T(0), a) : a; }""",
        "lw_div": r"""
// Integers: by zero gives all ones; the least number by -1 wraps.
template <class T> LW_FUNCTION T lw_div(T a, T b) {
  if (b == T(0)) return T(-1);
  if (T(-1) < T(0) && b == T(-1)) return lw_sub(T(0), a);
  return T(a / b);
}""",
        "lw_rem": r"""
template <class T> LW_FUNCTION T lw_rem(T a, T b) {
  if (b == T(0)) return a;
  if (T(-1) < T(0) && b == T(-1)) return T(0);
  return T(a % b);
}""",
        "lw_div_power": r"""
// By a power of two: a negative number is rounded towards zero.
template <int log, class T> LW_FUNCTION T lw_div_power(T a) {
  const T below = a >> (8 * sizeof(T) - 1) & T((T(1) << log) - 1);
  return lw_add(a, below) >> log;
}""",
        "lw_rem_power": r"""
template <int log, class T> LW_FUNCTION T lw_rem_power(T a) {
  return lw_sub(a, lw_mul(lw_div_power<log>(a), T(T(1) << log)));
}""",
        "lw_max": _extremum("max", ">"),
        "lw_min": _extremum("min", "<"),
        "lw_clamp": r"""
template <class T> LW_FUNCTION T lw_clamp(T low, T a, T high) { return lw_min(lw_max(a, low), high); }""",
        "lw_sign": r"""
template <class T> LW_FUNCTION T lw_sign(T a) { return a > T(0) ? T(1) : a < T(0) ? T(-1) : a; }""",
        "lw_shift_left": r"""
// Shifting by the width or more leaves nothing, or the sign.
template <class T, class U> LW_FUNCTION T lw_shift_left(T a, U by) {
  typedef typename lw_unsigned<T>::type W;
  return uint64(by) < 8 * sizeof(T) ? T(W(a) << by) : T(0);
}""",
        "lw_shift_right": r"""
template <class T, class U> LW_FUNCTION T lw_shift_right(T a, U by) {
  return uint64(by) < 8 * sizeof(T) ? T(a >> by) : a < T(0) ? T(-1) : T(0);
}""",
        "lw_is_finite": r"""
// Only a finite number less itself is zero.
template <class T> LW_FUNCTION bool lw_is_finite(T a) { return a - a == T(0); }""",
        "lw_part": r"""
// One piece of a value's bits, lowest first.
template <class To, class From> LW_FUNCTION To lw_part(From from, int index) {
  To parts[sizeof(From) / sizeof(To)];
  memcpy(parts, &from, sizeof(from));
  return parts[index];
}""",
        "lw_whole": r"""
// A value from the pieces of its bits, lowest first.
template <class To, class From, class... Rest> LW_FUNCTION To lw_whole(From first, Rest... rest) {
  const From parts[] = {first, rest...};
  To to;
  memcpy(&to, parts, sizeof(to));
  return to;
}""",
        "lw_to_int": r"""
// Floating point to integer: what is out of range saturates, NaN is zero.
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
}""",
        "lw_popcount": r"""
template <class T> LW_FUNCTION T lw_popcount(T a) {
  typedef typename lw_unsigned<T>::type U;
  uint64 bits = U(a) & (~uint64(0) >> (64 - 8 * sizeof(T)));
#ifdef __CUDACC__
  return T(__popcll(bits));
#else
  return T(__builtin_popcountll(bits));
#endif
}""",
        "lw_clz": r"""
template <class T> LW_FUNCTION T lw_clz(T a) {
  typedef typename lw_unsigned<T>::type U;
  uint64 bits = U(a) & (~uint64(0) >> (64 - 8 * sizeof(T)));
  const int spare = 64 - 8 * int(sizeof(T));
#ifdef __CUDACC__
  return T(__clzll(bits) - spare);
#else
  return T((bits ? __builtin_clzll(bits) : 64) - spare);
#endif
}""",
        "lw_choose": r"""
// The operand at an index.
template <class T> LW_FUNCTION T lw_choose(int32, T last) { return last; }
template <class T, class... Rest> LW_FUNCTION T lw_choose(int32 index, T first, Rest... rest) {
  return index <= 0 ? first : lw_choose<T>(index - 1, rest...);
}""",
        "lw_product": r"""
// What powers multiply by: integers wrap, and 16-bit floats are rounded each time.
template <class T> LW_FUNCTION T lw_product(T a, T b) { return T(a * b); }
LW_FUNCTION int8 lw_product(int8 a, int8 b) { return lw_mul(a, b); }
LW_FUNCTION int16 lw_product(int16 a, int16 b) { return lw_mul(a, b); }
LW_FUNCTION int32 lw_product(int32 a, int32 b) { return lw_mul(a, b); }
LW_FUNCTION int64 lw_product(int64 a, int64 b) { return lw_mul(a, b); }
LW_FUNCTION uint8 lw_product(uint8 a, uint8 b) { return lw_mul(a, b); }
LW_FUNCTION uint16 lw_product(uint16 a, uint16 b) { return lw_mul(a, b); }""",
        "lw_power": r"""
// A power with a known exponent, by squaring.
template <int n, class T> LW_FUNCTION T lw_power(T a) {
  T result = T(1);
  bool first = true;
  LW_UNROLL
  for (unsigned left = n; left; left >>= 1) {
    if (left & 1) {
      result = first ? a : lw_product(result, a);
      first = false;
    }
    a = lw_product(a, a);
  }
  return result;
}""",
        "lw_int_pow": r"""
// Integers to an integer power; a negative power of anything but 1 and -1 is zero.
template <class T, class E> LW_FUNCTION T lw_int_pow(T a, E exponent) {
  T result = T(1);
  if (exponent < E(0)) return a == T(1) ? T(1) : T(-1) < T(0) && a == T(-1) ? (exponent & E(1) ? a : T(1)) : T(0);
  for (uint64 left = uint64(exponent); left; left >>= 1) {
    if (left & 1) result = lw_mul(result, a);
    a = lw_mul(a, a);
  }
  return result;
}""",
        "lw_rsqrt": r"""
LW_FUNCTION float32 lw_rsqrt(float32 a) { return 1.0f / sqrtf(a); }
LW_FUNCTION float64 lw_rsqrt(float64 a) { return 1.0 / sqrt(a); }""",
        "lw_reduce_precision": r"""
// Rounds to fewer bits of mantissa and exponent, half to even.
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
}""",
    }
)
