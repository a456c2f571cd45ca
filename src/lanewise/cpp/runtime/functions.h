// Exponentials, logarithms and their kin, which a host's compiler makes vector code of (`rules/functions.py`).
#pragma once
#include "kernel.h"
#include "numbers.h"

// -- lw_exp_parts -- exp(x) = 2^k exp(r), |r| <= log(2) / 2. Adding `shift` leaves k in the lowest bits.
struct lw_exponential {
  float64 scale, less;  // 2^k and exp(r) - 1
};
LW_FUNCTION lw_exponential lw_exp_parts(float64 x) {
  const float64 shift = 6755399441055744.0, shifted = lw_multiply_add(x, 1.4426950408889634, shift);
  const float64 scale = lw_bits<float64>((lw_bits<uint64>(shifted) + 1023ull) << 52);
  const float64 r = lw_multiply_add(shift - shifted, 0.6931471805599453, x), r2 = r * r, r4 = r2 * r2;
  const float64 low = lw_multiply_add(r2, lw_multiply_add(r, 1.0 / 6, 0.5), r);
  const float64 middle = lw_multiply_add(r, 1.0 / 120, 1.0 / 24);
  const float64 high = lw_multiply_add(r2, lw_multiply_add(r, 1.0 / 5040, 1.0 / 720), middle);
  return {scale, lw_multiply_add(r4, lw_multiply_add(r4, 1.0 / 40320, high), low)};
}
// -- lw_exp_wide --
LW_FUNCTION float64 lw_exp_wide(float64 x) {
  const lw_exponential e = lw_exp_parts(x);
  return lw_multiply_add(e.less, e.scale, e.scale);
}
// Where the exponential is more than zero and less than infinity in float32, and a little beyond.
template <class T> LW_FUNCTION float64 lw_exp_range(T x) { return x < T(-104) ? T(-104) : x > T(89) ? T(89) : x; }
// -- lw_log_wide --
// log(x) = k log(2) + log(m), sqrt(1/2) <= m < sqrt(2). x is finite, above 0. log(1 + f) / f by a polynomial, which
// interpolates at Chebyshev's points to 5e-13: a division costs as much as all of it.
LW_FUNCTION float64 lw_log_wide(float64 x) {
  const uint64 root = 0x3fe6a09e667f3bcdull, bits = lw_bits<uint64>(x) - root;
  const float64 shifted = lw_bits<float64>(uint64((int64(bits) >> 52) + 0x4338000000000000ll));
  const float64 f = lw_bits<float64>((bits & 0xfffffffffffffull) + root) - 1.0, f2 = f * f, f4 = f2 * f2;
  const float64 p0 = lw_multiply_add(f, -0.49999999998512556, 1.0000000000002172);
  const float64 p2 = lw_multiply_add(f, -0.2500000043312815, 0.3333333331141725);
  const float64 p4 = lw_multiply_add(f, -0.16666632233794296, 0.20000003805512753);
  const float64 p6 = lw_multiply_add(f, -0.12501075399501757, 0.1428545826094488);
  const float64 p8 = lw_multiply_add(f, -0.09987366169121653, 0.11119413052789981);
  const float64 p10 = lw_multiply_add(f, -0.08317435210903283, 0.08954162789286713);
  const float64 p12 = lw_multiply_add(f, -0.08467876411458124, 0.08750405232693213);
  const float64 low = lw_multiply_add(f4, lw_multiply_add(f2, p6, p4), lw_multiply_add(f2, p2, p0));
  const float64 top = lw_multiply_add(f2, 0.04272800730435181, p12);
  const float64 high = lw_multiply_add(f4, top, lw_multiply_add(f2, p10, p8));
  const float64 series = lw_multiply_add(f4 * f4, high, low);
  return lw_multiply_add(shifted - 6755399441055744.0, 0.6931471805599453, series * f);
}
// What a logarithm is where its argument, which is 0 at `edge`, is not finite and above 0.
LW_FUNCTION float64 lw_log_edge(float64 a, float64 edge) {
  return a == edge ? -lw_infinity<float64>() : a > edge ? a : lw_nan<float64>();
}
// -- lw_exp --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_exp(float32 a) { return expf(a); }
#else
LW_FUNCTION float32 lw_exp(float32 a) { return float32(lw_exp_wide(lw_exp_range(a))); }
#endif
LW_FUNCTION float64 lw_exp(float64 a) { return exp(a); }
// -- lw_exp2 --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_exp2(float32 a) { return exp2f(a); }
#else
LW_FUNCTION float32 lw_exp2(float32 a) { return float32(lw_exp_wide(lw_exp_range(a * 0.6931471805599453))); }
#endif
LW_FUNCTION float64 lw_exp2(float64 a) { return exp2(a); }
// -- lw_expm1 --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_expm1(float32 a) { return expm1f(a); }
#else
LW_FUNCTION float32 lw_expm1(float32 a) {
  const float64 x = lw_exp_range(a);
  const float64 near = x * (1.0 + x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120)))));
  return float32(fabs(x) < 0.01 ? near : lw_exp_wide(x) - 1.0);
}
#endif
LW_FUNCTION float64 lw_expm1(float64 a) { return expm1(a); }
// -- lw_tanh --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_tanh(float32 a) { return tanhf(a); }
#else
LW_FUNCTION float32 lw_tanh(float32 a) {
  // (exp(2x) - 1) / (exp(2x) + 1), of which the first loses nothing near zero, but a sign.
  const float32 x = a < -10.0f ? -10.0f : a > 10.0f ? 10.0f : a;
  const lw_exponential e = lw_exp_parts(2.0 * x);
  const float64 less = lw_multiply_add(e.less, e.scale, e.scale - 1.0);
  return copysign(float32(less / (less + 2.0)), a);
}
#endif
LW_FUNCTION float64 lw_tanh(float64 a) { return tanh(a); }
// -- lw_log --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_log(float32 a) { return logf(a); }
#else
LW_FUNCTION float32 lw_log(float32 a) {
  const float64 x = a;
  return float32(x > 0.0 && x < lw_infinity<float64>() ? lw_log_wide(x) : lw_log_edge(x, 0.0));
}
#endif
LW_FUNCTION float64 lw_log(float64 a) {
#ifndef __CUDACC__
  if (fabs(a) < 2.2250738585072014e-308) return -lw_infinity<float64>();
#endif
  return log(a);
}
// -- lw_log2 --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_log2(float32 a) { return log2f(a); }
#else
LW_FUNCTION float32 lw_log2(float32 a) {
  const float64 x = a, within = lw_log_wide(x) * 1.4426950408889634;
  return float32(x > 0.0 && x < lw_infinity<float64>() ? within : lw_log_edge(x, 0.0));
}
#endif
LW_FUNCTION float64 lw_log2(float64 a) { return log2(a); }
// -- lw_log1p --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_log1p(float32 a) { return log1pf(a); }
#else
LW_FUNCTION float32 lw_log1p(float32 a) {
  const float64 x = a, third = lw_multiply_add(-0.25, x, 1.0 / 3);
  const float64 near = x * lw_multiply_add(-x, lw_multiply_add(-x, third, 0.5), 1.0);
  const float64 within = fabs(x) < 0.001 ? near : lw_log_wide(1.0 + x);
  return float32(x > -1.0 && x < lw_infinity<float64>() ? within : lw_log_edge(x, -1.0));
}
#endif
LW_FUNCTION float64 lw_log1p(float64 a) { return log1p(a); }
// -- lw_widened --
// A number as float64, also where numbers below the normal range are taken for zero, as XLA has a host's cores do.
LW_FUNCTION float64 lw_widened(float32 a) {
  const uint32 bits = lw_bits<uint32>(a);
  const float64 small = float64(int32(bits & 0x7fffffu)) * 1.401298464324817e-45;
  return bits & 0x7f800000u ? float64(a) : bits >> 31 ? -small : small;
}
// -- lw_cbrt --
// What the C library makes of numbers below the normal range where they are taken for zero may be anything.
#ifdef __CUDACC__
LW_FUNCTION float32 lw_cbrt(float32 a) { return cbrtf(a); }
LW_FUNCTION float64 lw_cbrt(float64 a) { return cbrt(a); }
#else
LW_FUNCTION float32 lw_cbrt(float32 a) {
  return lw_bits<uint32>(a) & 0x7f800000u ? cbrtf(a) : float32(cbrt(lw_widened(a)));
}
LW_FUNCTION float64 lw_cbrt(float64 a) {
  const uint64 bits = lw_bits<uint64>(a);
  if (bits & 0x7ff0000000000000ull) return cbrt(a);
  return copysign(cbrt(float64(int64(bits & 0xfffffffffffffull))) * lw_float64(0x2990000000000000ull), a);
}
#endif
// -- lw_pow --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_pow(float32 a, float32 b) { return powf(a, b); }
#else
LW_FUNCTION float32 lw_pow(float32 a, float32 b) {
  const float64 infinity = lw_infinity<float64>(), size = fabs(lw_widened(a)), power = lw_widened(b);
  // A number above 0, then the edges: 0, infinity, and 1, to which no power matters.
  const float64 within = lw_exp_wide(lw_exp_range(power * lw_log_wide(size)));
  const float64 edge = (size == 0.0) == (power < 0.0) ? infinity : 0.0;
  const bool at_edge = size == 0.0 || size == infinity;
  const float64 above = at_edge ? edge : within;
  const bool whole = power == rint(power), odd = whole && 0.5 * power != rint(0.5 * power);
  const float64 below = odd ? -above : whole || at_edge ? above : lw_nan<float64>();
  const float64 known = a != a || b != b ? lw_nan<float64>() : lw_bits<int32>(a) < 0 ? below : above;
  const bool minus_one = a == -1.0f && fabs(power) == infinity;
  return float32(power == 0.0 || a == 1.0f || minus_one ? 1.0 : known);
}
#endif
LW_FUNCTION float64 lw_pow(float64 a, float64 b) { return pow(a, b); }
// -- lw_logistic --
#ifdef __CUDACC__
LW_FUNCTION float32 lw_logistic(float32 a) { return 1.0f / (1.0f + expf(-a)); }
#else
LW_FUNCTION float32 lw_logistic(float32 a) {
  const float64 x = a < -104.0f ? 104.0 : a > 104.0f ? -104.0 : -a;
  return float32(1.0 / (1.0 + lw_exp_wide(x)));
}
#endif
LW_FUNCTION float64 lw_logistic(float64 a) { return 1.0 / (1.0 + exp(-a)); }
// -- lw_log_add -- log(exp(a) + exp(b)) without overflow.
template <class T> LW_FUNCTION T lw_log_add(T a, T b) {
  T gap = a - b, larger = a > b ? a : b;
  return gap != gap ? a + b : larger + log1p(exp(gap > 0 ? -gap : gap));
}
