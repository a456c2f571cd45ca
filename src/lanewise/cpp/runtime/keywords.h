// One name for what CUDA C++ and host C++17 write differently.
#pragma once

#ifdef __CUDACC__
#pragma nv_diag_suppress 177, 186, 550
#define LW_FUNCTION static __device__ __forceinline__
#define LW_SLOW_FUNCTION static __device__ __noinline__
#define LW_CALLED static __device__ __noinline__ void
#define LW_CALLED_ON_HOST static __device__ void
#define LW_MEMBER __device__ __forceinline__
#define LW_KERNEL extern "C" __global__ void
#define LW_TABLE static __device__ const
#define LW_UNROLL _Pragma("unroll")
#define LW_UNROLL_SOME
#define LW_UNROLL_FOUR _Pragma("unroll 4")
#define LW_LANE ((long long)blockIdx.x * blockDim.x + threadIdx.x)
#define LW_LANES ((long long)gridDim.x * blockDim.x)
#define LW_COUNTER unsigned long long
#define LW_FIRST(counter) lane
#define LW_NEXT(counter) (lanes + (long long)atomicAdd(counter, 1ull))
#define LW_PLATFORM(cuda, host) cuda
// Sine and cosine of a number, which have half of the work in common. A host's compiler knows that on its own.
#define LW_SINE_COSINE(type, s, c, both, x, sine, cosine) type s, c; both(x, &s, &c);
#define LW_GOES_ON(turn) (turn < 64)
// Threads in step meet at the `switch`; a host's thread goes where it is going.
#define LW_HEAD(number)
#define LW_GO_TO(number) { pc = number; goto dispatch; }
#define LW_UNROLL_SHORT _Pragma("unroll 4")
#define LW_IN_STEP
// The threads of a block that run one lane together: each does a part of the work on long arrays.
#define LW_PART ((int)threadIdx.x)
#define LW_PARTS ((int)blockDim.x)
#define LW_SHARED __shared__
#define LW_MEET __syncwarp();
#define LW_GLOBAL __device__
#define LW_CLOCK clock64()
// An array whose address is known elsewhere is in memory, and not in registers.
#define LW_IN_MEMORY(array) asm volatile("" :: "l"(array) : "memory");
#else
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define __restrict__ __restrict
#define LW_FUNCTION static inline
#define LW_SLOW_FUNCTION static
#define LW_CALLED static __attribute__((noinline, noclone)) void
#define LW_CALLED_ON_HOST LW_CALLED
#define LW_MEMBER inline
#define LW_KERNEL static void
#define LW_TABLE static const
#define LW_UNROLL _Pragma("GCC unroll 16")
// Left alone, g++ would write all turns out, and take long over it. (Six samplers' kernels took 0.7 to 1.4 s to compile
// instead of 0.8 to 7, and ran as fast or faster.)
#define LW_UNROLL_SOME _Pragma("GCC unroll 4")
#define LW_UNROLL_FOUR
#define LW_LANE 0ll
#define LW_LANES 1ll
#define LW_COUNTER lw_share
#define LW_FIRST(share) lw_next(share)
#define LW_NEXT(share) lw_next(share)
#define LW_PLATFORM(cuda, host) host
#define LW_SINE_COSINE(type, s, c, both, x, sine, cosine) const type s = sine, c = cosine;
#define LW_UNROLL_SHORT
// The turns of the loop that follows are independent.
#define LW_IN_STEP _Pragma("omp simd")
#define LW_PART 0
#define LW_PARTS 1
#define LW_SHARED
#define LW_MEET
#define LW_HEAD(number) head##number:
#define LW_GO_TO(number) goto head##number;
#define LW_GLOBAL
#define LW_CLOCK clock()
#define LW_IN_MEMORY(array)
#ifdef LW_TURNS
#define LW_GOES_ON(turn) (turn < LW_TURNS)
#else
#define LW_GOES_ON(turn) true
#endif

// C's functions have one name for each type; CUDA's, and code that is written for both, one name for both.
#define LW_ALSO_FLOAT(name) static inline float name(float a) { return name##f(a); }
// clang-format off
LW_ALSO_FLOAT(fabs) LW_ALSO_FLOAT(sqrt) LW_ALSO_FLOAT(floor) LW_ALSO_FLOAT(ceil) LW_ALSO_FLOAT(exp)
LW_ALSO_FLOAT(expm1) LW_ALSO_FLOAT(log) LW_ALSO_FLOAT(log1p) LW_ALSO_FLOAT(tan) LW_ALSO_FLOAT(lgamma)
static inline float pow(float a, float b) { return powf(a, b); }
static inline float copysign(float a, float b) { return copysignf(a, b); }
// clang-format on
#endif
