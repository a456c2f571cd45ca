"""Ctrl-C that waits for a moment, so that what has to be done completely is."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def held() -> Iterator[None]:
    """An interrupt that comes inside is raised at the end; a second one at once.

    Python runs handlers of signals on the main thread alone, so elsewhere there is nothing to hold.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[Any, Any]] = []

    def note(number: int, frame: Any) -> None:
        if came:
            before(number, frame)
        came.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])
