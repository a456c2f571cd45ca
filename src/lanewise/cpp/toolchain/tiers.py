"""A large kernel is compiled twice: soon, to begin with, and well, beside the run.

A C++ compiler takes seconds to do its best on a large kernel, and a third of that for code that is about as fast. So
the run begins with the latter (the quick tier), while a compiler process that gives way to others makes the optimized
library. When that is there it takes over (`lanewise_take_over` of `foreign.py`): threads that are at work go on with it
at the next example that they take. Both compute the same bits. Both are kept on disk, and a later process that finds
the optimized one begins with it. A small kernel is compiled once.

Nobody waits for the compiler that runs beside: it is killed when the process ends, and a forked child has none. Where
it fails, the quick tier stays. `wait` is for who measures; with `LANEWISE_COMPILE=optimized` in the environment every
kernel is compiled once, at its best, which pays where one example runs for hours.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import threading
import time

from lanewise.core.errors import LanewiseError
from lanewise.cpp.toolchain import compiler, host

# From this many characters on, text included that all kernels have, the best takes a second or more.
LARGE = 60_000
# Compilers that run beside, at one time.
MOST_BESIDE = max(1, (os.cpu_count() or 1) // 2)


@functools.lru_cache(maxsize=512)
def load(text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """The library of a kernel to begin with; a better one takes over from it when it is there."""
    best = host.tuned(flags, host.OPTIMIZED)
    at_once = len(text) < LARGE or os.environ.get("LANEWISE_COMPILE") == "optimized"
    if at_once or host.BEST not in flags:
        return host.load(text, best)
    command = host.command()
    found = host.loaded_if_found(command, best, text)
    if found is not None:
        return found
    library = host.load(text, host.tuned(flags, host.QUICK))
    _start(command, best, text, library)
    return library


def wait(seconds: float | None = None) -> bool:
    """Wait until the optimized libraries of all kernels are there; False if some are not by then."""
    until = None if seconds is None else time.monotonic() + seconds
    for thread in list(_beside):
        thread.join(None if until is None else max(until - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in _beside)


_beside: list[threading.Thread] = []
_turns = threading.BoundedSemaphore(MOST_BESIDE)


def _start(
    command: tuple[str, ...], flags: tuple[str, ...], text: str, library: ctypes.CDLL
) -> None:
    """Have a better library made, and take over from this one."""

    def work() -> None:
        with contextlib.suppress(LanewiseError, OSError), _turns:
            better = host.made(command, flags, text, beside=True)
            library.lanewise_take_over(ctypes.cast(better.lanewise_work, ctypes.c_void_p))

    # A thread that waits for a process; Python does not wait for the thread.
    thread = threading.Thread(target=work, name="lanewise-compile", daemon=True)
    _beside[:] = [*(one for one in _beside if one.is_alive()), thread]
    thread.start()


def _stop() -> None:
    compiler.stop_all()
    # They have files to remove.
    wait(1.0)


def _forget() -> None:
    global _turns
    _beside.clear()
    _turns = threading.BoundedSemaphore(MOST_BESIDE)


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
