"""`lanewise launch`: the processes of a run on this machine, started, watched and stopped together.

Each process learns from its environment which rank it has and where the others meet (`place/transports/launched.py`).
What they print is shown as it comes, with the rank in front. When one fails the others have a moment to find out and
say so themselves, and are stopped then; with `restarts` all start again, and the script goes on from its checkpoint.

Each process has a session of its own: stopping it stops what it has started, and an interrupt of the terminal comes
to the launcher alone, which passes it on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from lanewise.cli.complaints import Misuse
from lanewise.place.transports.launched import local_group

# How often to look whether a process has ended.
LOOK_SECONDS = 0.02
# How long the others have after one has failed, and after they were asked to stop.
NOTICE_SECONDS = 3.0
STOP_SECONDS = 5.0


class Stopped(Exception):
    """A signal that ends the launcher."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def launch(count: int, script: Path, arguments: Sequence[str], restarts: int) -> int:
    """Run a script in `count` processes; the exit status is that of the first that failed, 0 if none did."""
    if not script.is_file():
        raise Misuse(f"there is no file {script}.", "give the script that each process runs.")
    status = 0
    with _stoppable():
        for attempt in range(restarts + 1):
            if attempt:
                _say(f"starting all again ({attempt} of {restarts})")
            status = _attempt(count, [sys.executable, str(script), *arguments])
            if not status:
                break
    return status


def described(status: int) -> str:
    """How a process ended.

    >>> described(3), described(-9)
    ('ended with status 3', 'was killed by SIGKILL')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _attempt(count: int, command: Sequence[str]) -> int:
    processes: list[subprocess.Popen[bytes]] = []
    shown: list[threading.Thread] = []
    asks = signal.SIGTERM
    try:
        for one in local_group(count):
            process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | one.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            processes.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                width = len(str(count - 1))
                prefix = f"[{one.rank:>{width}}] ".encode()
                arguments = (source, target.buffer, prefix)
                shown.append(threading.Thread(target=_show, args=arguments, daemon=True))
                shown[-1].start()
        return _watched(processes)
    except Stopped as stopped:
        # As a terminal would: the script hears of an interrupt, and may end in order.
        asks = signal.Signals(stopped.number)
        _say(f"{asks.name}: stopping all")
        return 128 + stopped.number
    finally:
        _stop(processes, asks)
        for thread in shown:
            thread.join(1.0)


def _watched(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended, or one has failed and the others had a moment to say so."""
    while True:
        states = [process.poll() for process in processes]
        failed = [(rank, status) for rank, status in enumerate(states) if status]
        if failed:
            break
        if None not in states:
            return 0
        time.sleep(LOOK_SECONDS)
    # Those that a signal ended were first: others end because of them.
    rank, status = min(failed, key=lambda one: one[1] > 0)
    others = len(processes) > 1
    _say(f"rank {rank} {described(status)}{'; stopping the others' if others else ''}")
    deadline = time.monotonic() + NOTICE_SECONDS
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(LOOK_SECONDS)
    return status if status > 0 else 128 - status


def _stop(processes: Sequence[subprocess.Popen[bytes]], asks: signal.Signals) -> None:
    """Ask those that still run to end, with all that they have started, and kill what does not."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        _signal(process, asks)
        # One that is suspended receives nothing.
        _signal(process, signal.SIGCONT)
    deadline = time.monotonic() + STOP_SECONDS
    # After a second signal nothing is waited for.
    with contextlib.suppress(Stopped):
        while any(p.poll() is None for p in running) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    for process in processes:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _show(source: BinaryIO, target: BinaryIO, prefix: bytes) -> None:
    with source, contextlib.suppress(ValueError, BrokenPipeError):
        for line in source:
            end = b"" if line.endswith(b"\n") else b"\n"
            target.write(prefix + line + end)
            target.flush()


def _say(message: str) -> None:
    print(f"lanewise launch: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Signals that end a process stop all processes first."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
