"""Kernels on the host: the same text, compiled by the host's C++ compiler.

This is what the carrier `native` runs (see `foreign.py`), and how the emitter is tested where there is no GPU. A few
threads take examples from the shared counter as a GPU's threads do. The emitted text holds both sides; without CUDA's
compiler its header gives the keywords their host meaning.

A kernel is short, so what it includes decides how long it takes to compile: C's headers, which cost nothing, and none
of C++'s (`-nostdinc++`), which cost more than the kernel.

Libraries are kept (see `cache.py`) under what they were compiled from, with and for: code made for this very CPU must
not be found by another.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from lanewise.core import events
from lanewise.core.errors import CompilerError, InternalError, LanewiseError, OptionError
from lanewise.cpp.emit import prelude
from lanewise.cpp.emit.emit import Emitted
from lanewise.cpp.toolchain import cache, compiler

BEST = "-O3"
# What is asked for keeps XLA's floating point: no products fused into sums, no sums in another order. That nobody
# reads `errno` or traps on a NaN only tells the compiler that it may use vector instructions.
FLAGS = (
    *(BEST, "-std=c++17", "-nostdinc++", "-fPIC", "-shared", "-pthread", "-fopenmp-simd", "-w"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
# What BEST means for kernels. Two of g++'s optimizations lose more than they gain, for they keep loops from becoming
# vector code: partial redundancies (a dot product inside of a sampler: 1.8 times) and unrolling of a loop around one
# over lanes in step (a polynomial: 10 times).
OPTIMIZED = (BEST, "-fno-tree-pre", "-fno-loop-unroll-and-jam")
# A third of the time to compile, for large kernels, and as fast within a tenth. g++ would look for registers in each
# loop apart, which takes a third of its time on code with many loops.
QUICK = (
    *("-O1", "-ftree-loop-vectorize", "-fexpensive-optimizations", "-fstrict-aliasing"),
    "-fira-region=one",
)
# The least that shows a compiler to work: the headers that every kernel includes.
PROBE = f'{prelude.HEADER}\nextern "C" int lanewise_probe() {{ return 1; }}\n'


@dataclass(frozen=True)
class Ran:
    """What a run gives: answers and outcomes of every example, steps and the most frames pending at one time."""

    answers: list[np.ndarray]
    code: np.ndarray
    site: np.ndarray
    steps: np.ndarray
    deepest: np.ndarray


def command() -> tuple[str, ...]:
    """The host's C++ compiler: the first of those found that compiles the least of programs."""
    return _first_that_works(compiler.commands())


@functools.cache
def _first_that_works(commands: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    for one in commands:
        if not _rejects(one):
            break
    else:
        return commands[0]
    if one != commands[0]:
        warnings.warn(
            f"{' '.join(commands[0])} does not compile the least of programs with Lanewise's flags, so"
            f" {' '.join(one)} compiles kernels for the CPU; set CXX to a compiler that does.",
            stacklevel=2,
        )
    return one


def _rejects(command: tuple[str, ...]) -> bool:
    """Whether a compiler makes no library that can be loaded. One that is killed, or hangs, may do so another time."""
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
    return cache.name_of((*command, *flags, compiler.this_cpu() or "", text), ".so")


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
    """Compile a library, keep it and load it; `beside` other work if that is to go on meanwhile."""
    # Nobody waits for what is compiled beside, so it is none of the time that a report says went into compiling.
    recorded = contextlib.nullcontext() if beside else events.compiling(f"C++ by {command[0]}")
    with recorded:
        content = compiler.compiled((*command, *flags), text, beside=beside)
    try:
        return cache.loaded(
            _name(command, flags, text), content, lambda path: ctypes.CDLL(str(path))
        )
    except OSError as error:
        raise CompilerError(f"no folder can hold a compiled library: {error.strerror}") from error


@functools.cache
def obstacle(command: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """Why a compiler makes nothing that can be loaded here: one that is found may lack headers, or a linker."""
    try:
        _loaded(command, flags, PROBE).lanewise_probe()
    except InternalError:
        return f"{' '.join(command)} does not compile the least of programs; set CXX to a compiler that does"
    except (LanewiseError, OSError) as error:
        return str(error)
    return None


class _Run(ctypes.Structure):
    """`lw_run` of the kernel's header."""

    _fields_ = (
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("examples", ctypes.c_longlong),
        ("lane_bytes", ctypes.c_longlong),
        ("capacity", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("next", ctypes.c_ulonglong),
        ("done", ctypes.c_ulonglong),
        ("begun", ctypes.c_int),
        ("stoppable", ctypes.c_void_p),
    )


def run(
    emitted: Emitted,
    operands: Sequence[np.ndarray],
    examples: int,
    *,
    capacity: int = 0,
    threads: int = 2,
    flags: tuple[str, ...] | None = None,
) -> Ran:
    """Run a kernel over all examples; operands are as the emitted text takes them, keys as their `uint32` words."""
    given = [np.asarray(x, order="C") for x in (*operands, *emitted.constants)]
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
    arrays = [*given, *answers, code, site, steps, deepest]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    whole = _Run(
        pointers, examples, emitted.scratch_bytes(capacity), capacity, threads, 0, 0, 0, None
    )
    work = load(emitted.text, flags).lanewise_work
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, ctypes.byref(whole)) for _ in range(threads)]:
            done.result()
    return Ran(answers, code, site, steps, deepest)
