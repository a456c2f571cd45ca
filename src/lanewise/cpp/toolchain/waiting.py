"""An interrupt ends what a GPU runs.

Outside `jit`, Python waits for a kernel itself, and so hears of signals. When a handler raises, the kernel is ended by
a flag that it looks at where its loops pause (`LW_PAUSE` of the header). All kernels outside `jit` look at such flags,
so they are set only if no other of them is in flight; one that was started meanwhile may have been cut short, and
starts again. A kernel inside `jit` has no flag.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from lanewise.cpp.toolchain import device

# How long Python looks for a kernel's end without a rest.
SOON_SECONDS = 1e-3


# Whether to wait for a GPU outside `jit`, so that an interrupt ends what it runs.
_waits: ContextVar[bool] = ContextVar("waits", default=True)


@contextlib.contextmanager
def not_waiting() -> Iterator[None]:
    """Where the host has other work to do while a GPU runs."""
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


def stoppable(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The function, which runs kernels outside `jit`, so that an interrupt ends it.

    A kernel that cannot be ended goes on, and nothing waits for it.
    """

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        out = _started(lambda: run(*args, **kwargs))
        if not out or not _waits.get():
            return out
        try:
            _wait_for(out[0])
        except BaseException:
            _end(out[0])
            raise
        # The caller has the answers and owns them from here on: none is kept alive, or looked at once it is donated.
        with _guard:
            _in_flight[:] = [one for one in _in_flight if one is not out[0]]
        return out

    return call


# The first answers of runs that may not have ended, and how often flags have been set.
_in_flight: list[Any] = []
_ends = 0
_guard = threading.Lock()


def _started(run: Callable[[], list[Any]]) -> list[Any]:
    """What a run gives that flags, set for another, have not cut short."""
    while True:
        before = _ends
        out = run()
        if not out:
            return out
        with _guard:
            if _ends == before:
                _in_flight[:] = [*(one for one in _in_flight if not _is_over(one)), out[0]]
                return out


def _end(answer: Any) -> None:
    """End the run of an answer, if it is the only one; flags are not left set, whatever comes meanwhile."""
    global _ends
    with _guard:
        if not all(one is answer or _is_over(one) for one in _in_flight):
            return
        _ends += 1
        try:
            device.set_flags(1)
            answer.block_until_ready()
        finally:
            device.set_flags(0)


def _is_over(answer: Any) -> bool:
    return answer.is_deleted() or answer.is_ready()


def _wait_for(array: Any) -> None:
    """Wait as `block_until_ready` does, in Python: an array that is ready soon is noticed at once."""
    began, pause = time.perf_counter(), 1e-4
    while not array.is_ready():
        if time.perf_counter() - began > SOON_SECONDS:
            time.sleep(pause)
            pause = min(2 * pause, 1e-2)
