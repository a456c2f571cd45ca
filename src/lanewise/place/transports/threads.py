"""How many placed functions may run in this process at a time: as many as XLA has threads to begin them on.

XLA begins every function of its CPU devices on a pool of as many threads as there are cores or devices, whichever are
more, and a function keeps its thread until it ends, also while it waits. (Small ones it runs on the thread that calls
them.) Places of one run are on devices of their own, so there is a thread for each. Were two runs to begin at the same
time, the first place of each could hold all threads and wait for a second that never begins: with four runs of two
places on four devices that is what happened. So a run takes all its threads at once, or waits until others have ended.
"""

from __future__ import annotations

import os
import threading
import time
import weakref

import jax

from lanewise import _jax
from lanewise.core.errors import OptionError, PlaceError

LOOK_SECONDS = 0.1

_changed = threading.Condition()


def most() -> int:
    """How many functions XLA has threads for; those of a GPU begin on the thread that calls them."""
    given = [os.environ.get(name, "") for name in ("NPROC", "PJRT_NPROC")]
    cores = next((int(value) for value in given if value.isdecimal()), None)
    if cores is None and hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    others = jax.local_device_count(backend="gpu") if _jax.has_platform("gpu") else 0
    return others + max(cores or os.cpu_count() or 1, jax.local_device_count(backend="cpu"))


class Held:
    """Threads that the places of a run hold in this process, until the last of those that joined has left."""

    def __init__(self, places: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        if places > most():
            raise OptionError(
                f"{places} places in one process, which runs {most()} functions at a time: give each place a device"
                " of its own (XLA_FLAGS=--xla_force_host_platform_device_count makes more of a CPU)."
            )
        with _changed:
            while _taken() + places > most():
                if time.monotonic() > deadline:
                    raise PlaceError(
                        f"{_taken()} placed functions of other runs are open in this process, and XLA begins {most()}"
                        f" at a time; none has ended within {patience:g} s. Close a run before the next."
                    )
                _changed.wait(LOOK_SECONDS)
            _counts[id(self)] = places
        self._joined: set[int] = set()
        # A run that is not closed and can no longer be closed holds nothing.
        self._release = weakref.finalize(self, _released, id(self))
        self._release.atexit = False

    def join(self, place: int) -> None:
        self._joined.add(place)

    def leave(self, place: int) -> None:
        self._joined.discard(place)
        if not self._joined:
            self._release()


# By run, how many threads it holds.
_counts: dict[int, int] = {}


def _taken() -> int:
    return sum(_counts.values())


def _released(run: int) -> None:
    with _changed:
        _counts.pop(run, None)
        _changed.notify_all()
