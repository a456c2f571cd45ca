"""Kernels launched by XLA itself, without Python on the way.

A call of Python on XLA's thread is a cost beside kernels that run for a tenth of a millisecond. So where the host has a
C++ compiler, a small library is made of the text below, once for all kernels, and XLA's foreign-function interface
calls it with the buffers and the stream it has: it clears the counter and launches.

A compiled computation may outlive this process (JAX can keep it on disk), and a kernel's address does not. So a call
names its kernel by a hash of its text; which kernel that is, the library is told when the kernel is loaded, which
tracing a program does in every process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import LanewiseError
from lanewise.cpp.toolchain import host
from lanewise.cpp.toolchain.ffi import CALLS

TARGET = "lanewise_launch"

_LAUNCHER = r"""
struct lw_kernel {
  long long key;
  void *function, *context;
};
static lw_kernel* lw_kernels;
static long lw_count;
static pthread_mutex_t lw_guard = PTHREAD_MUTEX_INITIALIZER;

static int (*lw_set_context)(void*);
static int (*lw_clear)(void*, unsigned, size_t, void*);
static int (*lw_start)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                       void**);

extern "C" void lanewise_driver(void* set_context, void* clear, void* start) {
  lw_set_context = (int (*)(void*))set_context;
  lw_clear = (int (*)(void*, unsigned, size_t, void*))clear;
  lw_start = (int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                      void**))start;
}

extern "C" int lanewise_keep(long long key, void* function, void* context) {
  pthread_mutex_lock(&lw_guard);
  lw_kernel* more = (lw_kernel*)realloc(lw_kernels, (lw_count + 1) * sizeof(lw_kernel));
  if (more) {
    lw_kernels = more;
    lw_kernels[lw_count].key = key;
    lw_kernels[lw_count].function = function;
    lw_kernels[lw_count++].context = context;
  }
  pthread_mutex_unlock(&lw_guard);
  return more != nullptr;
}

// The latest that was kept under this key.
static lw_kernel lw_find(long long key) {
  lw_kernel found = {0, nullptr, nullptr};
  pthread_mutex_lock(&lw_guard);
  for (long i = lw_count - 1; i >= 0 && !found.function; --i)
    if (lw_kernels[i].key == key) found = lw_kernels[i];
  pthread_mutex_unlock(&lw_guard);
  return found;
}

extern "C" XLA_FFI_Error* lanewise_launch(XLA_FFI_CallFrame* frame) {
  if (lw_asks_version(frame)) return nullptr;
  const lw_kernel kernel = lw_find(lw_attribute(frame, "key"));
  if (!kernel.function)
    return lw_failed(frame, XLA_FFI_Error_Code_INTERNAL, "lanewise: the kernel was not loaded by this process");
  XLA_FFI_Stream_Get_Args where = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Stream_Get(&where)) return error;

  const int given = frame->args.size, made = frame->rets.size;
  void* buffers[given + made];
  void* arguments[given + made + 2];
  for (int i = 0; i < given; ++i) buffers[i] = ((XLA_FFI_Buffer*)frame->args.args[i])->data;
  for (int i = 0; i < made; ++i) buffers[given + i] = ((XLA_FFI_Buffer*)frame->rets.rets[i])->data;
  for (int i = 0; i < given + made; ++i) arguments[i] = &buffers[i];
  long long examples = lw_attribute(frame, "examples");
  int capacity = lw_attribute(frame, "capacity");
  arguments[given + made] = &examples;
  arguments[given + made + 1] = &capacity;
  if (lw_set_context(kernel.context) || lw_clear(buffers[given + made - 2], 0, 2, where.stream) ||
      lw_start(kernel.function, lw_attribute(frame, "blocks"), 1, 1, lw_attribute(frame, "threads"), 1, 1, 0,
               where.stream, arguments, nullptr))
    return lw_failed(frame, XLA_FFI_Error_Code_INTERNAL, "lanewise: CUDA does not launch the kernel");
  return nullptr;
}
"""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The launcher, known to XLA; None where there is no compiler to make it."""
    try:
        made = host.load(CALLS + _LAUNCHER, (*host.FLAGS, f"-I{jax.ffi.include_dir()}"))
        driver = ctypes.CDLL("libcuda.so.1")
    except (LanewiseError, OSError):
        return None
    wanted = (driver.cuCtxSetCurrent, driver.cuMemsetD32Async, driver.cuLaunchKernel)
    made.lanewise_driver(*(ctypes.cast(function, ctypes.c_void_p) for function in wanted))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(made.lanewise_launch), platform="CUDA")
    return made


def key_of(text: str) -> int:
    """What a call names its kernel by."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def keep(text: str, function: int, context: int) -> None:
    """Tell the launcher which kernel a text has become."""
    made = library()
    if made is not None and not made.lanewise_keep(
        ctypes.c_longlong(key_of(text)), ctypes.c_void_p(function), ctypes.c_void_p(context)
    ):
        raise MemoryError


def call(
    text: str,
    results: Sequence[jax.ShapeDtypeStruct],
    arguments: Sequence[Any],
    *,
    blocks: int,
    threads: int,
    examples: int,
    capacity: int,
    aliases: dict[int, int] | None = None,
) -> Sequence[Any]:
    """The launch as traceable code: a kernel's buffers after the run. Of `aliases`, arguments are written over."""
    run = jax.ffi.ffi_call(TARGET, results, input_output_aliases=aliases)
    numbers = {"blocks": blocks, "threads": threads, "examples": examples, "capacity": capacity}
    return run(
        *arguments,
        key=np.int64(key_of(text)),
        **{name: np.int64(value) for name, value in numbers.items()},
    )
