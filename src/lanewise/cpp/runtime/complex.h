// Complex numbers, and their functions by those of their parts (`rules/complex.py`).
#pragma once
#include "kernel.h"
#include "functions.h"

// -- complex64 --
struct complex64 {
  float32 re, im;
  complex64() = default;
  LW_MEMBER complex64(float32 re, float32 im = 0.0f) : re(re), im(im) {}
};
LW_FUNCTION complex64 operator+(complex64 a, complex64 b) { return complex64(a.re + b.re, a.im + b.im); }
LW_FUNCTION complex64 operator-(complex64 a, complex64 b) { return complex64(a.re - b.re, a.im - b.im); }
LW_FUNCTION complex64 operator-(complex64 a) { return complex64(-a.re, -a.im); }
LW_FUNCTION complex64 operator*(complex64 a, complex64 b) {
  return complex64(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
// Dividing by the larger part of the divisor first keeps the squares from overflowing.
LW_FUNCTION complex64 operator/(complex64 a, complex64 b) {
  if (fabsf(b.re) >= fabsf(b.im)) {
    if (b.re == 0.0f && b.im == 0.0f) return complex64(a.re / fabsf(b.re), a.im / fabsf(b.re));
    float32 ratio = b.im / b.re, size = b.re + b.im * ratio;
    return complex64((a.re + a.im * ratio) / size, (a.im - a.re * ratio) / size);
  }
  float32 ratio = b.re / b.im, size = b.re * ratio + b.im;
  return complex64((a.re * ratio + a.im) / size, (a.im * ratio - a.re) / size);
}
LW_FUNCTION bool operator==(complex64 a, complex64 b) { return a.re == b.re && a.im == b.im; }
LW_FUNCTION bool operator!=(complex64 a, complex64 b) { return a.re != b.re || a.im != b.im; }
// -- lw_complex_abs --
LW_FUNCTION float32 lw_complex_abs(complex64 z) {
  return z.re != z.re || z.im != z.im ? lw_nan<float32>() : hypotf(z.re, z.im);
}
// -- lw_complex_large -- Whether squares of the parts might overflow, and one more or less does not matter.
LW_FUNCTION bool lw_complex_large(complex64 z) { return fabsf(z.re) > 1e18f || fabsf(z.im) > 1e18f; }
// -- lw_complex_log_twice -- log |2 z| where z is large.
LW_FUNCTION float32 lw_complex_log_twice(complex64 z) { return logf(hypotf(0.25f * z.re, 0.25f * z.im)) + 2.0794415f; }
// -- lw_complex_side -- A size with the sign of a part, a zero of which counts as positive.
LW_FUNCTION float32 lw_complex_side(float32 size, float32 part) { return part < 0.0f ? -size : size; }
// -- lw_complex_unsigned_zero --
LW_FUNCTION float32 lw_complex_unsigned_zero(float32 part) { return part == 0.0f ? 0.0f : part; }
// -- lw_complex_square --
LW_FUNCTION complex64 lw_complex_square(complex64 z) {
  const bool even = fabsf(z.re) == fabsf(z.im) && z.re - z.re == 0.0f;
  return complex64(even ? 0.0f : (z.re - z.im) * (z.re + z.im), 2.0f * (z.re * z.im));
}
// -- lw_complex_conj --
LW_FUNCTION complex64 lw_complex_conj(complex64 z) { return complex64(z.re, -z.im); }
// -- lw_complex_sign --
LW_FUNCTION complex64 lw_complex_sign(complex64 z) {
  float32 size = lw_complex_abs(z);
  return size == 0.0f ? z : complex64(z.re / size, z.im / size);
}
// -- lw_complex_exp --
LW_FUNCTION complex64 lw_complex_exp(complex64 z) {
  float32 size = expf(z.re);
  if (z.im == 0.0f) return complex64(size, z.im);
  if (size == 0.0f && z.im - z.im == 0.0f) return complex64(0.0f, 0.0f);
  return complex64(size * cosf(z.im), size * sinf(z.im));
}
// -- lw_complex_exp2 --
LW_FUNCTION complex64 lw_complex_exp2(complex64 z) {
  return lw_complex_exp(complex64(z.re * 0.693147180559945f, z.im * 0.693147180559945f));
}
// -- lw_complex_expm1 --
LW_FUNCTION complex64 lw_complex_expm1(complex64 z) {
  float32 half = sinf(0.5f * z.im), more = expm1f(z.re);
  if (z.im == 0.0f) return complex64(more, z.im);
  return complex64(more * cosf(z.im) - 2.0f * half * half, (more + 1.0f) * sinf(z.im));
}
// -- lw_complex_log --
LW_FUNCTION complex64 lw_complex_log(complex64 z) {
  float32 angle = atan2f(z.im, z.re);
  if (lw_complex_large(z)) return complex64(lw_complex_log_twice(z) - 0.6931472f, angle);
  return complex64(logf(lw_complex_abs(z)), angle);
}
// -- lw_complex_log2 --
LW_FUNCTION complex64 lw_complex_log2(complex64 z) { return lw_complex_log(z) * complex64(1.442695040888963f, 0.0f); }
// -- lw_complex_log1p --
LW_FUNCTION complex64 lw_complex_log1p(complex64 z) {
  float32 angle = atan2f(z.im, 1.0f + z.re);
  if (lw_complex_large(z)) return complex64(lw_complex_log_twice(z) - 0.6931472f, angle);
  if (fabsf(z.re) > 0.5f || fabsf(z.im) > 0.5f) return complex64(logf(hypotf(1.0f + z.re, z.im)), angle);
  return complex64(0.5f * log1pf(z.re * (2.0f + z.re) + z.im * z.im), angle);
}
// -- lw_complex_root --
// The square root with C99's branch cut, on which zeros have signs: what the inverse functions are made of.
LW_FUNCTION complex64 lw_complex_root(complex64 z) {
  if (z.re == 0.0f && z.im == 0.0f) return complex64(0.0f, z.im);
  if (fabsf(z.im) > 3e38f && z.im - z.im != 0.0f) return complex64(lw_infinity<float32>(), z.im);
  // A quarter of a large number, and twice its root.
  const float32 scale = lw_complex_large(z) ? 0.25f : 1.0f, back = lw_complex_large(z) ? 2.0f : 1.0f;
  const float32 re = scale * z.re, im = scale * z.im;
  float32 larger = sqrtf(0.5f * fabsf(re) + 0.5f * hypotf(re, im));
  if (re >= 0.0f) return complex64(back * larger, back * (0.5f * im / larger));
  return complex64(back * (0.5f * fabsf(im) / larger), copysignf(back * larger, im));
}
// -- lw_complex_sqrt --
LW_FUNCTION complex64 lw_complex_sqrt(complex64 z) {
  return lw_complex_root(z.re < 0.0f ? complex64(z.re, lw_complex_unsigned_zero(z.im)) : z);
}
// -- lw_complex_rsqrt --
LW_FUNCTION complex64 lw_complex_rsqrt(complex64 z) { return complex64(1.0f, 0.0f) / lw_complex_root(z); }
// -- lw_complex_pow --
LW_FUNCTION complex64 lw_complex_pow(complex64 base, complex64 power) {
  if (power == complex64(0.0f, 0.0f)) return complex64(1.0f, 0.0f);
  if (base == complex64(0.0f, 0.0f) && power.im == 0.0f && power.re > 0.0f) return complex64(0.0f, 0.0f);
  return lw_complex_exp(power * lw_complex_log(base));
}
// -- lw_complex_cbrt --
LW_FUNCTION complex64 lw_complex_cbrt(complex64 z) { return lw_complex_pow(z, complex64(0.333333333333333f, 0.0f)); }
// -- lw_complex_grown -- exp(|x|) / 2 times a number, where the exponential alone might overflow.
LW_FUNCTION float32 lw_complex_grown(float32 x, float32 by) {
  const float32 half = expf(0.5f * fabsf(x));
  return 0.5f * half * by * half;
}
// -- lw_complex_sinh --
LW_FUNCTION complex64 lw_complex_sinh(complex64 z) {
  if (z.im == 0.0f) return complex64(sinhf(z.re), z.im);
  const float32 c = cosf(z.im), s = sinf(z.im);
  if (fabsf(z.re) > 80.0f) {
    return complex64(copysignf(1.0f, z.re) * lw_complex_grown(z.re, c), lw_complex_grown(z.re, s));
  }
  return complex64(sinhf(z.re) * c, coshf(z.re) * s);
}
// -- lw_complex_cosh --
LW_FUNCTION complex64 lw_complex_cosh(complex64 z) {
  if (z.im == 0.0f) return complex64(coshf(z.re), z.re < 0.0f ? -z.im : z.im);
  const float32 c = cosf(z.im), s = sinf(z.im);
  if (fabsf(z.re) > 80.0f) {
    return complex64(lw_complex_grown(z.re, c), copysignf(1.0f, z.re) * lw_complex_grown(z.re, s));
  }
  return complex64(coshf(z.re) * c, sinhf(z.re) * s);
}
// -- lw_complex_tanh --
LW_FUNCTION complex64 lw_complex_tanh(complex64 z) {
  if (fabsf(z.re) > 15.0f) {  // the real part is 1 in float32; the imaginary one falls as 4 exp(-2 |re|)
    return complex64(copysignf(1.0f, z.re), 4.0f * sinf(z.im) * cosf(z.im) * expf(-2.0f * fabsf(z.re)));
  }
  float32 slope = tanf(z.im), size = 1.0f + slope * slope, low = sinhf(z.re);
  float32 high = sqrtf(1.0f + low * low), below = 1.0f + size * low * low;
  return complex64(size * high * low / below, slope / below);
}
// -- lw_complex_sin --
LW_FUNCTION complex64 lw_complex_sin(complex64 z) {
  return complex64(z.re == 0.0f ? z.re : sinf(z.re) * coshf(z.im), cosf(z.re) * sinhf(z.im));
}
// -- lw_complex_cos --
LW_FUNCTION complex64 lw_complex_cos(complex64 z) {
  return complex64(cosf(z.re) * coshf(z.im), z.re == 0.0f ? 0.0f : -sinf(z.re) * sinhf(z.im));
}
// -- lw_complex_tan --
LW_FUNCTION complex64 lw_complex_tan(complex64 z) {
  complex64 turned = lw_complex_tanh(complex64(-z.im, z.re));
  return complex64(turned.im, -turned.re);
}
// -- lw_complex_signed_asinh -- Kahan's forms: the two square roots never cancel.
LW_FUNCTION complex64 lw_complex_signed_asinh(complex64 z) {
  if (lw_complex_large(z)) {
    return complex64(copysignf(lw_complex_log_twice(z), z.re), atan2f(z.im, fabsf(z.re)));
  }
  complex64 up = lw_complex_root(complex64(1.0f + z.im, -z.re));
  complex64 down = lw_complex_root(complex64(1.0f - z.im, z.re));
  float32 real = up.re * down.im - up.im * down.re;
  float32 size = up.re * down.re - up.im * down.im;
  return complex64(asinhf(real), atan2f(z.im, size));
}
// -- lw_complex_asinh --
LW_FUNCTION complex64 lw_complex_asinh(complex64 z) {
  return lw_complex_signed_asinh(complex64(lw_complex_unsigned_zero(z.re), z.im));
}
// -- lw_complex_asin --
LW_FUNCTION complex64 lw_complex_asin(complex64 z) {
  complex64 turned = lw_complex_signed_asinh(complex64(-lw_complex_unsigned_zero(z.im), z.re));
  return complex64(turned.im, -turned.re);
}
// -- lw_complex_acos --
LW_FUNCTION complex64 lw_complex_acos(complex64 z) {
  z.im = lw_complex_unsigned_zero(z.im);
  if (lw_complex_large(z)) {
    return complex64(atan2f(fabsf(z.im), z.re), -lw_complex_side(lw_complex_log_twice(z), z.im));
  }
  complex64 less = lw_complex_root(complex64(1.0f - z.re, -z.im));
  complex64 more = lw_complex_root(complex64(1.0f + z.re, z.im));
  return complex64(2.0f * atan2f(less.re, more.re), asinhf(more.re * less.im - more.im * less.re));
}
// -- lw_complex_acosh --
LW_FUNCTION complex64 lw_complex_acosh(complex64 z) {
  z.im = lw_complex_unsigned_zero(z.im);
  if (lw_complex_large(z)) return complex64(lw_complex_log_twice(z), atan2f(z.im, z.re));
  complex64 less = lw_complex_root(complex64(z.re - 1.0f, z.im));
  complex64 more = lw_complex_root(complex64(z.re + 1.0f, z.im));
  return complex64(asinhf(more.re * less.re + more.im * less.im), 2.0f * atan2f(less.im, more.re));
}
// -- lw_complex_atanh -- An odd function, computed on the right, where log1p's argument does not come near -1.
LW_FUNCTION complex64 lw_complex_atanh(complex64 z) {
  if (lw_complex_large(z)) return complex64(copysignf(0.0f, z.re), lw_complex_side(1.5707964f, z.im));
  float32 size = fabsf(z.re), less = 1.0f - size, height = z.im * z.im;
  float32 real = 0.25f * log1pf(4.0f * size / (less * less + height));
  return complex64(copysignf(real, z.re), 0.5f * atan2f(2.0f * z.im, less * (1.0f + size) - height));
}
// -- lw_complex_atan --
LW_FUNCTION complex64 lw_complex_atan(complex64 z) {
  complex64 turned = lw_complex_atanh(complex64(-z.im, z.re));
  return complex64(turned.im, -turned.re);
}
// -- lw_complex_logistic --
LW_FUNCTION complex64 lw_complex_logistic(complex64 z) {
  // The one of the exponentials of z and -z that does not overflow.
  const complex64 one(1.0f, 0.0f), small = lw_complex_exp(z.re < 0.0f ? z : -z);
  return (z.re < 0.0f ? small : one) / (one + small);
}
