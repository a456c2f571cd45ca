// Random bits: the same as JAX's, from the same keys.
#pragma once
#include "kernel.h"

// -- lw_threefry --
// clang-format off
LW_FUNCTION void lw_threefry_rounds(uint32& x, uint32& y, int32 a, int32 b, int32 c, int32 d) {
  x += y; y = (y << a | y >> (32 - a)) ^ x;
  x += y; y = (y << b | y >> (32 - b)) ^ x;
  x += y; y = (y << c | y >> (32 - c)) ^ x;
  x += y; y = (y << d | y >> (32 - d)) ^ x;
}
// The threefry hash of the counter (x, y) under a key.
LW_FUNCTION key2 lw_threefry(key2 key, uint32 x, uint32 y) {
  uint32 a = key.word[0], b = key.word[1], c = a ^ b ^ 0x1bd11bdau;
  x += a; y += b;
  lw_threefry_rounds(x, y, 13, 15, 26, 6); x += b; y += c + 1u;
  lw_threefry_rounds(x, y, 17, 29, 16, 24); x += c; y += a + 2u;
  lw_threefry_rounds(x, y, 13, 15, 26, 6); x += a; y += b + 3u;
  lw_threefry_rounds(x, y, 17, 29, 16, 24); x += b; y += c + 4u;
  lw_threefry_rounds(x, y, 13, 15, 26, 6); x += c; y += a + 5u;
  return key2{{x, y}};
}
// clang-format on
// -- lw_threefry_at -- The hash of a 64-bit counter.
LW_FUNCTION key2 lw_threefry_at(key2 key, uint64 counter) {
  return lw_threefry(key, (uint32)(counter >> 32), (uint32)counter);
}
// -- lw_threefry_word --
// Word `index` of `count` words in JAX's first layout: the counters 0 .. count, cut in two halves, are hashed in pairs.
LW_FUNCTION uint32 lw_threefry_word(key2 key, uint32 index, uint32 count) {
  uint32 half = (count + 1u) / 2u, first = index < half ? index : index - half, second = first + half;
  return lw_threefry(key, first, second < count ? second : 0u).word[index < half ? 0 : 1];
}
// -- lw_mixed --
LW_FUNCTION uint32 lw_mixed(key2 words) { return words.word[0] ^ words.word[1]; }
// -- lw_joined --
LW_FUNCTION uint64 lw_joined(key2 words) { return (uint64)words.word[0] << 32 | words.word[1]; }
// -- lw_seed -- The key of a seed of any integer type: its 64 bits, or 32 and nothing above.
template <class T> LW_FUNCTION key2 lw_seed(T seed) {
  return key2{{sizeof(T) == 8 ? (uint32)((uint64)seed >> 32) : 0u, (uint32)seed}};
}
