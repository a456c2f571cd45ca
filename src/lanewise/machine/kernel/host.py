"""Kernels on the host: the same text, compiled by the host's C++ compiler.

This is what the carrier `native` runs (see `foreign.py`), and how the emitter is tested where there is no GPU. A few
threads take examples from the shared counter as a GPU's threads do. The emitted text holds both sides; without CUDA's
compiler its header gives the keywords their host meaning.

A kernel is short, so what it includes decides how long it takes to compile: C's headers, which cost nothing, and none
of C++'s (`-nostdinc++`), which cost more than the kernel.

Libraries are kept (see `kept.py`) under what they were compiled from, with and for: code made for this very CPU must
not be found by another.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lanewise import watchers
from lanewise.errors import InternalError, LanewiseError, OptionError
from lanewise.machine.kernel import prelude
from lanewise.machine.kernel.emit import Emitted
from lanewise.machine.kernel.kept import kept

# What is asked for keeps XLA's floating point: no products fused into sums, no sums in another order. That nobody
# reads `errno` or traps on a NaN only tells the compiler that it may use vector instructions.
FLAGS = (
    *("-O3", "-std=c++17", "-nostdinc++", "-fPIC", "-shared", "-pthread", "-fopenmp-simd", "-w"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
FOR_THIS_CPU = "-march=native"
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


def compiler() -> str:
    """The host's C++ compiler."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise OptionError(
        "No C++ compiler was found to compile a kernel for the host; install g++ or clang++, or set CXX."
    )


@functools.cache
def this_cpu() -> str | None:
    """What tells this CPU from one that lacks some of its instructions; None where it is not known."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return platform.processor() or None
    # What changes from one moment or core to the next says nothing about the instructions.
    varies = ("processor", "cpu mhz", "bogomips", "core id", "apicid", "initial apicid")
    return "\n".join(line for line in first.splitlines() if not line.lower().startswith(varies))


def load(text: str, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Compile a kernel's text, or find it compiled."""
    return _loaded(compiler(), flags, text)


@functools.lru_cache(maxsize=256)
def _loaded(command: str, flags: tuple[str, ...], text: str) -> ctypes.CDLL:
    def make(library: Path) -> None:
        began = time.perf_counter()
        source = library.with_suffix(".cpp")
        source.write_text(text)
        _compile([command, *flags, str(source), "-o", str(library)], text)
        watchers.compiled(f"C++ by {command}", began)

    return ctypes.CDLL(str(kept((command, *flags, this_cpu() or "", text), ".so", make)))


@functools.cache
def works(command: str, flags: tuple[str, ...]) -> bool:
    """Whether a compiler makes what can be loaded here: one that is found may lack headers, or a linker."""
    try:
        return _loaded(command, flags, PROBE).lanewise_probe() == 1
    except (LanewiseError, OSError):
        return False


def _compile(command: Sequence[str], text: str) -> None:
    """Compile for this very CPU, or, by a compiler that cannot, for any of its kind."""
    for target in ((FOR_THIS_CPU,) if this_cpu() else (), ()):
        done = subprocess.run([*command, *target], capture_output=True, text=True)
        if not done.returncode:
            return
    raise InternalError(f"{command[0]} does not compile the kernel:\n{done.stderr}\n{text}")


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
    )


def run(
    emitted: Emitted,
    operands: Sequence[np.ndarray],
    examples: int,
    *,
    capacity: int = 0,
    threads: int = 2,
    flags: tuple[str, ...] = FLAGS,
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
    whole = _Run(pointers, examples, emitted.scratch_bytes(capacity), capacity, threads, 0, 0)
    work = load(emitted.text, flags).lanewise_work
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, ctypes.byref(whole)) for _ in range(threads)]:
            done.result()
    return Ran(answers, code, site, steps, deepest)
