// Special functions that C++ and CUDA lack, the same on the host and on a GPU.
#pragma once
#include "kernel.h"
#include "functions.h"

// What JAX has at the pole at zero depends on its version, and is the emitter's to say (`emit/rules`).
#ifndef LW_DIGAMMA_AT_ZERO
#define LW_DIGAMMA_AT_ZERO lw_nan<T>()
#endif

// -- lw_erf_inv --
// Giles's polynomials in w = -log(1 - x^2): "Approximating the erfinv function", GPU Computing Gems 2, 2011.
LW_FUNCTION float32 lw_erf_inv_near(float32 w) {
  w -= 2.5f;
  float32 p = 2.81022636e-08f;
  p = 3.43273939e-07f + p * w;
  p = -3.5233877e-06f + p * w;
  p = -4.39150654e-06f + p * w;
  p = 0.00021858087f + p * w;
  p = -0.00125372503f + p * w;
  p = -0.00417768164f + p * w;
  p = 0.246640727f + p * w;
  return 1.50140941f + p * w;
}
LW_FUNCTION float32 lw_erf_inv_far(float32 w) {
  w = sqrtf(w) - 3.0f;
  float32 p = -0.000200214257f;
  p = 0.000100950558f + p * w;
  p = 0.00134934322f + p * w;
  p = -0.00367342844f + p * w;
  p = 0.00573950773f + p * w;
  p = -0.0076224613f + p * w;
  p = 0.00943887047f + p * w;
  p = 1.00167406f + p * w;
  return 2.83297682f + p * w;
}
LW_FUNCTION float32 lw_erf_inv(float32 x) {
  if (fabsf(x) == 1.0f) return x * lw_infinity<float32>();
  float32 w = -lw_log1p(-x * x);
  return (w < 5.0f ? lw_erf_inv_near(w) : lw_erf_inv_far(w)) * x;
}
// In double: those as a start, then Halley's steps on erfc(y) = 1 - |x|, which is exact near 1.
LW_FUNCTION float64 lw_erf_inv(float64 x) {
  float64 size = fabs(x), rest = 1.0 - size;
  if (!(rest > 0.0)) return rest == 0.0 ? x * lw_infinity<float64>() : lw_nan<float64>();
  if (size < 1e-10) return x * 0.8862269254527580;
  float64 w = -log1p(-x * x), y;
  if (w < 5.0) {
    y = (float64)lw_erf_inv_near((float32)w) * size;
  } else if (w < 16.0) {
    y = (float64)lw_erf_inv_far((float32)w) * size;
  } else {  // erfc(y) ~ exp(-y^2) / (y sqrt(pi))
    float64 log_rest = log(rest) + 0.5723649429247001;
    y = sqrt(-log_rest);
    y = sqrt(-(log_rest + log(y)));
  }
  for (int32 step = 0; step < 2; ++step) {
    // The residual relative to erf's slope; a tiny argument keeps its digits by working on erf.
    float64 gap = size < 0.5 ? erf(y) - size : rest - erfc(y);
    float64 newton = gap * 0.8862269254527580 * exp(y * y);
    y -= newton / (1.0 + y * newton);
  }
  return copysign(y, x);
}
// -- lw_lgamma -- XLA on a host takes what is below the normal range for zero, which is a pole.
#ifdef __CUDACC__
LW_FUNCTION float32 lw_lgamma(float32 x) { return lgammaf(x); }
LW_FUNCTION float64 lw_lgamma(float64 x) { return lgamma(x); }
#else
LW_FUNCTION float32 lw_lgamma(float32 x) { return fabsf(x) < 1.17549435e-38f ? lw_infinity<float32>() : lgammaf(x); }
LW_FUNCTION float64 lw_lgamma(float64 x) {
  return fabs(x) < 2.2250738585072014e-308 ? lw_infinity<float64>() : lgamma(x);
}
#endif
// -- lw_digamma --
// Reflection on the left, recurrence up to where the asymptotic series holds. Poles are NaN, but perhaps that at zero.
template <class T> LW_SLOW_FUNCTION T lw_digamma(T x) {
  if (x == T(0)) return LW_DIGAMMA_AT_ZERO;
  if (!(x > -lw_infinity<T>()) || (x <= T(0) && x == floor(x))) return lw_nan<T>();
  T result = T(0);
  if (x < T(0)) {
    T fraction = x - floor(x + T(0.5));
    result = T(-3.14159265358979323846) / tan(T(3.14159265358979323846) * fraction);
    x = T(1) - x;
  }
  while (x < T(10)) {
    result -= T(1) / x;
    x += T(1);
  }
  if (x > T(1e17)) return result + log(x);
  T y = T(1) / (x * x);
  T series = T(1.0 / 12);
  series = T(-691.0 / 32760) + y * series;
  series = T(1.0 / 132) + y * series;
  series = T(-1.0 / 240) + y * series;
  series = T(1.0 / 252) + y * series;
  series = T(-1.0 / 120) + y * series;
  series = T(1.0 / 12) + y * series;
  return result + (log(x) - T(0.5) / x - y * series);
}
// -- lw_zeta --
// Hurwitz's zeta function by Euler and Maclaurin: ten terms one by one, then their tail as an integral and corrections,
// as XLA has it. Nothing else is done far on the left, where the answer is that of the formula, and no more.
template <class T> LW_SLOW_FUNCTION T lw_zeta(T x, T q) {
  const bool whole = x == floor(x), even = whole && x - T(2) * floor(x / T(2)) == T(0);
  if (x == T(1)) return lw_infinity<T>();
  if (q <= T(0) && q == floor(q)) return even ? lw_infinity<T>() : lw_nan<T>();
  if (!(x >= T(1)) || (q <= T(0) && !whole)) return lw_nan<T>();
  T at = q, sum = pow(q, -x), power = T(0);
  for (int32 step = 0; step < 9; ++step) {
    at += T(1);
    power = pow(at, -x);
    sum += power;
  }
  at += T(1);
  power = pow(at, -x);
  // Factorials over Bernoulli numbers.
  // clang-format off
  const T under[12] = {T(-7.1661652561756670113e18), T(1.8152105401943546773e17), T(-4.5979787224074726105e15),
    T(1.1646782814350067249e14), T(-2.950130727918164224e12), T(7.47242496e10), T(-1.8924375803183791606e9),
    T(47900160.0), T(-1209600.0), T(30240.0), T(-720.0), T(12.0)};
  // clang-format on
  const T inverse = T(1) / (at * at);
  T series = T(0);
  for (int32 k = 0; k < 11; ++k) {
    const T factor = (x + T(22 - 2 * k)) * (x + T(21 - 2 * k));
    series = factor * inverse * (series + T(1) / under[k]);
  }
  return sum + power * at / (x - T(1)) + power * (T(0.5) + x / at * (T(1) / under[11] + series));
}
// -- lw_polygamma -- Derivatives of digamma: (-1)^(n+1) n! zeta(n + 1, x).
template <class T> LW_SLOW_FUNCTION T lw_polygamma(T n, T x) {
  if (!(n >= T(0)) || n != floor(n)) return lw_nan<T>();
  if (n == T(0)) return lw_digamma<T>(x);
  T size = exp(lgamma(n + T(1))) * lw_zeta<T>(n + T(1), x);
  return n - T(2) * floor(n / T(2)) == T(0) ? -size : size;
}
// -- lw_bessel_i --
// exp(-|x|) I_n(|x|) for n = 0 or 1: a power series of positive terms, or the asymptotic one where that has converged.
template <class T> LW_SLOW_FUNCTION T lw_bessel_i(int32 n, T size) {
  if (size == lw_infinity<T>()) return T(0);
  if (size <= (sizeof(T) == 4 ? T(10) : T(22))) {
    T square = size * size / T(4), term = n == 0 ? T(1) : size / T(2), sum = term;
    for (int32 k = 1; k < 100; ++k) {
      term *= square / (T(k) * T(k + n));
      sum += term;
      if (term <= sum * T(1e-17)) break;
    }
    return sum * exp(-size);
  }
  T term = T(1), sum = T(1);
  for (int32 k = 1; k < 40; ++k) {
    T odd = T(2 * k - 1), next = -term * (T(4 * n * n) - odd * odd) / (T(8 * k) * size);
    if (fabs(next) >= fabs(term) || fabs(next) <= fabs(sum) * T(1e-17)) break;
    sum += next;
    term = next;
  }
  return sum / (T(2.50662827463100050242) * sqrt(size));
}
// -- lw_bessel_i0e --
template <class T> LW_FUNCTION T lw_bessel_i0e(T x) { return lw_bessel_i<T>(0, fabs(x)); }
// -- lw_bessel_i1e --
template <class T> LW_FUNCTION T lw_bessel_i1e(T x) { return copysign(lw_bessel_i<T>(1, fabs(x)), x); }
