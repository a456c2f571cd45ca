"""A kernel's text as a call inside XLA on the CPU: the path `C++` of the carrier `native`.

The host's compiler makes a library of the same text that a GPU gets; XLA's foreign-function interface calls it inside
`jit`, on the buffers XLA holds. Examples are spread over XLA's own threads by the kernel's counter. Nobody waits for a
thread to wake up: lanes are taken by whoever comes first, and the thread that XLA calls on comes back for those that
are left. So a short run costs what it costs on that thread, and a machine with others at work loses nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.errors import OptionError
from lanewise.machine.kernel import host
from lanewise.machine.kernel.emit import Emitted

_ENTRY = r"""
#include <cfenv>
#include <condition_variable>
#include <memory>
#include <mutex>
#include "xla/ffi/api/c_api.h"

static long long lw_attribute(XLA_FFI_CallFrame* frame, const char* name) {
  for (int i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan* span = frame->attrs.names[i];
    if (strlen(name) == span->len && !strncmp(name, span->ptr, span->len))
      return *(const long long*)((const XLA_FFI_Scalar*)frame->attrs.attrs[i])->value;
  }
  return 0;
}

// Outlives the call: a thread may come when all lanes are taken.
struct lw_shared_run {
  vector<void*> arguments;
  long long examples;
  int capacity, lanes, done = 0;
  atomic<int> next_lane{0};
  fenv_t rounding;
  mutex guard;
  condition_variable all_done;

  void take_lanes() {
    for (int lane; (lane = next_lane.fetch_add(1)) < lanes;) {
      lanewise_lane(arguments.data(), examples, capacity, lane, lanes);
      lock_guard<mutex> held(guard);
      if (++done == lanes) all_done.notify_all();
    }
  }
  void wait() {
    unique_lock<mutex> held(guard);
    all_done.wait(held, [this] { return done == lanes; });
  }
};

static void lw_help(void* data) {
  unique_ptr<shared_ptr<lw_shared_run>> run((shared_ptr<lw_shared_run>*)data);
  fenv_t own;
  fegetenv(&own);
  fesetenv(&(*run)->rounding);
  (*run)->take_lanes();
  fesetenv(&own);
}

static bool lw_call_for_help(XLA_FFI_CallFrame* frame, const shared_ptr<lw_shared_run>& run) {
  auto* held = new shared_ptr<lw_shared_run>(run);
  XLA_FFI_ThreadPool_Schedule_Args task = {
      XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, frame->ctx, lw_help, held};
  XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_Schedule(&task);
  if (!error) return true;
  delete held;
  XLA_FFI_Error_Destroy_Args about = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  frame->api->XLA_FFI_Error_Destroy(&about);
  return false;
}

extern "C" XLA_FFI_Error* lanewise_ffi(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* about = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
    about->api_version.major_version = XLA_FFI_API_MAJOR;
    about->api_version.minor_version = XLA_FFI_API_MINOR;
    return nullptr;
  }
  const int given = frame->args.size, made = frame->rets.size;
  const long long examples = lw_attribute(frame, "examples"), lane_bytes = lw_attribute(frame, "lane_bytes");
  auto run = make_shared<lw_shared_run>();
  vector<void*>& arguments = run->arguments;
  run->examples = examples;
  run->capacity = lw_attribute(frame, "capacity");
  run->lanes = min(examples, lw_attribute(frame, "threads"));
  for (int i = 0; i < given; ++i) arguments.push_back(((XLA_FFI_Buffer*)frame->args.args[i])->data);
  for (int i = 0; i < made; ++i) arguments.push_back(((XLA_FFI_Buffer*)frame->rets.rets[i])->data);
  float32* totals = (float32*)arguments.back();
  arguments.pop_back();
  vector<long long> steps(examples);
  vector<int> deepest(examples);
  unsigned long long next = 0;
  char* scratch = (char*)malloc(lane_bytes * run->lanes + 16);
  arguments.insert(arguments.end(), {steps.data(), deepest.data(), &next, scratch});
  fegetenv(&run->rounding);
  for (int lane = 1; lane < run->lanes && lw_call_for_help(frame, run); ++lane) {}
  run->take_lanes();
  run->wait();
  free(scratch);
  float64 all = 0;
  int most = 0;
  for (long long i = 0; i < examples; ++i) {
    all += steps[i];
    most = deepest[i] > most ? deepest[i] : most;
  }
  totals[0] = all;
  totals[1] = most;
  return nullptr;
}
"""


def available() -> bool:
    """Whether there is a C++ compiler to make kernels for the host with."""
    try:
        host.compiler()
    except OptionError:
        return False
    return True


@functools.lru_cache(maxsize=512)
def _target(text: str) -> str:
    """Compile and register a kernel; gives the name XLA knows it by."""
    flags = (*host.FLAGS, f"-I{jax.ffi.include_dir()}")
    library = host.load(text + _ENTRY, flags)
    name = "lanewise_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.lanewise_ffi), platform="cpu")
    return name


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def call(
    emitted: Emitted, operands: Sequence[Any], examples: int, capacity: int
) -> tuple[list[Any], Any, Any, Any]:
    """Answers, codes, sites, and (all steps, most frames), as traceable code for the CPU."""
    results = [
        *(jax.ShapeDtypeStruct((examples, *out.shape), out.dtype) for out in emitted.outputs),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((2,), jnp.float32),
    ]
    run = jax.ffi.ffi_call(_target(emitted.text), results)
    *answers, code, site, totals = run(
        *operands,
        *emitted.constants,
        examples=np.int64(examples),
        capacity=np.int64(capacity),
        lane_bytes=np.int64(emitted.scratch_bytes(capacity)),
        threads=np.int64(cores()),
    )
    return answers, code, site, totals
