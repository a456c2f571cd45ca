"""A kernel's text as a call inside XLA on the CPU: the path `C++` of the carrier `native`.

The host's compiler makes a library of the same text that a GPU gets; XLA's foreign-function interface calls it inside
`jit`, on the buffers XLA holds. Examples are spread over XLA's own threads by the kernel's counter. No run waits for a
thread to wake up: each one that comes takes examples until none is left, and so does the thread that XLA calls on. So a
short run costs what it costs on that thread, and a machine with other work to do loses nothing.

For `Stats` the time of the threads that came is added up: how long each had examples, and how long the run went on from
when it came. One that comes late, or not at all, has lost the run a core, but no lane waits there.

An interrupt ends what runs. Python runs a signal's handler between two of its own instructions, and while XLA runs a
kernel there are none: XLA calls it on the very thread that called XLA, or that thread waits. So while a kernel runs
outside `jit` on the main thread, the handler in C is ours. It does what Python's does and counts the signal, then sends
`SIGURG` to the threads that run lanes, whose handler jumps out of the kernel. A kernel only computes: it holds no lock
and owns no memory, so it can be left anywhere, and its loops pay nothing. (`SIGURG` does nothing unless asked for; Go's
runtime takes threads out of their loops with it, for the same reason.) The call then fails with `CUT`, and Python has
its turn: as a rule its handler raises `KeyboardInterrupt`. If it does not, because the program has a handler of its
own, the run starts again: no caller ever sees what a run that was cut short has computed. Runs on other threads are cut
short, and start again, too. What was considered: a flag that loops read costs short loops up to a third of their speed.
A thread that waits for XLA, with Python's main thread free to hear signals, costs each call a switch of threads, and
JAX's settings are a thread's own.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise.core.errors import CompilerError, LanewiseError, OptionError
from lanewise.core.events import RunInfo, Whole
from lanewise.core.sources import composed, source
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.meeting import MOST_LANES
from lanewise.cpp.toolchain import host

# The error of a call that was cut short.
CUT = "lanewise: interrupted"


def obstacle() -> str | None:
    """Why there is no C++ compiler that makes kernels for the host; None if there is."""
    try:
        return host.obstacle(host.command(), host.tuned(_flags(), host.OPTIMIZED))
    except OptionError:
        return "none was found (install g++ or clang++, or set CXX)"


def available() -> bool:
    """Whether there is a C++ compiler that makes kernels for the host."""
    return obstacle() is None


def _flags() -> tuple[str, ...]:
    return (*host.FLAGS, f"-I{jax.ffi.include_dir()}")


def with_entry(text: str) -> str:
    """A kernel's text with what XLA and the host call it by."""
    return text + composed("cpp/toolchain/feeding.h", known=["cpp/runtime/kernel.h"])


def library_of(text: str) -> ctypes.CDLL:
    """The library of a kernel's text."""
    # The library that calls threads out of it is loaded before.
    heard_signals()
    try:
        return host.load_soon(with_entry(text), _flags())
    except CompilerError as error:
        raise CompilerError(
            f"No kernel could be compiled for the CPU: {error}. Give the C++ compiler what it lacks, or use"
            ' carrier="ticks".'
        ) from error


# For good, as XLA has it: what is registered under a name may not change.
@functools.cache
def _target(text: str) -> str:
    """Compile and register a kernel; gives the name XLA knows it by."""
    library = library_of(text)
    name = "lanewise_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.lanewise_ffi), platform="cpu")
    return name


def _asking(text: str) -> Callable[[int], int]:
    """What reports how many examples of a run have ended, by its number."""
    ask = library_of(text).lanewise_done
    ask.restype = ctypes.c_longlong
    return ask


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    emitted: Emitted,
    results: Sequence[Any],
    arguments: Sequence[Any],
    examples: int,
    capacity: int,
    *,
    watched: bool = False,
    each: bool = False,
    stops: bool = False,
    aliases: dict[int, int] | None = None,
) -> Sequence[Any]:
    """The kernel as traceable code: `results` after the run. Arguments in `aliases` are written over.

    `stops`: an interrupt cuts the run short.
    """
    made = jax.ffi.ffi_call(_target(emitted.text), results, input_output_aliases=aliases)
    return made(
        *arguments,
        watched=np.int64(watched),
        each=np.int64(each),
        stops=np.int64(stops),
        examples=np.int64(examples),
        capacity=np.int64(capacity),
        lane_bytes=np.int64(emitted.scratch_bytes(capacity)),
        threads=np.int64(cores()),
        lanes=np.int64(MOST_LANES),
    )


def call(
    emitted: Emitted,
    operands: Sequence[Any],
    examples: int,
    capacity: int,
    info: RunInfo | None = None,
    counts: bool = True,
    stops: bool = False,
) -> tuple[list[Any], Any, Any, Any]:
    """Answers, codes, sites, and (all steps, most frames, busy seconds, seconds in all), as traceable code.

    `info` is for a watcher; `counts`: the kernel counts the steps of its lanes; `stops`: an interrupt ends it.
    """
    results = [
        *emitted.results(examples),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((examples,), jnp.int32),
        jax.ShapeDtypeStruct((4,), jnp.float32),
    ]
    whole, each = None, info is not None and info.recorded and counts
    if info is not None:
        whole = Whole(replace(info, ask=_asking(emitted.text)), operands)
    if each:
        results += [jax.ShapeDtypeStruct((examples,), jnp.int32)] * 2
    arguments, aliases = emitted.arguments(operands)
    arguments += [] if whole is None else [whole.number]
    out = run(
        emitted,
        results,
        arguments,
        examples,
        capacity,
        watched=whole is not None,
        each=each,
        stops=stops,
        aliases=aliases,
    )
    out, (steps, deepest) = (out[:-2], out[-2:]) if each else (out, (None, None))
    *answers, code, place, totals = out
    if whole is not None:
        whole.ended(code, code, steps, deepest)
    return answers, code, place, totals


@functools.cache
def heard_signals() -> ctypes.CDLL | None:
    """The count of signals, where libraries that are loaded later find it; None where it cannot be made."""
    try:
        made = host.load(source("cpp/toolchain/signals.cpp"))
        return ctypes.CDLL(made._name, mode=ctypes.RTLD_GLOBAL)
    except (LanewiseError, OSError):
        return None


def stoppable(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The function, which runs kernels outside `jit`, so that an interrupt ends it."""

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        heard = heard_signals()
        if heard is None:
            return run(*args, **kwargs)
        while True:
            on_main = threading.get_ident() == threading.main_thread().ident
            listens = on_main and heard.lanewise_listen()
            try:
                out = run(*args, **kwargs)
                # All come of one call.
                for array in out[:1]:
                    array.block_until_ready()
                return out
            # Which of the two it is depends on whether XLA runs the call at once.
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                if CUT not in str(error):
                    raise
            finally:
                if listens:
                    heard.lanewise_unlisten()

    return call
