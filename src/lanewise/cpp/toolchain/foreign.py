"""A kernel's text as a call inside XLA on the CPU: the path `C++` of the carrier `native`.

The host's compiler makes a library of the same text that a GPU gets; XLA's foreign-function interface calls it inside
`jit`, on the buffers XLA holds. Examples are spread over XLA's own threads by the kernel's counter. Nobody waits for a
thread to wake up: whoever comes takes examples until none is left, the thread that XLA calls on as well. So a short run
costs what it costs on that thread, and a machine with others at work loses nothing.

For `Stats` the time of the threads that came is added up: how long each had examples, and how long the run went on from
when it came. One that comes late, or not at all, has lost the run a core, but no lane waits there.

An interrupt ends what runs. Python runs a signal's handler between two of its own instructions, and while XLA runs a
kernel there are none: XLA calls it on the very thread that called XLA, or that thread waits. So while a kernel runs
outside `jit` on the main thread, the handler in C is ours. It does what Python's does and counts the signal, then sends
`SIGURG` to the threads that run lanes, whose handler jumps out of the kernel. A kernel only computes: it holds no lock
and owns no memory, so it can be left anywhere, and its loops pay nothing. (`SIGURG` does nothing unless asked for; Go's
runtime takes threads out of their loops with it, for the same reason.) The call then fails with `CUT`, and Python has
its turn: as a rule its handler raises `KeyboardInterrupt`. If it does not, because the program has a handler of its
own, the run starts again: nobody ever sees what a run that was cut short has computed. Runs on other threads are cut
short, and start again, too. What was considered: a flag that loops read costs short loops up to a third of their speed.
A thread that waits for XLA, with Python's main thread free to hear signals, costs each call a switch of threads, and
JAX's settings are a thread's own.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.core.errors import CompilerError, LanewiseError, OptionError
from lanewise.core.events import Site, Whole
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.meeting import MOST_LANES
from lanewise.cpp.toolchain import fed_run, host, signals
from lanewise.cpp.toolchain.ffi import CALLS

# The error of a call that was cut short.
CUT = "lanewise: interrupted"

_ENTRY = r"""
#include <fenv.h>

// Outlives the call: a thread may come when all examples are taken. `working` threads have some of them; `wanted` is
// how many more are to be called; `held` is who has a pointer to this.
struct lw_shared_run {
  lw_run run;
  XLA_FFI_CallFrame* frame;
  int working, wanted, held;
  long long busy, came, arrivals;  // threads that came, and, in nanoseconds, their work and the sum of when they came
  fenv_t rounding;
  pthread_mutex_t guard;
  pthread_cond_t idle;
};

static void lw_release(lw_shared_run* shared) {
  if (__atomic_sub_fetch(&shared->held, 1, __ATOMIC_ACQ_REL)) return;
  pthread_mutex_destroy(&shared->guard);
  pthread_cond_destroy(&shared->idle);
  free(shared);
}

static void lw_call_for_help(lw_shared_run* shared, int most);

static long long lw_now() {
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  return clock.tv_sec * 1000000000ll + clock.tv_nsec;
}

// What works on examples: this library's own function, until that of a better one takes over (`host.py`).
static void (*lw_worker)(lw_run*) = lanewise_work;

extern "C" void lanewise_take_over(void (*better)(lw_run*)) {
  __atomic_store_n(&lw_worker, better, __ATOMIC_RELEASE);
  __atomic_store_n(&lw_superseded, 1, __ATOMIC_RELEASE);
}

static void lw_work(lw_shared_run* shared) {
  const long long began = lw_now();
  void (*work)(lw_run*);
  do {
    work = __atomic_load_n(&lw_worker, __ATOMIC_ACQUIRE);
    work(&shared->run);
  } while (work != __atomic_load_n(&lw_worker, __ATOMIC_ACQUIRE));
  __atomic_add_fetch(&shared->busy, lw_now() - began, __ATOMIC_RELAXED);
  __atomic_add_fetch(&shared->arrivals, began, __ATOMIC_RELAXED);
  __atomic_add_fetch(&shared->came, 1, __ATOMIC_RELAXED);
}

static void lw_help(void* data) {
  lw_shared_run* shared = (lw_shared_run*)data;
  pthread_mutex_lock(&shared->guard);
  const bool late = (long long)__atomic_load_n(&shared->run.next, __ATOMIC_RELAXED) >= shared->run.examples;
  shared->working += !late;
  pthread_mutex_unlock(&shared->guard);
  if (!late) {
    fenv_t own;
    fegetenv(&own);
    fesetenv(&shared->rounding);
    lw_call_for_help(shared, 2);
    lw_work(shared);
    fesetenv(&own);
    pthread_mutex_lock(&shared->guard);
    if (!--shared->working) pthread_cond_signal(&shared->idle);
    pthread_mutex_unlock(&shared->guard);
  }
  lw_release(shared);
}

// Everyone who works calls two others: many threads are called in a short time, and by nobody for long.
static void lw_call_for_help(lw_shared_run* shared, int most) {
  const XLA_FFI_Api* api = shared->frame->api;
  for (; most && __atomic_fetch_sub(&shared->wanted, 1, __ATOMIC_RELAXED) > 0; --most) {
    __atomic_add_fetch(&shared->held, 1, __ATOMIC_RELAXED);
    XLA_FFI_ThreadPool_Schedule_Args task = {
        XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, shared->frame->ctx, lw_help, shared};
    XLA_FFI_Error* error = api->XLA_FFI_ThreadPool_Schedule(&task);
    if (!error) continue;
    XLA_FFI_Error_Destroy_Args about = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    api->XLA_FFI_Error_Destroy(&about);
    lw_release(shared);
    return;
  }
}

// The runs that are watched, by their numbers: a thread of Python asks how far they are.
struct lw_watched_run {
  int number;
  lw_run* run;
  lw_watched_run* after;
};
static lw_watched_run* lw_watched;
static pthread_mutex_t lw_watching = PTHREAD_MUTEX_INITIALIZER;

extern "C" long long lanewise_done(int number) {
  long long done = -1;
  pthread_mutex_lock(&lw_watching);
  for (lw_watched_run* one = lw_watched; one; one = one->after)
    if (one->number == number) done = __atomic_load_n(&one->run->done, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lw_watching);
  return done;
}

static void lw_watch(lw_watched_run* one) {
  pthread_mutex_lock(&lw_watching);
  one->after = lw_watched;
  lw_watched = one;
  pthread_mutex_unlock(&lw_watching);
}

static void lw_unwatch(lw_watched_run* one) {
  pthread_mutex_lock(&lw_watching);
  lw_watched_run** at = &lw_watched;
  while (*at != one) at = &(*at)->after;
  *at = one->after;
  pthread_mutex_unlock(&lw_watching);
}

static XLA_FFI_Error* lw_no_memory(XLA_FFI_CallFrame* frame) {
  return lw_failed(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                   "lanewise: no memory for a lane; set max_depth to fewer frames.");
}

// What the library of signals offers, if it was loaded before this.
extern "C" {
extern __attribute__((weak)) int lanewise_signals;
__attribute__((weak)) void lanewise_stoppable(void (*work)(void*), void* data, int begun);
}

extern "C" XLA_FFI_Error* lanewise_ffi(XLA_FFI_CallFrame* frame) {
  if (lw_asks_version(frame)) return nullptr;
  // Who watches gives the run's number, and may want the steps and frames of each example: then they are results.
  const bool watched = lw_attribute(frame, "watched"), each = lw_attribute(frame, "each");
  const int given = frame->args.size - watched, made = frame->rets.size - (each ? 3 : 1);
  const long long examples = lw_attribute(frame, "examples"), threads = lw_attribute(frame, "threads");
  long long* steps = (long long*)malloc(examples * sizeof(long long));
  int* deepest = each ? (int*)((XLA_FFI_Buffer*)frame->rets.rets[made + 2])->data
                      : (int*)malloc(examples * sizeof(int));
  lw_shared_run* shared = (lw_shared_run*)calloc(1, sizeof(lw_shared_run));
  if (!steps || !deepest || !shared) {
    free(steps);
    if (!each) free(deepest);
    free(shared);
    return lw_no_memory(frame);
  }
  void* arguments[given + made + 2];
  for (int i = 0; i < given; ++i) arguments[i] = ((XLA_FFI_Buffer*)frame->args.args[i])->data;
  for (int i = 0; i < made; ++i) arguments[given + i] = ((XLA_FFI_Buffer*)frame->rets.rets[i])->data;
  arguments[given + made] = steps;
  arguments[given + made + 1] = deepest;

  shared->run.arguments = arguments;
  shared->run.examples = examples;
  shared->run.lane_bytes = lw_attribute(frame, "lane_bytes");
  shared->run.capacity = lw_attribute(frame, "capacity");
  shared->run.threads = threads < examples ? threads : examples;
  shared->run.lanes = lw_attribute(frame, "lanes");
  const bool stops = lw_attribute(frame, "stops") && &lanewise_stoppable;
  shared->run.begun = stops ? __atomic_load_n(&lanewise_signals, __ATOMIC_RELAXED) : 0;
  shared->run.stoppable = stops ? lanewise_stoppable : nullptr;
  shared->frame = frame;
  shared->wanted = shared->run.threads - 1;
  shared->held = 1;
  fegetenv(&shared->rounding);
  pthread_mutex_init(&shared->guard, nullptr);
  pthread_cond_init(&shared->idle, nullptr);
  lw_watched_run seen = {watched ? *(int*)((XLA_FFI_Buffer*)frame->args.args[given])->data : 0, &shared->run, nullptr};
  if (watched) lw_watch(&seen);
  lw_call_for_help(shared, 2);
  lw_work(shared);
  pthread_mutex_lock(&shared->guard);
  while (shared->working) pthread_cond_wait(&shared->idle, &shared->guard);
  // A thread that has no memory for a lane takes no example. If none had, examples are left.
  const bool all_taken = (long long)shared->run.next >= examples;
  // Whoever comes from here on is late: the buffers of a run that failed or was cut short are not its own any more.
  __atomic_store_n(&shared->run.next, examples, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&shared->guard);
  const float64 busy = 1e-9 * shared->busy, room = 1e-9 * (lw_now() * shared->came - shared->arrivals);
  const bool cut = stops && __atomic_load_n(&lanewise_signals, __ATOMIC_RELAXED) != shared->run.begun;
  if (watched) lw_unwatch(&seen);
  lw_release(shared);

  float64 all = 0;
  int most = 0;
  for (long long i = 0; i < examples; ++i) {
    all += steps[i];
    most = deepest[i] > most ? deepest[i] : most;
  }
  if (each) {
    int* kept = (int*)((XLA_FFI_Buffer*)frame->rets.rets[made + 1])->data;
    for (long long i = 0; i < examples; ++i) kept[i] = steps[i] < 0x7fffffff ? steps[i] : 0x7fffffff;
  }
  float32* totals = (float32*)((XLA_FFI_Buffer*)frame->rets.rets[made])->data;
  totals[0] = all;
  totals[1] = most;
  totals[2] = busy;
  totals[3] = room;
  free(steps);
  if (!each) free(deepest);
  if (cut) return lw_failed(frame, XLA_FFI_Error_Code_CANCELLED, "lanewise: interrupted");
  return all_taken ? nullptr : lw_no_memory(frame);
}
"""


def obstacle() -> str | None:
    """Why there is no C++ compiler that makes kernels for the host; None if there is."""
    try:
        return host.obstacle(host.command(), host.tuned(_flags(), host.OPTIMIZED))
    except OptionError:
        return "none was found (install g++ or clang++, or set CXX)"


def available() -> bool:
    """Whether there is a C++ compiler that makes kernels for the host."""
    return obstacle() is None


def _flags() -> tuple[str, ...]:
    return (*host.FLAGS, f"-I{jax.ffi.include_dir()}")


def with_entry(text: str) -> str:
    """A kernel's text with what XLA and the host call it by."""
    return text + CALLS + _ENTRY + fed_run.TEXT


def library_of(text: str) -> ctypes.CDLL:
    """The library of a kernel's text."""
    # What calls threads out of it is there before.
    heard_signals()
    try:
        return host.load_soon(with_entry(text), _flags())
    except CompilerError as error:
        raise CompilerError(
            f"No kernel could be compiled for the CPU: {error}. Give the C++ compiler what it lacks, or use"
            ' carrier="ticks".'
        ) from error


# For good, as XLA has it: what is registered under a name may not change.
@functools.cache
def _target(text: str) -> str:
    """Compile and register a kernel; gives the name XLA knows it by."""
    library = library_of(text)
    name = "lanewise_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.lanewise_ffi), platform="cpu")
    return name


def _asking(text: str) -> Callable[[int], int]:
    """What tells how many examples of a run have ended, by its number."""
    ask = library_of(text).lanewise_done
    ask.restype = ctypes.c_longlong
    return ask


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    emitted: Emitted,
    results: Sequence[Any],
    arguments: Sequence[Any],
    examples: int,
    capacity: int,
    *,
    watched: bool = False,
    each: bool = False,
    stops: bool = False,
    aliases: dict[int, int] | None = None,
) -> Sequence[Any]:
    """The kernel as traceable code: `results` after the run. Of `aliases`, arguments are written over.

    `stops`: an interrupt cuts the run short.
    """
    made = jax.ffi.ffi_call(_target(emitted.text), results, input_output_aliases=aliases)
    return made(
        *arguments,
        watched=np.int64(watched),
        each=np.int64(each),
        stops=np.int64(stops),
        examples=np.int64(examples),
        capacity=np.int64(capacity),
        lane_bytes=np.int64(emitted.scratch_bytes(capacity)),
        threads=np.int64(cores()),
        lanes=np.int64(MOST_LANES),
    )


def call(
    emitted: Emitted,
    operands: Sequence[Any],
    examples: int,
    capacity: int,
    site: Site | None = None,
    counts: bool = True,
    stops: bool = False,
) -> tuple[list[Any], Any, Any, Any]:
    """Answers, codes, sites, and (all steps, most frames, busy seconds, seconds in all), as traceable code.

    `site` is for who watches; `counts`: the kernel counts the steps of its lanes; `stops`: an interrupt ends it.
    """
    results = [
        *emitted.results(examples),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((4,), jnp.float32),
    ]
    whole, each = None, site is not None and site.recorded and counts
    if site is not None:
        whole = Whole(replace(site, ask=_asking(emitted.text)), operands)
    if each:
        results += [jax.ShapeDtypeStruct((examples,), jnp.int32)] * 2
    arguments, aliases = emitted.arguments(operands)
    arguments += [] if whole is None else [whole.number]
    out = run(
        emitted,
        results,
        arguments,
        examples,
        capacity,
        watched=whole is not None,
        each=each,
        stops=stops,
        aliases=aliases,
    )
    out, (steps, deepest) = (out[:-2], out[-2:]) if each else (out, (None, None))
    *answers, code, place, totals = out
    if whole is not None:
        whole.ended(code, code, steps, deepest)
    return answers, code, place, totals


@functools.cache
def heard_signals() -> ctypes.CDLL | None:
    """The count of signals, where libraries that are loaded later find it; None where it cannot be made."""
    try:
        made = host.load(signals.TEXT)
        return ctypes.CDLL(made._name, mode=ctypes.RTLD_GLOBAL)
    except (LanewiseError, OSError):
        return None


def stoppable(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The function, which runs kernels outside `jit`, so that an interrupt ends it."""

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        heard = heard_signals()
        if heard is None:
            return run(*args, **kwargs)
        while True:
            on_main = threading.get_ident() == threading.main_thread().ident
            listens = on_main and heard.lanewise_listen()
            try:
                out = run(*args, **kwargs)
                # All come of one call.
                for array in out[:1]:
                    array.block_until_ready()
                return out
            # Which of the two it is depends on whether XLA runs the call at once.
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                if CUT not in str(error):
                    raise
            finally:
                if listens:
                    heard.lanewise_unlisten()

    return call
