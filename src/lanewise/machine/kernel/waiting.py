"""An interrupt ends what a GPU runs.

Outside `jit`, Python waits for a kernel itself, and so hears of signals. When a handler raises, the kernel is told to
end, by a flag that it looks at where its loops pause (`LW_PAUSE` of the header). All kernels outside `jit` look at such
flags, so they are set only if no other of them is in flight. A kernel inside `jit` has none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lanewise.machine.kernel import device

# How long Python looks for a kernel's end without a rest.
SOON_SECONDS = 1e-3


def stoppable(run: Callable[..., list[Any]], waits: Callable[[], bool]) -> Callable[..., list[Any]]:
    """The function, which runs kernels outside `jit`, so that an interrupt ends it.

    `waits` tells whether to wait at all. A kernel that cannot be told to end goes on without anybody who waits for it.
    """

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        out = run(*args, **kwargs)
        if not out:
            return out
        with _guard:
            _in_flight[:] = [*(one for one in _in_flight if not one.is_ready()), out[0]]
        if not waits():
            return out
        try:
            _wait_for(out[0])
        except BaseException:
            with _guard:
                alone = all(one is out[0] or one.is_ready() for one in _in_flight)
            if alone:
                device.set_flags(1)
                out[0].block_until_ready()
                device.set_flags(0)
            raise
        return out

    return call


# The first answers of runs that may not have ended.
_in_flight: list[Any] = []
_guard = threading.Lock()


def _wait_for(array: Any) -> None:
    """Wait as `block_until_ready` does, in Python: who comes soon is met at once."""
    began, pause = time.perf_counter(), 1e-4
    while not array.is_ready():
        if time.perf_counter() - began > SOON_SECONDS:
            time.sleep(pause)
            pause = min(2 * pause, 1e-2)
