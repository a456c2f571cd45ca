"""Special functions that C++ and CUDA lack, for `float32` and `float64`.

Each is written once as a template of plain arithmetic, so that the host and the GPU compute the same. At poles and
outside their domains they answer as XLA's do.
"""

from __future__ import annotations

from lanewise.machine.kernel.prelude import helpers

helpers(
    {
        "lw_nan": r"""
template <class T> LW_FUNCTION T lw_nan() { return (T)lw_bits<float32>(0x7fc00000u); }""",
        "lw_infinity": r"""
template <class T> LW_FUNCTION T lw_infinity() { return (T)lw_bits<float32>(0x7f800000u); }""",
        "lw_erf_inv": r"""
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
  return x < 0.0 ? -y : y;
}""",
        "lw_digamma": r"""
// Reflection on the left, recurrence up to where the asymptotic series holds. Poles are NaN, but for zero.
template <class T> LW_SLOW_FUNCTION T lw_digamma(T x) {
  if (x == T(0)) return -lw_infinity<T>();
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
}""",
        "lw_zeta": r"""
// Hurwitz's zeta function by Euler and Maclaurin: terms one by one, then their tail as an integral and corrections.
template <class T> LW_SLOW_FUNCTION T lw_zeta(T x, T q) {
  if (x == T(1)) return lw_infinity<T>();
  if (q <= T(0) && q == floor(q)) {
    return x == floor(x) && x - T(2) * floor(x / T(2)) == T(0) && x < lw_infinity<T>() ? lw_infinity<T>() : lw_nan<T>();
  }
  if (!(x > T(1)) || !(x < lw_infinity<T>()) || !(q < lw_infinity<T>())) return lw_nan<T>();
  if (q <= T(0) && x != floor(x)) return lw_nan<T>();
  T sum = T(0), at = q, power = pow(at, -x);
  // Bounded, so that a q far to the left cannot hold a lane for ever.
  for (int32 step = 0; step < 100000 && (step < 9 || at <= T(9)); ++step) {
    sum += power;
    at += T(1);
    power = pow(at, -x);
  }
  sum += power * at / (x - T(1)) + T(0.5) * power;
  // Bernoulli numbers over factorials.
  const T over[12] = {T(1.0 / 12), T(-1.0 / 720), T(1.0 / 30240), T(-1.0 / 1209600), T(1.0 / 47900160),
    T(-691.0 / 1307674368000.0), T(1.0 / 74724249600.0), T(-3617.0 / 10670622842880000.0),
    T(43867.0 / 5109094217170944000.0), T(-174611.0 / 802857662698291200000.0),
    T(77683.0 / 14101100039391805440000.0), T(-236364091.0 / 1693824136731743669452800000.0)};
  T factor = x, scale = power / at;
  for (int32 k = 0; k < 12; ++k) {
    T term = over[k] * factor * scale;
    sum += term;
    if (fabs(term) <= fabs(sum) * T(1e-17)) break;
    factor *= (x + T(2 * k + 1)) * (x + T(2 * k + 2));
    scale /= at * at;
  }
  return sum;
}""",
        "lw_polygamma": r"""
// Derivatives of digamma: (-1)^(n+1) n! zeta(n + 1, x).
template <class T> LW_SLOW_FUNCTION T lw_polygamma(T n, T x) {
  if (!(n >= T(0)) || n != floor(n)) return lw_nan<T>();
  if (n == T(0)) return lw_digamma<T>(x);
  T size = exp(lgamma(n + T(1))) * lw_zeta<T>(n + T(1), x);
  return n - T(2) * floor(n / T(2)) == T(0) ? -size : size;
}""",
        "lw_bessel_i": r"""
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
  return sum / sqrt(T(6.28318530717958647692) * size);
}""",
        "lw_bessel_i0e": r"""
template <class T> LW_FUNCTION T lw_bessel_i0e(T x) { return lw_bessel_i<T>(0, fabs(x)); }""",
        "lw_bessel_i1e": r"""
template <class T> LW_FUNCTION T lw_bessel_i1e(T x) {
  return x < T(0) ? -lw_bessel_i<T>(1, fabs(x)) : lw_bessel_i<T>(1, fabs(x));
}""",
    }
)
