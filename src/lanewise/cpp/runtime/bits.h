// Bits of numbers, and the special values that are made of them.
#pragma once
#include "kernel.h"

// -- lw_bits -- The same bits as another type of the same size.
template <class To, class From> LW_FUNCTION To lw_bits(From from) {
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
// -- lw_float32 --
LW_FUNCTION float32 lw_float32(uint32 bits) { return lw_bits<float32>(bits); }
// -- lw_float64 --
LW_FUNCTION float64 lw_float64(uint64 bits) { return lw_bits<float64>(bits); }
// -- lw_part -- One piece of a value's bits, lowest first.
template <class To, class From> LW_FUNCTION To lw_part(From from, int index) {
  To parts[sizeof(From) / sizeof(To)];
  memcpy(parts, &from, sizeof(from));
  return parts[index];
}
// -- lw_whole -- A value from the pieces of its bits, lowest first.
template <class To, class From, class... Rest> LW_FUNCTION To lw_whole(From first, Rest... rest) {
  const From parts[] = {first, rest...};
  To to;
  memcpy(&to, parts, sizeof(to));
  return to;
}
// -- lw_nan --
template <class T> LW_FUNCTION T lw_nan() { return (T)lw_bits<float32>(0x7fc00000u); }
// -- lw_infinity --
template <class T> LW_FUNCTION T lw_infinity() { return (T)lw_bits<float32>(0x7f800000u); }
