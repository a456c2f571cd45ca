"""Room for nested code: what is traced or lowered inside a branch is so inside the Python frames of that branch.

An `elif` is a branch inside the other side of the one before, and so is all that follows an early return. Each takes
some twenty frames, JAX's among them, and Python has a thousand: a hundred cases of an interpreter are too many. Within
`ROOM` there are more. Python's limit is there to end recursions without an end, which it still does.
"""

from __future__ import annotations

import contextlib
import sys
import threading

# Most frames call Python from Python; those that go by C take up to two kilobytes of the thread's 8 MB each.
FRAMES = 3000


class _Room(contextlib.ContextDecorator):
    """A context with more frames, or a decorator. The limit is one for all threads: the last to leave sets it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, FRAMES))
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setrecursionlimit(self._before)


ROOM = _Room()
