"""What kernels are written with: the header of their text, memory, and arithmetic.

The header gives the keywords of CUDA C++ and those of host C++17 one name, and deals out examples to a host's threads.
Arithmetic has XLA's meaning of what C++ leaves undefined.
"""

from __future__ import annotations

from lanewise.cpp.emit.rules import helpers

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

// Examples that come and go while a run goes on: the numbers of those that wait for a lane, and of those that have
// ended, each in a ring that has room for all. `come`, `taken`, `gone` and `reported` count for ever.
struct lw_feed {
  pthread_mutex_t guard;
  pthread_cond_t arrival, end;
  int *waiting, *ended, closed;
  unsigned size, come, taken, gone, reported;
  unsigned enough;  // of those that have ended, for the host to look
};
// Whether there is an example to take, or none will come.
static inline bool lw_feed_stirs(lw_feed* feed) {
  return __atomic_load_n(&feed->come, __ATOMIC_RELAXED) != __atomic_load_n(&feed->taken, __ATOMIC_RELAXED) ||
         __atomic_load_n(&feed->closed, __ATOMIC_RELAXED);
}
// Nothing calls a thread out of its kernel while it has the lock.
static void lw_feed_lock(lw_feed* feed, sigset_t* before) {
  sigset_t urgent;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_BLOCK, &urgent, before);
  pthread_mutex_lock(&feed->guard);
}
static void lw_feed_unlock(lw_feed* feed, const sigset_t* before) {
  pthread_mutex_unlock(&feed->guard);
  pthread_sigmask(SIG_SETMASK, before, nullptr);
}
static void lw_feed_wait(lw_feed* feed) {
  sigset_t before;
  lw_feed_lock(feed, &before);
  while (!lw_feed_stirs(feed)) pthread_cond_wait(&feed->arrival, &feed->guard);
  lw_feed_unlock(feed, &before);
}

// A run over all examples, and one thread's share of it: a few examples at a time, so many that taking them costs
// little, so few that no thread has much left when the others have nothing.
struct lw_run {
  void** arguments;
  long long examples, lane_bytes;
  // The frames of a stack, the threads, and the most lanes that each may have under way.
  int capacity, threads, lanes;
  unsigned long long next, done;
  // Whether a thread adds its sums to those of all. If an interrupt may end the run: how many had come before it, and
  // what runs a thread's part so.
  int adding, begun;
  void (*stoppable)(void (*work)(void*), void* data, int begun);
  lw_feed* feed;
};
// What a thread has, for one lane.
struct lw_thread {
  lw_run* run;
  char *scratch, *sums;
};
// Set when better code has taken over from this: threads take no more examples here.
static int lw_superseded;
struct lw_share {
  lw_run* run;
  long long at, end, chunk, since, held;
  void (*idle)();  // what to do while there is no example; none: to wait
};
#define LW_IDLE nullptr
// The next example of a feed, and word that the last one has ended.
static long long lw_fed(lw_share* share) {
  lw_run* run = share->run;
  lw_feed* feed = run->feed;
  for (long long next = -1;;) {
    sigset_t before;
    lw_feed_lock(feed, &before);
    if (share->held) {
      feed->ended[feed->gone++ % feed->size] = share->at;
      if (feed->gone - feed->reported >= feed->enough) pthread_cond_signal(&feed->end);
    }
    share->held = 0;
    const bool over = __atomic_load_n(&lw_superseded, __ATOMIC_RELAXED) || feed->closed;
    if (!over && feed->come != feed->taken) next = feed->waiting[feed->taken++ % feed->size];
    lw_feed_unlock(feed, &before);
    if (over) return run->examples;
    if (next >= 0) {
      share->held = 1;
      return share->at = next;
    }
    if (share->idle) share->idle();
    else lw_feed_wait(feed);
  }
}
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
  if (share->run->feed) return lw_fed(share);
  if (share->at == share->end) lw_take(share);
  return share->at == share->end ? share->run->examples : share->at++;
}
#endif

// A kernel that can be stopped asks where its loops pause, and now and then: the answer lies far away. (Threads of a
// host are called out of their kernels by a signal, see `foreign.py`.)
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

# The larger or the smaller: a NaN on either side is the answer, and -0 is below 0. Where numbers below the normal range
# are taken for zero they count as equal, and their signs decide. No test waits for another: one would be a branch.
_EXTREMUM = r"""
template <class T> LW_FUNCTION T lw_NAME(T a, T b) { return a BETTER b ? a : b; }
LW_FUNCTION float32 lw_NAME(float32 a, float32 b) {
  const bool equal = (a == b) & (lw_bits<int32>(a) BETTER lw_bits<int32>(b));
  return (a BETTER b) | (a != a) | equal ? a : b;
}
LW_FUNCTION float64 lw_NAME(float64 a, float64 b) {
  const bool equal = (a == b) & (lw_bits<int64>(a) BETTER lw_bits<int64>(b));
  return (a BETTER b) | (a != a) | equal ? a : b;
}"""

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
  // Have the elements of an array that is as large, and that one these.
  LW_MEMBER void exchange(lw_strided& other) { T* const own = first; first = other.first; other.first = own; }
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
        "lw_unsigned": r"""
// The type integer arithmetic wraps in.
template <class T> struct lw_unsigned { typedef uint32 type; };
template <> struct lw_unsigned<int64> { typedef uint64 type; };
template <> struct lw_unsigned<uint64> { typedef uint64 type; };""",
        "lw_lowest": r"""
// The least value of an integer type.
template <class T> LW_FUNCTION T lw_lowest() {
  return T(-1) < T(0) ? T(T(1) << (8 * sizeof(T) - 1)) : T(0);
}""",
        "lw_add": r"""
template <class T> LW_FUNCTION T lw_add(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) + U(b));
}""",
        "lw_sub": r"""
template <class T> LW_FUNCTION T lw_sub(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) - U(b));
}""",
        "lw_mul": r"""
template <class T> LW_FUNCTION T lw_mul(T a, T b) {
  typedef typename lw_unsigned<T>::type U;
  return T(U(a) * U(b));
}""",
        "lw_neg": r"""
template <class T> LW_FUNCTION T lw_neg(T a) { return lw_sub(T(0), a); }""",
        "lw_abs_int": r"""
template <class T> LW_FUNCTION T lw_abs_int(T a) { return a < T(0) ? lw_sub(T(0), a) : a; }""",
        "lw_div": r"""
// Integers: by zero gives all ones; the least number by -1 wraps.
template <class T> LW_FUNCTION T lw_div(T a, T b) {
  if (b == T(0)) return T(-1);
  if (T(-1) < T(0) && b == T(-1)) return lw_sub(T(0), a);
  return T(a / b);
}""",
        "lw_rem": r"""
template <class T> LW_FUNCTION T lw_rem(T a, T b) {
  if (b == T(0)) return a;
  if (T(-1) < T(0) && b == T(-1)) return T(0);
  return T(a % b);
}""",
        "lw_div_power": r"""
// By a power of two: a negative number is rounded towards zero.
template <int log, class T> LW_FUNCTION T lw_div_power(T a) {
  const T below = a >> (8 * sizeof(T) - 1) & T((T(1) << log) - 1);
  return lw_add(a, below) >> log;
}""",
        "lw_rem_power": r"""
template <int log, class T> LW_FUNCTION T lw_rem_power(T a) {
  return lw_sub(a, lw_mul(lw_div_power<log>(a), T(T(1) << log)));
}""",
        "lw_max": _EXTREMUM.replace("NAME", "max").replace("BETTER", ">"),
        "lw_min": _EXTREMUM.replace("NAME", "min").replace("BETTER", "<"),
        "lw_clamp": r"""
template <class T> LW_FUNCTION T lw_clamp(T low, T a, T high) { return lw_min(lw_max(a, low), high); }""",
        "lw_sign": r"""
template <class T> LW_FUNCTION T lw_sign(T a) { return a > T(0) ? T(1) : a < T(0) ? T(-1) : a; }""",
        "lw_shift_left": r"""
// Shifting by the width or more leaves nothing, or the sign.
template <class T, class U> LW_FUNCTION T lw_shift_left(T a, U by) {
  typedef typename lw_unsigned<T>::type W;
  return uint64(by) < 8 * sizeof(T) ? T(W(a) << by) : T(0);
}""",
        "lw_shift_right": r"""
template <class T, class U> LW_FUNCTION T lw_shift_right(T a, U by) {
  return uint64(by) < 8 * sizeof(T) ? T(a >> by) : a < T(0) ? T(-1) : T(0);
}""",
        "lw_is_finite": r"""
// Only a finite number less itself is zero.
template <class T> LW_FUNCTION bool lw_is_finite(T a) { return a - a == T(0); }""",
        "lw_part": r"""
// One piece of a value's bits, lowest first.
template <class To, class From> LW_FUNCTION To lw_part(From from, int index) {
  To parts[sizeof(From) / sizeof(To)];
  memcpy(parts, &from, sizeof(from));
  return parts[index];
}""",
        "lw_whole": r"""
// A value from the pieces of its bits, lowest first.
template <class To, class From, class... Rest> LW_FUNCTION To lw_whole(From first, Rest... rest) {
  const From parts[] = {first, rest...};
  To to;
  memcpy(&to, parts, sizeof(to));
  return to;
}""",
        "lw_to_int": r"""
// Floating point to integer: what is out of range saturates, NaN is zero.
template <class T> LW_FUNCTION T lw_to_int(float64 a) {
  const bool is_signed = T(-1) < T(0);
  const float64 top = is_signed ? 9223372036854775808.0 : 18446744073709551616.0;
  const int spare = 64 - 8 * int(sizeof(T));
  const float64 limit = top / float64(1ull << spare);
  const T low = lw_lowest<T>();
  if (a != a) return T(0);
  if (a >= limit) return T(~low);
  if (a <= (is_signed ? -limit : 0.0)) return low;
  return T(a);
}
template <class T> LW_FUNCTION T lw_to_int(float32 a) {
  const bool is_signed = T(-1) < T(0);
  const float32 top = is_signed ? 9223372036854775808.0f : 18446744073709551616.0f;
  const int spare = 64 - 8 * int(sizeof(T));
  const float32 limit = top / float32(1ull << spare);
  const T low = lw_lowest<T>();
  if (a != a) return T(0);
  if (a >= limit) return T(~low);
  if (a <= (is_signed ? -limit : 0.0f)) return low;
  return T(a);
}""",
        "lw_popcount": r"""
template <class T> LW_FUNCTION T lw_popcount(T a) {
  typedef typename lw_unsigned<T>::type U;
  uint64 bits = U(a) & (~uint64(0) >> (64 - 8 * sizeof(T)));
#ifdef __CUDACC__
  return T(__popcll(bits));
#else
  return T(__builtin_popcountll(bits));
#endif
}""",
        "lw_clz": r"""
template <class T> LW_FUNCTION T lw_clz(T a) {
  typedef typename lw_unsigned<T>::type U;
  uint64 bits = U(a) & (~uint64(0) >> (64 - 8 * sizeof(T)));
  const int spare = 64 - 8 * int(sizeof(T));
#ifdef __CUDACC__
  return T(__clzll(bits) - spare);
#else
  return T((bits ? __builtin_clzll(bits) : 64) - spare);
#endif
}""",
        "lw_choose": r"""
// The operand at an index.
template <class T> LW_FUNCTION T lw_choose(int32, T last) { return last; }
template <class T, class... Rest> LW_FUNCTION T lw_choose(int32 index, T first, Rest... rest) {
  return index <= 0 ? first : lw_choose<T>(index - 1, rest...);
}""",
        "lw_product": r"""
// What powers multiply by: integers wrap, and 16-bit floats are rounded each time.
template <class T> LW_FUNCTION T lw_product(T a, T b) { return T(a * b); }
LW_FUNCTION int8 lw_product(int8 a, int8 b) { return lw_mul(a, b); }
LW_FUNCTION int16 lw_product(int16 a, int16 b) { return lw_mul(a, b); }
LW_FUNCTION int32 lw_product(int32 a, int32 b) { return lw_mul(a, b); }
LW_FUNCTION int64 lw_product(int64 a, int64 b) { return lw_mul(a, b); }
LW_FUNCTION uint8 lw_product(uint8 a, uint8 b) { return lw_mul(a, b); }
LW_FUNCTION uint16 lw_product(uint16 a, uint16 b) { return lw_mul(a, b); }""",
        "lw_power": r"""
// A power with a known exponent, by squaring. It is no loop: one inside of a loop over an array keeps that from being
// vector code.
template <int n, class T> LW_FUNCTION T lw_power_times(T result, T a) {
  if constexpr (n == 0) return result;
  else return lw_power_times<(n >> 1)>(n & 1 ? lw_product(result, a) : result, lw_product(a, a));
}
template <int n, class T> LW_FUNCTION T lw_power(T a) {
  if constexpr (n == 0) return T(1);
  else if constexpr (n & 1) return lw_power_times<(n >> 1)>(a, lw_product(a, a));
  else return lw_power<(n >> 1)>(lw_product(a, a));
}""",
        "lw_int_pow": r"""
// Integers to an integer power; a negative power of anything but 1 and -1 is zero.
template <class T, class E> LW_FUNCTION T lw_int_pow(T a, E exponent) {
  T result = T(1);
  if (exponent < E(0)) return a == T(1) ? T(1) : T(-1) < T(0) && a == T(-1) ? (exponent & E(1) ? a : T(1)) : T(0);
  for (uint64 left = uint64(exponent); left; left >>= 1) {
    if (left & 1) result = lw_mul(result, a);
    a = lw_mul(a, a);
  }
  return result;
}""",
        "lw_rsqrt": r"""
LW_FUNCTION float32 lw_rsqrt(float32 a) { return 1.0f / sqrtf(a); }
LW_FUNCTION float64 lw_rsqrt(float64 a) { return 1.0 / sqrt(a); }""",
        "lw_reduce_precision": r"""
// Rounds to fewer bits of mantissa and exponent, half to even.
template <int exponent_bits, int mantissa_bits> LW_FUNCTION float32 lw_reduce_precision(float32 a) {
  if (a != a) return a;
  uint32 bits = lw_bits<uint32>(a);
  const uint32 sign = bits & 0x80000000u;
  bits &= 0x7fffffffu;
  if (mantissa_bits < 23 && bits < 0x7f800000u) {
    const int drop = mantissa_bits < 23 ? 23 - mantissa_bits : 1;
    bits += ((1u << (drop - 1)) - 1) + ((bits >> drop) & 1u);
    bits &= ~((1u << drop) - 1);
  }
  if (exponent_bits < 8) {
    const uint32 bias = (1u << (exponent_bits - 1)) - 1;
    const int kept = mantissa_bits < 23 ? mantissa_bits : 23;
    const uint32 top = (127u + bias) << 23 | (0x7fffffu & ~((1u << (23 - kept)) - 1));
    const uint32 least = (127u - bias + 1u) << 23;
    if (bits > top) bits = 0x7f800000u;
    else if (bits < least) bits = 0u;
  }
  return lw_bits<float32>(bits | sign);
}
template <int exponent_bits, int mantissa_bits> LW_FUNCTION float64 lw_reduce_precision(float64 a) {
  if (a != a) return a;
  uint64 bits = lw_bits<uint64>(a);
  const uint64 sign = bits & 0x8000000000000000ull;
  bits &= 0x7fffffffffffffffull;
  if (mantissa_bits < 52 && bits < 0x7ff0000000000000ull) {
    const int drop = mantissa_bits < 52 ? 52 - mantissa_bits : 1;
    bits += ((1ull << (drop - 1)) - 1) + ((bits >> drop) & 1ull);
    bits &= ~((1ull << drop) - 1);
  }
  if (exponent_bits < 11) {
    const uint64 bias = (1ull << (exponent_bits - 1)) - 1;
    const int kept = mantissa_bits < 52 ? mantissa_bits : 52;
    const uint64 top = (1023ull + bias) << 52 | (0xfffffffffffffull & ~((1ull << (52 - kept)) - 1));
    const uint64 least = (1023ull - bias + 1ull) << 52;
    if (bits > top) bits = 0x7ff0000000000000ull;
    else if (bits < least) bits = 0ull;
  }
  return lw_bits<float64>(bits | sign);
}""",
    }
)
