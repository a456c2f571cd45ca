"""A kernel that examples come to and leave while it runs: what `lanewise.stream` feeds on a CPU.

Each example has a slot: a row of every array that varies. The host fills the rows of a free slot and hands its number
over; a lane takes it when it has ended another, and when it has ended this one, the number comes back and the slot's
answers are there. A lane without an example waits, and no lane waits for another's example. Threads of this process
run the lanes, apart from XLA, which gives nothing back before all of a call has ended.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise.core.errors import LanewiseError
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.meeting import MOST_LANES
from lanewise.cpp.toolchain.foreign import cores, heard_signals, library_of

# How long a thread that was called out may take.
CUT_SECONDS = 0.05


class Feed:
    """Lanes of one kernel under way. `shared` are the operands that do not vary, in order."""

    def __init__(
        self, emitted: Emitted, shared: Sequence[np.ndarray], slots: int, lanes: int
    ) -> None:
        self._library = library_of(emitted.text)
        given = iter([*shared, *emitted.constants])
        operands = [
            np.zeros((slots, *operand.shape), operand.dtype)
            if operand.varies
            else np.asarray(next(given), operand.dtype, order="C")
            for operand in emitted.operands
        ]
        # A row of each for every slot.
        self.rows = [a for a, operand in zip(operands, emitted.operands) if operand.varies]
        self.answers = [np.zeros((slots, *out.shape), out.dtype) for out in emitted.outputs]
        self.code, self.site, deepest = (np.zeros(slots, np.int32) for _ in range(3))
        self._arrays = [*operands, *self.answers, self.code, self.site]
        self._arrays += [np.zeros(slots, np.int64), deepest]
        self._pointers = (ctypes.c_void_p * len(self._arrays))(
            *(array.ctypes.data for array in self._arrays)
        )
        self._ended = np.zeros(slots, np.int32)
        threads = min(cores(), lanes)
        each = min(-(-lanes // threads), MOST_LANES)
        self._run = ctypes.c_void_p(
            self._call("open", ctypes.c_void_p)(
                self._pointers,
                ctypes.c_longlong(slots),
                ctypes.c_longlong(emitted.scratch_bytes(1)),
                threads,
                each,
            )
        )
        if not self._run:
            raise LanewiseError("there is no memory for a stream of this many lanes.")
        # The slots that have come and not ended.
        self._under_way = np.zeros(slots, bool)
        self._number, self._serving, self._closed = threads, 0, False
        self._guard = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._serving = self._number
        self._threads = [
            threading.Thread(target=self._serve, name="lanewise_serve", daemon=True)
            for _ in range(self._number)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, name: str, gives: Any = None) -> Any:
        found = getattr(self._library, f"lanewise_feed_{name}")
        found.restype = gives
        return found

    def _serve(self) -> None:
        self._call("serve")(self._run)
        with self._guard:
            self._serving -= 1
            self._free_if_over()

    def _free_if_over(self) -> None:
        if self._closed and not self._serving:
            self._call("free")(self._run)

    def push(self, slots: np.ndarray) -> None:
        """Hand over slots whose rows are filled."""
        slots = np.ascontiguousarray(slots, np.int32)
        self._under_way[slots] = True
        self._call("push")(self._run, ctypes.c_void_p(slots.ctypes.data), len(slots))

    def take(self, seconds: float, enough: int = 1) -> np.ndarray:
        """The slots that have ended since the last time: as soon as they are enough, or after this many seconds."""
        out = ctypes.c_void_p(self._ended.ctypes.data)
        nanoseconds = ctypes.c_longlong(int(1e9 * seconds))
        count = self._call("take", ctypes.c_int)(self._run, out, enough, nanoseconds)
        ended = self._ended[:count].copy()
        self._under_way[ended] = False
        if count == 0 and not any(thread.is_alive() for thread in self._threads):
            self._again()
        return ended

    def _again(self) -> None:
        """All threads have ended without being asked to: what was under way starts again."""
        if not self._call("again", ctypes.c_int)(self._run):
            raise LanewiseError("there is no memory for the lanes of a stream; use fewer lanes.")
        self._start()
        self.push(np.flatnonzero(self._under_way))

    def close(self) -> None:
        """End all lanes. The last thread frees what they had."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._call("close")(self._run)
            self._free_if_over()
        if self._under_way.any():
            self._cut_short()

    def _cut_short(self) -> None:
        """Call the threads out of their kernels: a lane may never end on its own."""
        heard = heard_signals()
        if heard is None:
            return
        for thread in self._threads:
            while thread.is_alive():
                turned_on = heard.lanewise_urgent_on()
                signal.pthread_kill(thread.ident or 0, signal.SIGURG)
                thread.join(CUT_SECONDS)
                if turned_on:
                    heard.lanewise_urgent_off()
