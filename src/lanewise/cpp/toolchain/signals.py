"""An interrupt ends what runs: how a kernel on the host's threads is left when Ctrl-C is pressed.

Python runs a signal's handler between two of its own instructions, and while XLA runs a kernel there are none: XLA
calls it on the very thread that called XLA, or that thread waits. So while a kernel runs outside `jit` on the main
thread, the handler in C is ours. It does what Python's does and counts the signal, then sends `SIGURG` to the threads
that run lanes, whose handler jumps out of the kernel. A kernel only computes: it holds no lock and owns no memory, so
it can be left anywhere, and its loops pay nothing. (`SIGURG` does nothing unless asked for; Go's runtime takes threads
out of their loops with it, for the same reason.) The call then fails with `CUT`, and Python has its turn: as a rule its
handler raises `KeyboardInterrupt`. If it does not, because the program has a handler of its own, the run starts again:
nobody ever sees what a run that was cut short has computed. Runs on other threads are cut short, and start again, too.

What was considered: a flag that loops read costs short loops up to a third of their speed. A thread that waits for XLA,
with Python's main thread free to hear signals, costs each call a switch of threads, and JAX's settings are a thread's
own.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax

from lanewise.core.errors import LanewiseError
from lanewise.cpp.toolchain import host

# The error of a call that was cut short.
CUT = "lanewise: interrupted"

# How many threads at a time can be called out of their kernels; others run on to the end.
MOST_THREADS = 1024

TEXT = (
    r"""
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

extern "C" {
int lanewise_signals = 0;
}
static struct sigaction lw_before, lw_before_urgent;

// The threads that run lanes, and the way out of the one that this is.
struct lw_worker {
  int taken, works;
  pthread_t thread;
};
static lw_worker lw_workers[LW_MOST_THREADS];
static __thread sigjmp_buf* volatile lw_way_out __attribute__((tls_model("initial-exec")));

static void lw_urgent(int number, siginfo_t* about, void* context) {
  if (lw_way_out) siglongjmp(*lw_way_out, 1);
  if (lw_before_urgent.sa_flags & SA_SIGINFO) lw_before_urgent.sa_sigaction(number, about, context);
  else if (lw_before_urgent.sa_handler != SIG_DFL && lw_before_urgent.sa_handler != SIG_IGN)
    lw_before_urgent.sa_handler(number);
}

static void lw_interrupted(int number, siginfo_t* about, void* context) {
  if (lw_before.sa_flags & SA_SIGINFO) lw_before.sa_sigaction(number, about, context);
  else lw_before.sa_handler(number);
  __atomic_add_fetch(&lanewise_signals, 1, __ATOMIC_SEQ_CST);
  // This thread last: it may be one of them, and would not come back.
  bool mine = false;
  for (int i = 0; i < LW_MOST_THREADS; ++i) {
    if (!__atomic_load_n(&lw_workers[i].works, __ATOMIC_SEQ_CST)) continue;
    if (pthread_equal(lw_workers[i].thread, pthread_self())) mine = true;
    else pthread_kill(lw_workers[i].thread, SIGURG);
  }
  if (mine) pthread_kill(pthread_self(), SIGURG);
}

// Do a thread's part of a run that began after `begun` signals, until the next comes.
extern "C" void lanewise_stoppable(void (*work)(void*), void* data, int begun) {
  lw_worker* own = nullptr;
  for (int i = 0; i < LW_MOST_THREADS && !own; ++i)
    if (!__atomic_exchange_n(&lw_workers[i].taken, 1, __ATOMIC_SEQ_CST)) own = &lw_workers[i];
  if (!own) return work(data);
  sigset_t urgent, before;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_UNBLOCK, &urgent, &before);
  sigjmp_buf way_out;
  own->thread = pthread_self();
  if (!sigsetjmp(way_out, 1)) {
    lw_way_out = &way_out;
    __atomic_store_n(&own->works, 1, __ATOMIC_SEQ_CST);
    // Either whoever counts a signal sees that this thread works, or it sees that one was counted.
    if (__atomic_load_n(&lanewise_signals, __ATOMIC_SEQ_CST) == begun) work(data);
  }
  lw_way_out = nullptr;
  __atomic_store_n(&own->works, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&own->taken, 0, __ATOMIC_SEQ_CST);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Hear of interrupts, if anyone does: where they end the process, or are ignored, that stays so.
extern "C" int lanewise_listen() {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now)) return 0;
  if (now.sa_flags & SA_SIGINFO ? now.sa_sigaction == lw_interrupted
                                : now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
    return 0;
  struct sigaction ours = {};
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  ours.sa_sigaction = lw_urgent;
  if (sigaction(SIGURG, &ours, &lw_before_urgent)) return 0;
  lw_before = now;
  ours.sa_flags = now.sa_flags | SA_SIGINFO;
  ours.sa_mask = now.sa_mask;
  ours.sa_sigaction = lw_interrupted;
  return !sigaction(SIGINT, &ours, nullptr);
}

extern "C" void lanewise_unlisten() {
  sigaction(SIGINT, &lw_before, nullptr);
  sigaction(SIGURG, &lw_before_urgent, nullptr);
}
"""
).replace("LW_MOST_THREADS", str(MOST_THREADS))


@functools.cache
def library() -> ctypes.CDLL | None:
    """The count of signals, where libraries that are loaded later find it; None where it cannot be made."""
    try:
        made = host.load(TEXT)
        return ctypes.CDLL(made._name, mode=ctypes.RTLD_GLOBAL)
    except (LanewiseError, OSError):
        return None


def stoppable(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The function, which runs kernels outside `jit`, so that an interrupt ends it."""

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        heard = library()
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
