"""Compilation that takes long: what it is doing is shown, and after ten seconds a line says where the time goes.

Compilation happens inside calls of JAX and of the C++ compiler, which say nothing before they are done. But which of
them a thread is in can be seen from outside, in its stack. So where a program is about to be compiled its thread is
watched: another thread looks at it five times a second, adds up where it was found, and stops looking once it has been
elsewhere for a second. Nothing is asked of the thread that compiles.

The line goes to the logger `lanewise`, once for each program; `logging.getLogger("lanewise").setLevel("ERROR")`
silences it. A run with `progress=True` shows "compiling" meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

SLOW_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_ELSEWHERE = 1.0
SECONDS_UNSHOWN = 0.5

XLA, CPP, CUDA, TRACING = "XLA", "the C++ compiler", "NVRTC", "tracing and lowering"
# The innermost of these frames says what a thread is at: by how its file's path ends, or a folder in it.
_FILES = {
    "jax/_src/compiler.py": XLA,
    "jax/_src/interpreters/mlir.py": TRACING,
    "jax/_src/interpreters/partial_eval.py": TRACING,
    "lanewise/cpp/toolchain/host.py": CPP,
    "lanewise/cpp/toolchain/device.py": CUDA,
    "lanewise/tracing/staging.py": TRACING,
    # From here machines are run: whatever is further out does not matter.
    "lanewise/grow/growing.py": None,
    "lanewise/grow/rerun.py": None,
    "lanewise/cpp/toolchain/foreign.py": None,
    "lanewise/cpp/toolchain/waiting.py": None,
}
_FOLDERS = {"lanewise/blocks/": TRACING, "lanewise/diff/": TRACING, "lanewise/cpp/": TRACING}
_CACHED = 'What it makes is cached for later processes. carrier="ticks" does without it.'
_ADVICE = {
    XLA: "What XLA makes is cached for later processes if jax_compilation_cache_dir is set; fewer branches, or a loop"
    " in place of a repeated call, give it less to do.",
    CPP: _CACHED,
    CUDA: _CACHED,
    TRACING: "A Python loop over plain values is written out as often as it runs: make its bound an argument, or use"
    " `while`.",
}

log = logging.getLogger("lanewise")


class ShownNote(Protocol):
    """What `lanewise.watch.progress.Note` does."""

    def update(self) -> None: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class _Watched:
    """A thread that may be compiling a program."""

    name: str
    chosen: str
    progress: bool
    seen: float
    busy: float
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    note: ShownNote | None = None

    def closed(self) -> None:
        if self.note is not None:
            self.note.close()
            self.note = None


_lock = threading.Lock()
_watched: dict[int, _Watched] = {}
_reported: set[str] = set()
_looking: list[threading.Thread] = []
_ending = threading.Event()
_new_note: list[Callable[[str], ShownNote]] = []


def show_notes_with(new_note: Callable[[str], ShownNote]) -> None:
    """Say what shows that a program is being compiled, given its name."""
    _new_note[:] = [new_note]


def watch(name: str, chosen: str = "", progress: bool = False, new: bool = False) -> None:
    """A program is about to be compiled on this thread; `chosen` says how it will run, once that is known.

    Compilation of another that goes on counts for that one, unless this is `new`: what is part of a program is compiled
    with it.
    """
    now = time.perf_counter()
    with _lock:
        known = _watched.get(threading.get_ident())
        if known is not None and new:
            known.closed()
            known = None
        if known is not None and known.name == name:
            known.chosen, known.progress = chosen or known.chosen, progress or known.progress
            known.busy = now
        elif known is None:
            _watched[threading.get_ident()] = _Watched(name, chosen, progress, now, now)
        if not _looking:
            thread = threading.Thread(target=_look, name="lanewise-compiling", daemon=True)
            _looking.append(thread)
            thread.start()


def begun() -> None:
    """A run has begun: what was compiled is compiled."""
    with _lock:
        for watched in _watched.values():
            watched.closed()


def _look() -> None:
    while not _ending.wait(SECONDS_BETWEEN_LOOKS):
        phases = _phases()
        with _lock:
            for thread, watched in list(_watched.items()):
                with contextlib.suppress(Exception):  # what goes wrong here must not be seen
                    if not _goes_on(watched, phases.get(thread), thread in phases):
                        watched.closed()
                        del _watched[thread]
            if not _watched:
                _looking.clear()
                return


def _phases() -> dict[int, str | None]:
    """What each thread is at. No frame is kept: it would keep the arrays of its function alive."""
    return {thread: phase_of(frame) for thread, frame in sys._current_frames().items()}


def _stop() -> None:
    """End the thread before Python ends: one that is freeing an array of JAX's by then aborts the process."""
    _ending.set()
    for thread in list(_looking):
        thread.join(1.0)


atexit.register(_stop)


def _goes_on(watched: _Watched, phase: str | None, alive: bool) -> bool:
    """Add up what a thread is at; gives whether it is worth another look."""
    now = time.perf_counter()
    elapsed, watched.seen = now - watched.seen, now
    if phase is None:
        watched.closed()
        return alive and now - watched.busy < SECONDS_ELSEWHERE
    watched.busy = now
    spent = watched.spent
    spent[phase] += elapsed
    total = sum(spent.values())
    if watched.progress and _new_note and total > SECONDS_UNSHOWN:
        watched.note = watched.note or _new_note[0](watched.name)
        watched.note.update()
    if total >= SLOW_SECONDS and watched.name not in _reported:
        _reported.add(watched.name)
        log.warning(hint(watched.name, watched.chosen, spent))
    return True


def phase_of(frame: FrameType | None) -> str | None:
    """What a thread with this innermost frame is at, if it is compiling."""
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        for ending, phase in _FILES.items():
            if path.endswith(ending):
                return phase
        for folder, phase in _FOLDERS.items():
            if folder in path:
                return phase
        frame = frame.f_back
    return None


def hint(name: str, chosen: str, spent: dict[str, float]) -> str:
    """Where the time of compiling a program went, how it will run, and what can be done.

    >>> print(hint("f", "carrier native", {CPP: 8.0, XLA: 2.2}))
    lanewise: compiling `f` has taken 10 s so far: 8 s in the C++ compiler, 2 s in XLA (carrier native). What it makes
    is cached for later processes. carrier="ticks" does without it. It is done once for each signature;
    lanewise.inspect says what was chosen and why.
    """
    parts = sorted(spent.items(), key=lambda item: -item[1])
    named = parts[:1] + [part for part in parts[1:] if part[1] >= 0.5]
    shares = ", ".join(f"{seconds:.0f} s in {phase}" for phase, seconds in named)
    how = f" ({chosen})" if chosen else ""
    return (
        f"lanewise: compiling `{name}` has taken {sum(spent.values()):.0f} s so far: {shares}{how}. "
        f"{_ADVICE[parts[0][0]]} It is done once for each signature; lanewise.inspect says what was chosen and why."
    )
