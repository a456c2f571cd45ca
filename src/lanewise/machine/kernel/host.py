"""Kernels on the host: the same text, compiled by the host's C++ compiler.

This is how the emitter is tested where there is no GPU. Lanes are spread over a few host threads, each of which takes
examples from the shared counter as a GPU's threads do. The emitted text holds both sides; without CUDA's compiler its
header gives the keywords their host meaning.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lanewise.errors import OptionError
from lanewise.machine.kernel.emit import Emitted

FLAGS = ("-O2", "-std=c++17", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-w")


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


@functools.lru_cache(maxsize=256)
def load(text: str, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Compile a kernel's text, or find it compiled."""
    command = compiler()
    key = hashlib.sha256("\0".join((command, *flags, text)).encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"lanewise-host-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            source, made = Path(work) / "kernel.cpp", Path(work) / "kernel.so"
            source.write_text(text)
            done = subprocess.run(
                [command, *flags, str(source), "-o", str(made)], capture_output=True, text=True
            )
            if done.returncode:
                raise OptionError(f"{command} does not compile the kernel:\n{done.stderr}\n{text}")
            made.rename(library)
    return ctypes.CDLL(str(library))


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
    counter = np.zeros(1, np.uint64)
    scratch = np.zeros(emitted.scratch_bytes(capacity) * threads + 16, np.uint8)
    arrays = [*given, *answers, code, site, steps, deepest, counter, scratch]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    load(emitted.text, flags).lanewise_run(
        pointers, ctypes.c_longlong(examples), ctypes.c_int(capacity), ctypes.c_int(threads)
    )
    return Ran(answers, code, site, steps, deepest)
