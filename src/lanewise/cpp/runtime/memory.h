// A lane's arrays in memory, and indices that are kept inside of arrays.
#pragma once
#include "kernel.h"

// -- lw_strided --
// A lane's array in the scratch memory: neighbouring lanes' elements are adjacent. A host's thread has memory for
// one lane; that its stride is 1 must be known inside of functions too.
template <class T> struct lw_strided {
  T* first;
#ifdef __CUDACC__
  long long stride;
  LW_MEMBER lw_strided(char* memory, long long lane, long long lanes) : first((T*)memory + lane), stride(lanes) {}
  LW_MEMBER T& operator[](long long index) const { return first[index * stride]; }
#else
  LW_MEMBER lw_strided(char* memory, long long, long long) : first((T*)memory) {}
  // Exchange elements with an array of the same size.
  LW_MEMBER void exchange(lw_strided& other) { T* const own = first; first = other.first; other.first = own; }
  LW_MEMBER T& operator[](long long index) const { return first[index]; }
#endif
};
// -- lw_apart -- An array whose elements are apart.
template <class T> struct lw_apart {
  T* first;
  long long stride;
  LW_MEMBER lw_apart(char* memory, long long lane, long long lanes) : first((T*)memory + lane), stride(lanes) {}
  LW_MEMBER T& operator[](long long index) const { return first[index * stride]; }
};
// -- lw_clip -- An index of any integer type, clipped to 0 .. most.
template <class T> LW_FUNCTION int32 lw_clip(T index, int32 most) {
  return index > T(0) ? ((uint64)index < (uint64)most ? (int32)index : most) : 0;
}
// -- lw_inside -- Whether an index of any integer type lies in 0 .. most.
template <class T> LW_FUNCTION bool lw_inside(T index, int32 most) {
  return index >= T(0) && (uint64)index <= (uint64)(int64)most && most >= 0;
}
