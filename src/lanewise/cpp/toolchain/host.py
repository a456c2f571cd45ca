"""Kernels on the host: their text compiled by the host's C++ compiler, loaded and run.

This is what the carrier `native` runs (see `foreign.py`), and how the emitter is tested where there is no GPU. A few
threads take examples from the shared counter as a GPU's threads do. The emitted text holds both sides; without CUDA's
compiler its header gives the keywords their host meaning. A kernel is short, so what it includes decides how long it
takes to compile: C's headers, which cost nothing, and none of C++'s (`-nostdinc++`), which cost more than the kernel.
Libraries are cached (see `cache.py`) under what they were compiled from, with and for: code made for this very CPU must
not be found by another.

The compiler is a process that may fail in ways that are not bugs: it may be missing, lack headers, be killed for
lack of memory, find its disk full, or never end. A kernel that it rejects is a bug in Lanewise (`InternalError`).
Everything else is a `CompilerError`, after which `auto` runs the program some other way; where only the folder is at
fault (`OSError`), another is tried first. The compiler has a session of its own: giving up kills all of it, with the
programs that it has started.

A large kernel is compiled twice: soon, to begin with, and well, beside the run. A C++ compiler takes seconds to do its
best on a large kernel, and a third of that for code that is about as fast. So the run begins with the latter (the quick
tier). Once threads have worked on it for a second in all, a compiler process that gives way to others makes the
optimized library: a kernel that ends before has no use for it. When that is there it takes over
(`lanewise_take_over` of `entry.h`): threads that are at work go on with it at the next example that they take. Both
compute the same bits. Both are cached on disk, and a later process that finds the optimized one begins with it. Nothing
waits for the compiler that runs beside: it is killed when the process ends, and a forked child has none. Where it
fails, the quick tier stays. With `LANEWISE_COMPILE=optimized` in the environment every kernel is compiled once, at its
best, which pays where one example runs for hours.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lanewise.core import events
from lanewise.core.errors import CompilerError, InternalError, LanewiseError, OptionError
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.meeting import MOST_LANES
from lanewise.cpp.emit.rules import beginning
from lanewise.cpp.toolchain import cache

FOR_THIS_CPU = "-march=native"
# Those looked for beside the one of the environment.
COMPILERS = ("c++", "g++", "clang++")
# A compiler that takes longer hangs.
MOST_SECONDS = 900.0
# How much of what a compiler says an error repeats.
MOST_SAID = 2000
# What starts a compiler: it is killed, with all that it has started, when no process holds the other end of the input
# any more. So it ends when this process does, however that ends.
_GUARDED = """
exec 3<&0 </dev/null
"$@" 3<&- & work=$!
{ read _; kill -9 -$$; } <&3 >/dev/null 2>&1 & guard=$!
wait $work; status=$?
kill -9 $guard
exit $status
"""
GIVING_WAY = ("nice", "-n", "15")
BEST = "-O3"
# These flags keep XLA's floating point: no products fused into sums, no sums in another order. The promise
# that nothing reads `errno` or traps on a NaN only lets the compiler use vector instructions.
FLAGS = (
    *(BEST, "-std=c++17", "-nostdinc++", "-fPIC", "-shared", "-pthread", "-fopenmp-simd", "-w"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
# What BEST means for kernels. Two of g++'s optimizations lose more than they gain, because they keep loops from
# becoming vector code: partial redundancies (a dot product inside of a sampler: 1.8 times) and unrolling of a loop
# around one over lanes in step (a polynomial: 10 times).
OPTIMIZED = (BEST, "-fno-tree-pre", "-fno-loop-unroll-and-jam")
# A third of the time to compile, for large kernels, and as fast within a tenth. g++ would look for registers in each
# loop apart, which takes a third of its time on code with many loops.
QUICK = (
    *("-O1", "-ftree-loop-vectorize", "-fexpensive-optimizations", "-fstrict-aliasing"),
    "-fira-region=one",
)
# The smallest program that shows that a compiler works: the headers that every kernel includes.
PROBE = f'{beginning()}\nextern "C" int lanewise_probe() {{ return 1; }}\n'
# From this many characters on, text included that all kernels have, the best takes a second or more.
LARGE = 68_600
# A kernel is worth the optimized library once threads have worked for this long in all, about what the compiler takes.
WORTH_SECONDS = 1.0
# Compilers that run beside, at one time.
MOST_BESIDE = max(1, (os.cpu_count() or 1) // 2)


# -- the compiler --------------------------------------------------------------------------------------


def commands() -> tuple[tuple[str, ...], ...]:
    """The C++ compilers that are found here, `CXX` first; it may hold arguments ("ccache g++")."""
    given = (_words(name or "") for name in (os.environ.get("CXX"), *COMPILERS))
    found = tuple(words for words in given if words and shutil.which(words[0]))
    if not found:
        raise OptionError(
            "No C++ compiler was found to compile a kernel for the host; install g++ or clang++, or set CXX."
        )
    return found


def _words(given: str) -> tuple[str, ...]:
    # A path with a space in it is one word.
    if shutil.which(given):
        return (given,)
    try:
        return tuple(shlex.split(given))
    except ValueError:
        return ()


@functools.cache
def this_cpu() -> str | None:
    """What distinguishes this CPU from one that lacks some of its instructions; None where it is not known."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return platform.processor() or None
    # What changes from one moment or core to the next says nothing about the instructions.
    varies = ("processor", "cpu mhz", "bogomips", "core id", "apicid", "initial apicid")
    return "\n".join(line for line in first.splitlines() if not line.lower().startswith(varies))


# The compilers at work, and whether this process is about to end: then none is started.
_at_work: set[Compilation] = set()
_ending = threading.Event()


class Compilation:
    """A compiler at work, in a folder of its own. With `beside` it gives way to others."""

    def __init__(
        self, words: Sequence[str], text: str, folder: Path, *, beside: bool = False
    ) -> None:
        self.words, self.text, self._beside = tuple(words), text, beside
        self._work = tempfile.TemporaryDirectory(
            prefix=cache.WORK, dir=folder, ignore_cleanup_errors=True
        )
        self._library = Path(self._work.name) / "made.so"
        self._source = Path(self._work.name) / "made.cpp"
        self._started: subprocess.Popen[str] | None = None
        try:
            self._source.write_text(text)
        except BaseException:
            self._work.cleanup()
            raise

    def content(self, seconds: float | None = None) -> bytes:
        """The library that the compiler makes, for this very CPU, or, by one that cannot, for any of its kind."""
        said = ""
        _at_work.add(self)
        try:
            for target in ((FOR_THIS_CPU,) if this_cpu() else (), ()):
                status, said = self._run(target, MOST_SECONDS if seconds is None else seconds)
                if not status and self._library.exists():
                    return self._library.read_bytes()
                self._judge(status, said)
        finally:
            _at_work.discard(self)
            self._work.cleanup()
        raise InternalError(
            f"{self.words[0]} does not compile the kernel:\n{said[:MOST_SAID]}\n{self.text}"
        )

    def stop(self) -> None:
        """Kill the compiler and all that it has started."""
        if self._started is not None and self._started.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)

    def _run(self, target: tuple[str, ...], seconds: float) -> tuple[int, str]:
        nice = GIVING_WAY if self._beside else ()
        line = [*nice, *self.words, str(self._source), "-o", str(self._library), *target]
        # Compilers write to the folder for temporary files too; and their messages are searched, so in English.
        if _ending.is_set():
            raise CompilerError("the process is about to end")
        about = {"TMPDIR": self._work.name, "LC_ALL": "C"}
        theirs, ours = os.pipe()
        try:
            process = self._started = subprocess.Popen(
                ["sh", "-c", _GUARDED, "sh", *line],
                env=os.environ | about,
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                _, said = process.communicate(timeout=seconds)
            except BaseException:
                self.stop()
                process.communicate()
                raise
        except subprocess.TimeoutExpired as error:
            raise CompilerError(
                f"the C++ compiler {self.words[0]} did not end within {seconds:g} seconds"
            ) from error
        except OSError as error:
            raise CompilerError(
                f"the C++ compiler {self.words[0]} cannot be started: {error}"
            ) from error
        finally:
            os.close(theirs)
            os.close(ours)
        return process.returncode, said

    def _judge(self, status: int, said: str) -> None:
        """Raise for a failure that another target would not help."""
        full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
        said_errors = [os.strerror(number) for number in full]
        if any(word in said for word in (*said_errors, "File size limit exceeded")):
            raise OSError(errno.ENOSPC, f"{self.words[0]}: {_last_line(said)}")
        memory = ("out of memory", "memory exhausted", os.strerror(errno.ENOMEM))
        killed = "terminated program" in said or status < 0 or status > 125
        if killed or any(word in said for word in memory):
            raise CompilerError(
                f"the C++ compiler {self.words[0]} was killed, or had no memory left"
                f" ({_last_line(said) or f'status {status}'})"
            )


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines()
    return lines[-1].strip() if lines else ""


def compiled(words: Sequence[str], text: str, *, beside: bool = False) -> bytes:
    """A library made of a text by the compiler with its flags, in the first folder that has room for the work."""
    obstacles: list[str] = []
    for folder in cache.folders(obstacles):
        try:
            return Compilation(words, text, folder, beside=beside).content()
        except OSError as error:
            obstacles.append(cache.described(error, folder))
    raise CompilerError(f"no folder has room to compile in: {'; '.join(obstacles)}")


# -- libraries -----------------------------------------------------------------------------------------


def command() -> tuple[str, ...]:
    """The host's C++ compiler: the first of those found that compiles a trivial program."""
    return _first_that_works(commands())


@functools.cache
def _first_that_works(commands: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    for one in commands:
        if not _rejects(one):
            break
    else:
        return commands[0]
    if one != commands[0]:
        warnings.warn(
            f"{' '.join(commands[0])} does not compile a trivial program with Lanewise's flags, so"
            f" {' '.join(one)} compiles kernels for the CPU; set CXX to a compiler that does.",
            stacklevel=2,
        )
    return one


def _rejects(command: tuple[str, ...]) -> bool:
    """Whether a compiler makes no library that can be loaded. One that is killed, or hangs, may do so another time."""
    if obstacle(command, FLAGS) is None:
        return False
    try:
        _loaded(command, FLAGS, PROBE).lanewise_probe()
    except (InternalError, OSError):
        return True
    except LanewiseError:
        return False
    return False


def load(text: str, flags: tuple[str, ...] | None = None) -> ctypes.CDLL:
    """Compile a kernel's text, or find it compiled."""
    return _loaded(command(), FLAGS if flags is None else flags, text)


@functools.lru_cache(maxsize=256)
def _loaded(command: tuple[str, ...], flags: tuple[str, ...], text: str) -> ctypes.CDLL:
    return loaded_if_found(command, flags, text) or made(command, flags, text)


def tuned(flags: Sequence[str], effort: Sequence[str]) -> tuple[str, ...]:
    """Flags with an effort (`OPTIMIZED`, `QUICK`) for BEST; its first alone, by a compiler that does not know all."""
    whole, first = (
        tuple(each for flag in flags for each in (some if flag == BEST else (flag,)))
        for some in (effort, effort[:1])
    )
    return first if obstacle(command(), whole) else whole


def _name(command: Sequence[str], flags: Sequence[str], text: str) -> str:
    return cache.name_of((*command, *flags, this_cpu() or "", text), ".so")


def loaded_if_found(command: Sequence[str], flags: Sequence[str], text: str) -> ctypes.CDLL | None:
    """A library that was compiled before."""
    path = cache.found(_name(command, flags, text))
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


def made(
    command: Sequence[str], flags: Sequence[str], text: str, *, beside: bool = False
) -> ctypes.CDLL:
    """Compile a library, cache it and load it; `beside` other work if that is to go on meanwhile."""
    # Nothing waits for what is compiled beside, so it is not part of the time that reports give for compiling.
    recorded = contextlib.nullcontext() if beside else events.compiling(f"C++ by {command[0]}")
    with recorded:
        content = compiled((*command, *flags), text, beside=beside)
    try:
        return cache.loaded(
            _name(command, flags, text), content, lambda path: ctypes.CDLL(str(path))
        )
    except OSError as error:
        raise CompilerError(f"no folder can hold a compiled library: {error.strerror}") from error


@functools.cache
def obstacle(command: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """Why a compiler makes nothing that can be loaded here: one that is found may lack headers, or a linker."""
    # A compiler that knows all flags at once need not be asked for some of them.
    every = (*FLAGS, *OPTIMIZED, *QUICK)
    some = {flag for flag in flags if not flag.startswith("-I")} < {*every}
    if some and obstacle(command, every) is None:
        return None
    try:
        _loaded(command, flags, PROBE).lanewise_probe()
    except InternalError:
        return f"{' '.join(command)} does not compile a trivial program; set CXX to a compiler that does"
    except (LanewiseError, OSError) as error:
        return str(error)
    return None


# -- tiers ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def load_soon(text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """The library of a kernel to begin with; a better one takes over from it when it is there."""
    best = tuned(flags, OPTIMIZED)
    at_once = len(text) < LARGE or os.environ.get("LANEWISE_COMPILE") == "optimized"
    if at_once or BEST not in flags:
        return load(text, best)
    found = loaded_if_found(command(), best, text)
    if found is not None:
        return found
    library = load(text, tuned(flags, QUICK))
    better = _Better(command(), best, text, library)
    _beside[:] = [*(one for one in _beside if one.is_alive()), better]
    better.start()
    return library


class _Better(threading.Thread):
    """Has a better library made once one has worked for long, to take over from it. Python does not wait for it."""

    def __init__(
        self, command: tuple[str, ...], flags: tuple[str, ...], text: str, library: ctypes.CDLL
    ) -> None:
        super().__init__(name="lanewise-compile", daemon=True)
        self.made_of = command, flags, text
        self.library = library

    def run(self) -> None:
        self.library.lanewise_await_work(ctypes.c_longlong(int(1e9 * WORTH_SECONDS)))
        with contextlib.suppress(LanewiseError, OSError), _turns:
            better = made(*self.made_of, beside=True)
            self.library.lanewise_take_over(ctypes.cast(better.lanewise_work, ctypes.c_void_p))


_beside: list[_Better] = []
_turns = threading.BoundedSemaphore(MOST_BESIDE)


def wait(seconds: float | None = None) -> bool:
    """Have the optimized libraries of all kernels made, and wait until they are; False if some are not by then."""
    until = None if seconds is None else time.monotonic() + seconds
    for thread in list(_beside):
        thread.library.lanewise_hurry()
    for thread in list(_beside):
        thread.join(None if until is None else max(until - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in _beside)


def _stop() -> None:
    """Kill every compiler at work, and start no more of them."""
    _ending.set()
    for one in list(_at_work):
        one.stop()
    # They have files to remove.
    wait(1.0)


def _forget() -> None:
    """A forked child has none of its parent's processes and threads."""
    global _turns
    _at_work.clear()
    _beside.clear()
    _turns = threading.BoundedSemaphore(MOST_BESIDE)


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# -- runs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What a run gives: answers and outcomes of every example, steps and the most frames pending at one time."""

    answers: list[np.ndarray]
    code: np.ndarray
    site: np.ndarray
    steps: np.ndarray
    deepest: np.ndarray


class _Run(ctypes.Structure):
    """`lw_run` of the kernel's header."""

    _fields_ = (
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("examples", ctypes.c_longlong),
        ("lane_bytes", ctypes.c_longlong),
        ("capacity", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("lanes", ctypes.c_int),
        ("next", ctypes.c_ulonglong),
        ("done", ctypes.c_ulonglong),
        ("adding", ctypes.c_int),
        ("begun", ctypes.c_int),
        ("stoppable", ctypes.c_void_p),
        ("feed", ctypes.c_void_p),
    )


def run(
    emitted: Emitted,
    operands: Sequence[np.ndarray],
    examples: int,
    *,
    capacity: int = 0,
    threads: int = 2,
    lanes: int = MOST_LANES,
    flags: tuple[str, ...] | None = None,
) -> Ran:
    """Run a kernel over all examples; operands are as the emitted text takes them, keys as their `uint32` words."""
    given = [np.asarray(x, order="C") for x in (*operands, *emitted.constants)]
    sums = [np.zeros(out.shape, out.dtype) for out in emitted.sums]
    for position, (array, wanted) in enumerate(zip(given, emitted.operands, strict=True)):
        shape = (examples, *wanted.shape) if wanted.varies else wanted.shape
        if (array.shape, array.dtype.name) != (shape, wanted.dtype.name):
            raise OptionError(
                f"operand {position} is {array.dtype.name}{list(array.shape)};"
                f" the kernel takes {wanted.dtype.name}{list(shape)}."
            )
    answers = [np.zeros((examples, *out.shape), out.dtype) for out in emitted.outputs]
    code, site, deepest = (np.zeros(examples, np.int32) for _ in range(3))
    steps = np.zeros(examples, np.int64)
    arrays = [*given, *sums, *answers, *sums, code, site, steps, deepest]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    whole = _Run(pointers, examples, emitted.scratch_bytes(capacity), capacity, threads, lanes)
    work = load(emitted.text, flags).lanewise_work
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, ctypes.byref(whole)) for _ in range(threads)]:
            done.result()
    return Ran([*answers, *sums], code, site, steps, deepest)
