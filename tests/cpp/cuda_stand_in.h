// What CUDA C++ has and a host's compiler has not, so that this can check the side of a text that a GPU gets.
#pragma once
#include <math.h>
#include <string.h>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

struct lw_stand_in {
  unsigned x;
};
static const lw_stand_in blockIdx = {0}, blockDim = {32}, threadIdx = {0}, gridDim = {1};

template <class T> T atomicAdd(T* sum, T more) { return *sum += more; }
template <class T> T __shfl_xor_sync(unsigned, T value, int) { return value; }
void __syncwarp();
long long clock64();
int __popcll(unsigned long long bits), __clzll(long long bits);
