// 16-bit floats, which compute in `float32`.
#pragma once
#include "kernel.h"
#include "bits.h"

// -- lw_half_to_float --
LW_FUNCTION float32 lw_half_to_float(uint16 bits) {
#ifdef __CUDA_ARCH__
  float32 value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  uint32 sign = (uint32)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return lw_bits<float32>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x0400u) return lw_bits<float32>(sign | ((rest << 13) + 0x38000000u));
  float32 small = (float32)rest * 5.9604644775390625e-8f;  // a multiple of 2^-24
  return sign ? -small : small;
#endif
}
// -- lw_float_to_half --
LW_FUNCTION uint16 lw_float_to_half(float32 value) {
#ifdef __CUDA_ARCH__
  uint16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  uint32 bits = lw_bits<uint32>(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return (uint16)(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return (uint16)(sign | 0x7c00u);  // 65520 and more
  if (rest < 0x38800000u)  // adding 0.5 rounds to a multiple of 2^-24 and leaves it in the low bits
    return (uint16)(sign | (lw_bits<uint32>(lw_bits<float32>(rest) + 0.5f) - 0x3f000000u));
  return (uint16)(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
#endif
}
// -- lw_float_to_bfloat --
LW_FUNCTION uint16 lw_float_to_bfloat(float32 value) {
  uint32 bits = lw_bits<uint32>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16)((bits >> 16 & 0x8000u) | 0x7fc0u);
  return (uint16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// -- lw_round_to_odd --
// A double on its way to 16 bits: a float that still shows which side of every tie it was on, so that the second
// rounding is the only one that counts.
LW_FUNCTION float32 lw_round_to_odd(float64 value) {
  float32 near = (float32)value;
  uint32 bits = lw_bits<uint32>(near);
  if (near != near || (float64)near == value || (bits & 1u)) return near;
  bool larger = (near < 0 ? -(float64)near : (float64)near) > (value < 0 ? -value : value);
  return lw_bits<float32>(larger ? bits - 1u : bits + 1u);
}
// -- float16 --
struct float16 {
  uint16 bits;
  float16() = default;
  LW_MEMBER explicit float16(float64 value) : bits(lw_float_to_half(lw_round_to_odd(value))) {}
  template <class T> LW_MEMBER explicit float16(T value) : bits(lw_float_to_half((float32)value)) {}
  LW_MEMBER operator float32() const { return lw_half_to_float(bits); }
};
// -- bfloat16 --
struct bfloat16 {
  uint16 bits;
  bfloat16() = default;
  LW_MEMBER explicit bfloat16(float64 value) : bits(lw_float_to_bfloat(lw_round_to_odd(value))) {}
  template <class T> LW_MEMBER explicit bfloat16(T value) : bits(lw_float_to_bfloat((float32)value)) {}
  LW_MEMBER operator float32() const { return lw_bits<float32>((uint32)bits << 16); }
};
