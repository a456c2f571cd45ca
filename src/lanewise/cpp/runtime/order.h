// What comes before what: for sorting, and for the places of largest and smallest elements.
#pragma once
#include "kernel.h"
#include "complex.h"

// -- lw_wins -- Whether a candidate takes the place of the best so far: it is larger, or the first NaN.
template <class T> LW_FUNCTION bool lw_wins(T candidate, T best) {
  return candidate > best || (candidate != candidate && best == best);
}
// -- lw_loses --
// As `lw_wins`, for the smallest.
template <class T> LW_FUNCTION bool lw_loses(T candidate, T best) {
  return candidate < best || (candidate != candidate && best == best);
}
// -- lw_before -- The order of `sort`: NaNs are equal and last.
template <class T> LW_FUNCTION bool lw_before(T a, T b) { return a < b || (a == a && b != b); }
// -- lw_complex_before --
LW_FUNCTION bool lw_complex_before(complex64 a, complex64 b) {
  return lw_before(a.re, b.re) || (!lw_before(b.re, a.re) && lw_before(a.im, b.im));
}
// -- lw_rank -- What orders as XLA's total order does: floats by their bits, so that -0 is below 0 and NaNs are ends.
template <class T> LW_FUNCTION T lw_rank(T x) { return x; }
LW_FUNCTION int32 lw_rank(float32 x) {
  int32 bits = lw_bits<int32>(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
LW_FUNCTION int64 lw_rank(float64 x) {
  int64 bits = lw_bits<int64>(x);
  return bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
}
// -- lw_keep_few --
// The best `n` so far, in order: an element goes past all, and takes the place of the first that ranks below it. What
// it drives out goes one place down, as do all after. Of equals the first stays first.
template <int n, class T, class R> LW_FUNCTION void lw_keep_few(T* best, R* ranks, int32* at, T x, R rank, int32 i) {
  bool moved = false;
  LW_UNROLL
  for (int slot = 0; slot < n; ++slot) {
    moved = moved || slot >= i || rank > ranks[slot];
    const T old = best[slot];
    const R old_rank = ranks[slot];
    const int32 place = at[slot];
    best[slot] = moved ? x : old;
    ranks[slot] = moved ? rank : old_rank;
    at[slot] = moved ? i : place;
    x = moved ? old : x;
    rank = moved ? old_rank : rank;
    i = moved ? place : i;
  }
}
// -- lw_merge_runs -- Merge the sorted runs of a permutation, each of `length`, two by two into another array.
template <class From, class To, class Before>
LW_FUNCTION void lw_merge_runs(const From& from, To& to, int32 length, int32 size, Before before) {
  for (int32 low = 0; low < size; low += 2 * length) {
    int32 middle = low + length < size ? low + length : size;
    int32 high = middle + length < size ? middle + length : size;
    for (int32 left = low, right = middle, at = low; at < high; ++at) {
      bool second = left >= middle || (right < high && before(from[right], from[left]));
      to[at] = second ? from[right++] : from[left++];
    }
  }
}
