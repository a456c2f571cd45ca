"""The functions that kernels call, in CUDA C++ that is host C++17 as well.

`HELPERS` maps the name of a function or type to its text; the emitter adds those that a kernel names, and those they
name, so that a rule just writes the name. Every function's name starts with `lw_`.
"""

from __future__ import annotations

import re

HELPERS: dict[str, str] = {}


def helpers(texts: dict[str, str]) -> None:
    """Add functions to the table. A text may hold several overloads of its name."""
    HELPERS.update({name: text.strip() for name, text in texts.items()})


def needed(text: str) -> str:
    """The helpers that a text names, and those they name, each after what it names itself."""
    found: dict[str, str] = {}
    seen: set[str] = set()

    def visit(body: str) -> None:
        for name in re.findall(r"\w+", body):
            if name in HELPERS and name not in seen:
                seen.add(name)
                visit(HELPERS[name])
                found[name] = HELPERS[name]

    visit(text)
    return "\n".join(found.values())


HEADER = r"""
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
// Both of a number: half of the work is the same. What a host's compiler knows by itself.
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
// for 0.8 to 7, and ran as fast or faster.)
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
// The turns of the loop that follows do not know of each other.
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
LW_ALSO_FLOAT(fabs) LW_ALSO_FLOAT(sqrt) LW_ALSO_FLOAT(floor) LW_ALSO_FLOAT(ceil) LW_ALSO_FLOAT(exp)
LW_ALSO_FLOAT(expm1) LW_ALSO_FLOAT(log) LW_ALSO_FLOAT(log1p) LW_ALSO_FLOAT(tan) LW_ALSO_FLOAT(lgamma)
static inline float pow(float a, float b) { return powf(a, b); }
static inline float copysign(float a, float b) { return copysignf(a, b); }

// A run over all examples, and one thread's share of it: a few examples at a time, so many that taking them costs
// little, so few that no thread has much left when the others have nothing.
struct lw_run {
  void** arguments;
  long long examples, lane_bytes;
  int capacity, threads;
  unsigned long long next, done;
  // If an interrupt may end the run: how many had come before it, and what runs a thread's part so.
  int begun;
  void (*stoppable)(void (*work)(void*), void* data, int begun);
};
// Set when better code has taken over from this: threads take no more examples here.
static int lw_superseded;
struct lw_share {
  lw_run* run;
  long long at, end, chunk, since, held;
};
static void lw_take(lw_share* share) {
  lw_run* run = share->run;
  // Who comes for more has ended what it had (lanes in step: all but the last few of it).
  __atomic_add_fetch(&run->done, share->held, __ATOMIC_RELAXED);
  share->held = 0;
  if (__atomic_load_n(&lw_superseded, __ATOMIC_RELAXED)) return;
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  const long long now = clock.tv_sec * 1000000000ll + clock.tv_nsec;
  share->chunk = now - share->since < 5000 ? 2 * share->chunk : (share->chunk + 1) / 2;
  share->since = now;
  const long long left = run->examples - (long long)__atomic_load_n(&run->next, __ATOMIC_RELAXED);
  const long long most = left / (4 * run->threads) + 1;
  if (share->chunk > most) share->chunk = most > 0 ? most : 1;
  share->at = __atomic_fetch_add(&run->next, share->chunk, __ATOMIC_RELAXED);
  share->end = share->at + share->chunk;
  if (share->end > run->examples) share->end = share->at < run->examples ? run->examples : share->at;
  share->held = share->end - share->at;
}
static inline long long lw_next(lw_share* share) {
  if (share->at == share->end) lw_take(share);
  return share->at == share->end ? share->run->examples : share->at++;
}
#endif

// A kernel that can be stopped asks where its loops pause, and now and then: the answer lies far away. (Threads of a
// host are called out of their kernels by a signal, see `signals.py`.)
#ifdef LW_STOPS
extern "C" {
LW_GLOBAL volatile int lw_stop;
}
#define LW_LISTEN long long lw_asked = LW_CLOCK;
#define LW_PAUSE if (LW_CLOCK - lw_asked > LW_STOPS) { if (lw_stop) return; lw_asked = LW_CLOCK; }
#else
#define LW_LISTEN
#define LW_PAUSE ;
#endif

typedef signed char int8;
typedef short int16;
typedef int int32;
typedef long long int64;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef float float32;
typedef double float64;
struct key2 { uint32 word[2]; };
""".strip()

helpers(
    {
        "lw_bits": r"""
// The same bits as another type of the same size.
template <class To, class From> LW_FUNCTION To lw_bits(From from) {
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}""",
        "lw_float32": "LW_FUNCTION float32 lw_float32(uint32 bits) { return lw_bits<float32>(bits); }",
        "lw_float64": "LW_FUNCTION float64 lw_float64(uint64 bits) { return lw_bits<float64>(bits); }",
        "lw_strided": r"""
// A lane's array in the scratch memory: neighbouring lanes' elements lie side by side. A host's thread has memory for
// one lane; that its stride is 1 must be known inside of functions as well.
template <class T> struct lw_strided {
  T* first;
#ifdef __CUDACC__
  long long stride;
  LW_MEMBER lw_strided(char* memory, long long lane, long long lanes) : first((T*)memory + lane), stride(lanes) {}
  LW_MEMBER T& operator[](long long index) const { return first[index * stride]; }
#else
  LW_MEMBER lw_strided(char* memory, long long, long long) : first((T*)memory) {}
  LW_MEMBER T& operator[](long long index) const { return first[index]; }
#endif
};""",
        "lw_apart": r"""
// An array whose elements lie apart.
template <class T> struct lw_apart {
  T* first;
  long long stride;
  LW_MEMBER lw_apart(char* memory, long long lane, long long lanes) : first((T*)memory + lane), stride(lanes) {}
  LW_MEMBER T& operator[](long long index) const { return first[index * stride]; }
};""",
    }
)
