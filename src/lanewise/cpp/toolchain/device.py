"""Kernels on an NVIDIA GPU: compiled by NVRTC, launched on JAX's own stream inside `jit`.

XLA hands us the device buffers that it has for operands and results, and the stream it runs them on; a kernel launched
there is one more operation of the computation. A call of Python on XLA's thread is expensive beside kernels that run
for a tenth of a millisecond. So where the host has a C++ compiler, a small library is made of `launcher.cpp`, once for
all kernels, and XLA's foreign-function interface calls it with the buffers and the stream it has: it clears the counter
and launches. Where there is none, Python does it (`buffer_callback`), which takes longer. The grid is as large as the
device can hold at once and no larger: threads take the next example when they have ended one. What a kernel needs
beside its operands (scratch memory, the counter) are results that nothing reads, so XLA allocates them.

Machine code is cached (see `cache.py`) under its source and what it was compiled for and by. A compiled computation may
outlive this process (JAX can cache it on disk), and a kernel's address does not. So a call names its kernel by a hash
of its text; which kernel that is, the library learns when the kernel is loaded, which tracing a program does in every
process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from lanewise import _jax
from lanewise.core import events
from lanewise.core.errors import InternalError, LanewiseError, OptionError
from lanewise.core.events import RunInfo, Whole
from lanewise.core.sources import composed
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.toolchain import cache, host

# Lanes of a block share nothing; small blocks let a multiprocessor take the next one early.
LANES_PER_BLOCK = 128
# How many blocks a multiprocessor holds, however small they are.
BLOCKS_PER_PROCESSOR = 32
# The most memory that lanes in flight may have for their stacks and arrays; beyond it fewer are in flight.
MOST_SCRATCH_BYTES = 4 << 30
# A kernel that an interrupt can end looks for one after this many ticks of its clock, a twentieth of a second or so.
LISTENING_TICKS = 100_000_000
# No contraction, as XLA has it; the floating-point defaults of NVRTC (exact division and roots) are kept.
COMPILE_OPTIONS = ("--std=c++17", "--fmad=false", "-default-device", "-lineinfo")

TARGET = "lanewise_launch"


def available() -> bool:
    """Whether NVIDIA's Python bindings are installed and a GPU is there."""
    try:
        _bindings()
    except OptionError:
        return False
    return _jax.has_platform("gpu")


@functools.cache
def _bindings() -> tuple[Any, Any]:
    try:
        from cuda.bindings import driver, nvrtc  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise OptionError(
            'carrier="kernel" needs NVIDIA\'s cuda-bindings; install lanewise[cuda].'
        ) from error
    return driver, nvrtc


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of CUDA gives after its status, or an error."""
    status, *rest = answer
    if int(status) != 0:
        raise InternalError(f"CUDA answered {status!r}")
    return rest[0] if len(rest) == 1 else rest


@dataclass(frozen=True)
class Loaded:
    """A kernel on a device: its function, the lanes that the device holds at once, and its multiprocessors."""

    function: Any
    lanes: int
    processors: int


def _context(ordinal: int) -> tuple[Any, Any]:
    """A device, and the context JAX works in there, made current on this thread."""
    driver, _ = _bindings()
    _checked(driver.cuInit(0))
    device = _checked(driver.cuDeviceGet(ordinal))
    context = _checked(driver.cuDevicePrimaryCtxRetain(device))
    _checked(driver.cuCtxSetCurrent(context))
    return device, context


@functools.lru_cache(maxsize=512)
def load(text: str, ordinal: int = 0) -> Loaded:
    """Compile a kernel's text for a device, or find it compiled, and load it."""
    driver, _ = _bindings()
    device, context = _context(ordinal)
    attribute = driver.CUdevice_attribute
    major, minor, processors = (
        _checked(driver.cuDeviceGetAttribute(which, device))
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
    )
    code = machine_code(text, f"sm_{major}{minor}")
    module = _checked(driver.cuModuleLoadData(code))
    function = _checked(driver.cuModuleGetFunction(module, Emitted.name.encode()))
    blocks = _checked(
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, LANES_PER_BLOCK, 0)
    )
    _keep(text, int(function), int(context))
    if text.startswith("#define LW_STOPS"):
        flag, _ = _checked(driver.cuModuleGetGlobal(module, b"lw_stop"))
        _flags.append(flag)
    return Loaded(function, processors * max(blocks, 1) * LANES_PER_BLOCK, processors)


def machine_code(text: str, architecture: str) -> bytes:
    """A kernel's machine code, from disk if it was compiled before."""
    _, nvrtc = _bindings()
    version = _checked(nvrtc.nvrtcVersion())
    options = (*COMPILE_OPTIONS, f"--gpu-architecture={architecture}")
    name = cache.name_of((text, *options, str(version)), ".cubin")
    code = cache.read(name)
    if code is None:
        with events.compiling("CUDA by NVRTC"):
            code = _compiled(text, options)
        cache.keep(name, code)
    return code


def _compiled(text: str, options: Sequence[str]) -> bytes:
    _, nvrtc = _bindings()
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"lanewise.cu", 0, [], []))
    encoded = [option.encode() for option in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    if int(status) != 0:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise InternalError(f"NVRTC does not compile the kernel:\n{log.decode()}\n{text}")
    code = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code


@functools.cache
def launcher() -> ctypes.CDLL | None:
    """The launcher, known to XLA; None where there is no compiler to make it."""
    try:
        made = host.load(
            composed("cpp/toolchain/launcher.cpp"), (*host.FLAGS, f"-I{jax.ffi.include_dir()}")
        )
        driver = ctypes.CDLL("libcuda.so.1")
    except (LanewiseError, OSError):
        return None
    wanted = (driver.cuCtxSetCurrent, driver.cuMemsetD32Async, driver.cuLaunchKernel)
    made.lanewise_driver(*(ctypes.cast(function, ctypes.c_void_p) for function in wanted))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(made.lanewise_launch), platform="CUDA")
    return made


def _key_of(text: str) -> int:
    """What a call names its kernel by."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _keep(text: str, function: int, context: int) -> None:
    """Register with the launcher which kernel a text has become."""
    made = launcher()
    if made is not None and not made.lanewise_keep(
        ctypes.c_longlong(_key_of(text)), ctypes.c_void_p(function), ctypes.c_void_p(context)
    ):
        raise MemoryError


def run(
    emitted: Emitted,
    answers: Sequence[Any],
    arguments: Sequence[Any],
    examples: int,
    capacity: int,
    *,
    lanes: int | None = None,
    spread: bool = False,
    aliases: dict[int, int] | None = None,
) -> Sequence[Any]:
    """The kernel as traceable code: `answers`, steps and frames of each example, and what nothing reads.

    `lanes` bounds those in flight. `spread`: lanes have far to go to memory and go different ways; as few as possible
    run in step. Arguments in `aliases` are written over.
    """
    kernel = load(emitted.text)
    lane_bytes = emitted.scratch_bytes(capacity)
    in_flight = min(kernel.lanes, examples, lanes or examples)
    if lane_bytes:
        in_flight = min(in_flight, max(MOST_SCRATCH_BYTES // lane_bytes, 1))
    threads = LANES_PER_BLOCK
    if emitted.threads > 1:
        threads, in_flight = emitted.threads, emitted.threads * examples
    elif spread:
        threads = min(threads, -(-in_flight // (kernel.processors * BLOCKS_PER_PROCESSOR)))
    blocks = -(-in_flight // threads)
    results = [
        *answers,
        jax.ShapeDtypeStruct((examples, 2), jnp.uint32),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        jax.ShapeDtypeStruct((blocks * threads * lane_bytes + 16,), jnp.uint8),
    ]

    numbers = {"blocks": blocks, "threads": threads, "examples": examples, "capacity": capacity}

    def by_python(context: Any, out: Sequence[Any], *given: Any) -> None:
        _launch(kernel, context.stream, [*given, *out], **numbers)

    if launcher() is None:
        return buffer_callback(by_python, results, input_output_aliases=aliases)(*arguments)
    return jax.ffi.ffi_call(TARGET, results, input_output_aliases=aliases)(
        *arguments,
        key=np.int64(_key_of(emitted.text)),
        **{name: np.int64(value) for name, value in numbers.items()},
    )


def call(
    emitted: Emitted,
    operands: Sequence[Any],
    examples: int,
    capacity: int,
    lanes: int | None,
    info: RunInfo | None = None,
) -> tuple[list[Any], Any, Any, Any]:
    """Answers, codes, sites, and (all steps, most frames), as traceable code; `lanes` bounds those in flight.

    A watcher (`info`) sees the beginning and the end. Counting examples where a host can see it would cost
    every thread a way over the bus.
    """
    whole = None if info is None else Whole(info, operands)
    answers = [
        *emitted.results(examples),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
    ]
    arguments, aliases = emitted.arguments(operands)
    made = run(emitted, answers, arguments, examples, capacity, lanes=lanes, aliases=aliases)
    *answers, code, place, steps, deepest, _, _ = made
    if whole is not None:
        whole.ended(code, code, steps[:, 0].astype(jnp.int32), deepest)
    low, high = (steps[:, word].astype(jnp.float32).sum() for word in range(2))
    totals = jnp.stack([low + high * 2.0**32, deepest.max(initial=0).astype(jnp.float32)])
    return answers, code, place, totals


# Where the kernels that can be stopped look.
_flags: list[Any] = []


def set_flags(value: int) -> None:
    """Set what kernels that can be stopped look at, on a stream that no kernel is on."""
    driver, _ = _bindings()
    _context(0)
    stream = _checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
    for flag in _flags:
        _checked(driver.cuMemsetD32Async(flag, value, 1, stream))
    _checked(driver.cuStreamSynchronize(stream))
    _checked(driver.cuStreamDestroy(stream))


def _launch(kernel: Loaded, stream: int, buffers: Sequence[Any], **numbers: int) -> None:
    driver, _ = _bindings()
    pointers = [buffer.__cuda_array_interface__["data"][0] for buffer in buffers]
    counter = pointers[-2]
    _checked(driver.cuMemsetD32Async(counter, 0, 2, stream))
    blocks, threads = numbers["blocks"], numbers["threads"]
    values = (*pointers, numbers["examples"], numbers["capacity"])
    kinds = (*[ctypes.c_void_p] * len(pointers), ctypes.c_longlong, ctypes.c_int)
    _checked(
        driver.cuLaunchKernel(
            kernel.function, blocks, 1, 1, threads, 1, 1, 0, stream, (values, kinds), 0
        )
    )
