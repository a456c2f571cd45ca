"""Programs by hand for the GPU: CUDA C, a thread for each lane, compiled and launched by CuPy.

A kernel takes pointers to the program's arguments in their order (keys as pairs of words, what all lanes
share as an array like any other), then pointers to its answers, then the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from control.iteration import KEPLER_TOLERANCE, KEPLER_TRIES
from control.recursion import SIMPSON_DEPTH

THREADS = 128
STACK_SIZE_LIMIT = 0  # CUDA's number for the limit on a thread's stack


@dataclass(frozen=True)
class CudaLimit:
    """A kernel's source; the types of its answers, and the stack that its recursion needs."""

    source: str
    answers: tuple[type[np.generic], ...]
    stack_bytes: int = 0


# The kernel of a program from one int to one int, after the source of `one_lane`.
FOR_EACH_NUMBER = r"""
extern "C" __global__ void limit(const int* numbers, int* out, int lanes) {
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane < lanes) out[lane] = one_lane(numbers[lane]);
}
"""

ESCAPE_TIME = r"""
extern "C" __global__ void limit(const float* real, const float* imaginary, const int* most,
                                 int* out, int lanes) {
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane >= lanes) return;
  float x = 0.f, y = 0.f, re = real[lane], im = imaginary[lane];
  int count = 0, bound = *most;
  while (x * x + y * y <= 4.f && count < bound) {
    float next = x * x - y * y + re;
    y = 2.f * x * y + im;
    x = next;
    ++count;
  }
  out[lane] = count;
}
"""

COLLATZ = (
    r"""
__device__ __forceinline__ int one_lane(int n) {
  int steps = 0;
  while (n != 1) {
    n = (n & 1) ? 3 * n + 1 : n >> 1;
    ++steps;
  }
  return steps;
}
"""
    + FOR_EACH_NUMBER
)

GCD = (
    r"""
__device__ __forceinline__ int one_lane(int n) {
  int found = 0;
  for (int k = 1; k < n; ++k) {
    unsigned a = n, b = k;
    while (b != 0) {
      unsigned rest = a % b;
      a = b;
      b = rest;
    }
    found += a == 1;
  }
  return found;
}
"""
    + FOR_EACH_NUMBER
)

NEWTON = rf"""
extern "C" __global__ void limit(const float* means, const float* eccentricities,
                                 float* out, int lanes) {{
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane >= lanes) return;
  float mean = means[lane], e = eccentricities[lane];
  float angle = mean, step = 1.f;
  for (int tries = 0; fabsf(step) > {KEPLER_TOLERANCE}f && tries < {KEPLER_TRIES}; ++tries) {{
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    step = (angle - e * sine - mean) / (1.f - e * cosine);
    angle -= step;
  }}
  out[lane] = angle;
}}
"""

BISECTION = r"""
__device__ float gamma_share(float shape, float x, float log_norm) {
  float term = 1.f, total = 1.f, below = shape;
  while (term > 1e-6f * total) {
    below += 1.f;
    term = term * x / below;
    total += term;
  }
  return total * expf(shape * logf(x) - x - log_norm);
}

extern "C" __global__ void limit(const float* shapes, const float* shares, const float* tolerances,
                                 float* out, int lanes) {
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane >= lanes) return;
  float shape = shapes[lane], share = shares[lane], tolerance = tolerances[lane];
  float log_norm = lgammaf(shape + 1.f), low = 0.f, high = shape;
  while (gamma_share(shape, high, log_norm) < share) {
    low = high;
    high = 2.f * high;
  }
  while (high - low > tolerance * high) {
    float middle = 0.5f * (low + high);
    if (gamma_share(shape, middle, log_norm) < share) low = middle;
    else high = middle;
  }
  out[lane] = 0.5f * (low + high);
}
"""

FIBONACCI = (
    r"""
__device__ __noinline__ int one_lane(int n) {
  return n <= 1 ? n : one_lane(n - 1) + one_lane(n - 2);
}
"""
    + FOR_EACH_NUMBER
)

SIMPSON = rf"""
__device__ float resonance(float x, float centre, float width) {{
  float away = (x - centre) / width;
  return 1.f / (1.f + away * away) + 0.1f * sinf(5.f * x);
}}

__device__ float simpson(float low, float high, float f_low, float f_middle, float f_high) {{
  return (high - low) / 6.f * (f_low + 4.f * f_middle + f_high);
}}

__device__ __noinline__ float refine(float low, float high, float f_low, float f_middle, float f_high,
                                     float whole, float tolerance, int depth, float centre,
                                     float width) {{
  float middle = 0.5f * (low + high);
  float f_left = resonance(0.5f * (low + middle), centre, width);
  float f_right = resonance(0.5f * (middle + high), centre, width);
  float left = simpson(low, middle, f_low, f_left, f_middle);
  float right = simpson(middle, high, f_middle, f_right, f_high);
  float error = left + right - whole;
  if (depth == 0 || fabsf(error) <= 15.f * tolerance) return left + right + error / 15.f;
  float half = 0.5f * tolerance;
  float first = refine(low, middle, f_low, f_left, f_middle, left, half, depth - 1, centre, width);
  return first
      + refine(middle, high, f_middle, f_right, f_high, right, half, depth - 1, centre, width);
}}

extern "C" __global__ void limit(const float* centres, const float* widths, const float* tolerances,
                                 float* out, int lanes) {{
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane >= lanes) return;
  float centre = centres[lane], width = widths[lane];
  float f_low = resonance(0.f, centre, width), f_middle = resonance(0.5f, centre, width);
  float f_high = resonance(1.f, centre, width);
  float whole = simpson(0.f, 1.f, f_low, f_middle, f_high);
  out[lane] = refine(0.f, 1.f, f_low, f_middle, f_high, whole, tolerances[lane], {SIMPSON_DEPTH},
                     centre, width);
}}
"""

THREEFRY = r"""
__device__ __forceinline__ void rounds(unsigned& x, unsigned& y, int a, int b, int c, int d) {
  x += y; y = __funnelshift_l(y, y, a) ^ x;
  x += y; y = __funnelshift_l(y, y, b) ^ x;
  x += y; y = __funnelshift_l(y, y, c) ^ x;
  x += y; y = __funnelshift_l(y, y, d) ^ x;
}

// Twenty rounds of Threefry on two words, as jax.random has it.
__device__ __forceinline__ uint2 threefry(uint2 key, unsigned x, unsigned y) {
  unsigned third = key.x ^ key.y ^ 0x1BD11BDAu;
  x += key.x; y += key.y;
  rounds(x, y, 13, 15, 26, 6);
  x += key.y; y += third + 1u;
  rounds(x, y, 17, 29, 16, 24);
  x += third; y += key.x + 2u;
  rounds(x, y, 13, 15, 26, 6);
  x += key.x; y += key.y + 3u;
  rounds(x, y, 17, 29, 16, 24);
  x += key.y; y += third + 4u;
  rounds(x, y, 13, 15, 26, 6);
  return make_uint2(x + third, y + key.x + 5u);
}

__device__ __forceinline__ unsigned bits(uint2 key, unsigned index) {
  uint2 both = threefry(key, 0u, index);
  return both.x ^ both.y;
}

__device__ __forceinline__ float uniform(uint2 key, unsigned index) {
  return (bits(key, index) >> 9) * 1.1920928955078125e-7f;
}
"""

REJECTION = (
    THREEFRY
    + r"""
extern "C" __global__ void limit(const uint2* keys, const float* centres, const float* sharpnesses,
                                 float* draws, int* counts, int lanes) {
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane >= lanes) return;
  uint2 key = keys[lane];
  float centre = centres[lane], sharpness = sharpnesses[lane], draw, away;
  int tries = 0;
  uint2 sub;
  do {
    ++tries;
    sub = threefry(key, 0u, 1u);
    key = threefry(key, 0u, 0u);
    draw = uniform(sub, 0u);
    away = draw - centre;
  } while (uniform(sub, 1u) >= expf(-sharpness * away * away));
  draws[lane] = draw;
  counts[lane] = tries;
}
"""
)

WALKS = (
    THREEFRY
    + r"""
extern "C" __global__ void limit(const uint2* keys, const int* radii, int* xs, int* ys, int* ts,
                                 int lanes) {
  int lane = blockIdx.x * blockDim.x + threadIdx.x;
  if (lane >= lanes) return;
  uint2 key = keys[lane];
  int x = 0, y = 0, t = 0, radius = radii[lane];
  while (x * x + y * y < radius * radius) {
    unsigned way = bits(threefry(key, 0u, t), 0u) >> 30;
    if (way == 0) ++x;
    else if (way == 1) --x;
    else if (way == 2) ++y;
    else --y;
    ++t;
  }
  xs[lane] = x;
  ys[lane] = y;
  ts[lane] = t;
}
"""
)

LIMITS: dict[str, CudaLimit] = {
    "escape_time": CudaLimit(ESCAPE_TIME, (np.int32,)),
    "collatz": CudaLimit(COLLATZ, (np.int32,)),
    "gcd": CudaLimit(GCD, (np.int32,)),
    "newton_hard_starts": CudaLimit(NEWTON, (np.float32,)),
    "bisection_tolerance": CudaLimit(BISECTION, (np.float32,)),
    "recursive_fibonacci": CudaLimit(FIBONACCI, (np.int32,), stack_bytes=4096),
    "recursive_simpson": CudaLimit(SIMPSON, (np.float32,), stack_bytes=8192),
    "rejection": CudaLimit(REJECTION, (np.float32, np.int32)),
    "random_walks": CudaLimit(WALKS, (np.int32, np.int32, np.int32)),
}


def prepare(limit: CudaLimit, arguments: Sequence[np.ndarray], lanes: int) -> Callable[..., Any]:
    """The kernel with its arguments on the device: a call launches it and waits for its answers."""
    import cupy

    if limit.stack_bytes:
        cupy.cuda.runtime.deviceSetLimit(STACK_SIZE_LIMIT, limit.stack_bytes)
    kernel = cupy.RawKernel(limit.source, "limit")
    inputs = tuple(cupy.asarray(argument) for argument in arguments)
    answers = tuple(cupy.empty(lanes, dtype) for dtype in limit.answers)
    grid = ((lanes + THREADS - 1) // THREADS,)

    def run(*_: Any) -> Any:
        kernel(grid, (THREADS,), (*inputs, *answers, np.int32(lanes)))
        cupy.cuda.get_current_stream().synchronize()
        return answers

    return run
