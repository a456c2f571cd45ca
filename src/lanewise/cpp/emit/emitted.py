"""What an emitter writes: a kernel's text, what its callers need to know, and where a host's thread begins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import InternalError
from lanewise.core.profile import CPU, Profile
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.meeting import LARGE_BYTES, available
from lanewise.cpp.emit.rules import parts


@dataclass(frozen=True)
class Operand:
    """An array of the kernel's signature: shape and dtype for one example; `varies` if it has an axis of examples.

    Typed keys are given as the `uint32` words they are made of.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    varies: bool
    kind: str


@dataclass(frozen=True)
class Emitted:
    """A kernel: its text, and what the launcher must know.

    The arguments are `operands` (those of the program, then `constants`, which the launcher adds), zeros for each of
    `sums`, `outputs`, `sums` (in the place of the zeros), then `int code[examples]`, `int site[examples]`, `long
    long steps[examples]`, `int deepest[examples]`, `unsigned long long next[1]` (zero at the start), `char
    scratch[scratch_bytes(capacity) * lanes]`, `long long examples`, `int capacity`. A host's threads call
    `lanewise_work(lw_run*)` instead, and share an `lw_run` (`cpp/runtime/threads.h`)."""

    text: str
    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    constants: tuple[np.ndarray, ...]
    fixed_bytes: int
    frame_bytes: int
    # How many threads of a GPU run a lane.
    threads: int = 1
    sums: tuple[Operand, ...] = ()

    name = "lanewise_kernel"

    @property
    def meets(self) -> bool:
        """Whether lanes of a thread meet at products (`cpp/runtime/meeting.h`)."""
        return available() and "#define LW_COMMON" in self.text

    def stopped_by_flag(self, ticks: int) -> Emitted:
        """The same kernel, which ends when its global `lw_stop` is set; it looks at that every `ticks` of its clock."""
        return replace(self, text=f"#define LW_STOPS {ticks}ll\n{self.text}")

    def results(self, examples: int) -> list[Any]:
        """The types of the answers of all examples, and of the sums over them."""
        each = [jax.ShapeDtypeStruct((examples, *out.shape), out.dtype) for out in self.outputs]
        return [*each, *(jax.ShapeDtypeStruct(out.shape, out.dtype) for out in self.sums)]

    def arguments(self, operands: Sequence[Any]) -> tuple[list[Any], dict[int, int]]:
        """What a kernel is called with, and which results are in the place of which arguments."""
        zeros = [np.zeros(out.shape, out.dtype) for out in self.sums]
        given = [*operands, *self.constants, *zeros]
        # A kernel has only pointers: it would read an array of another type as garbage, and loop on it.
        for place, (array, wanted) in enumerate(zip(given, self.operands)):
            found = jax.dtypes.canonicalize_dtype(array.dtype), array.shape[wanted.varies :]
            if found != (wanted.dtype, wanted.shape):
                raise InternalError(
                    f"operand {place} of a kernel is {found[0].name}{list(found[1])}, and its code reads"
                    f" {wanted.dtype.name}{list(wanted.shape)}"
                )
        first = len(given) - len(zeros)
        return given, {first + i: len(self.outputs) + i for i in range(len(zeros))}

    def scratch_bytes(self, capacity: int) -> int:
        """The scratch memory one lane takes when its stacks hold `capacity` frames."""
        return self.fixed_bytes + self.frame_bytes * capacity


def operand_of(shape: Sequence[int], dtype: Any, varies: bool) -> Operand:
    """An argument that holds arrays of this shape and type."""
    kind = dtypes.ctype(dtype)
    if kind == "key2":
        return Operand((*shape, 2), np.dtype(np.uint32), varies, kind)
    return Operand(tuple(shape), np.dtype(dtype), varies, kind)


@dataclass(frozen=True)
class Obstacle:
    """Why a program cannot be a kernel: the operation, the user's line it comes from, and what is the matter."""

    operation: str
    line: str
    why: str

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.operation}: {self.why}{where}"


def size_obstacle(emitted: Emitted, profile: Profile = CPU) -> Obstacle | None:
    """What keeps a kernel from running on a platform, if its lanes take too much memory for that."""
    most = profile.most_lane_bytes
    if emitted.fixed_bytes <= most:
        return None
    why = f"a lane would take {emitted.fixed_bytes:,} bytes; at most {most:,} are sensible"
    return Obstacle("the state of a lane", "", why)


def shared_ranges(operands: Sequence[Operand]) -> str:
    """Where the large operands that lanes share begin and end, as `LW_COMMON` has it; empty if there is none."""
    sizes = [math.prod(o.shape) * o.dtype.itemsize for o in operands]
    starts = [f"(const char*)run->arguments[{place}]" for place in range(len(operands))]
    return ", ".join(
        f"{{{start}, {start} + {size}ll}}"
        for start, size, operand in zip(starts, sizes, operands, strict=True)
        if size >= LARGE_BYTES and not operand.varies
    )


def host_entry(
    arguments: Sequence[str], sums: dict[int, Operand], outer: Set[int], meets: bool
) -> str:
    """What a thread of the host calls (`cpp/runtime/work.h`), with what depends on the program.

    `sums` of its own are by the number of their argument. Those of `outer` are followed by rows of what is to be added
    to them. If it `meets`, the thread has several lanes (`cpp/runtime/meeting.h`).
    """
    *buffers, _, _ = arguments
    rows = {i: f"{sums[i].kind}, {', '.join(map(str, sums[i].shape))}" for i in outer}
    sizes = [
        f"{8 * math.prod(o.shape)}"
        + (f" + (long long)sizeof(lw_outer_rows<{rows[i]}>)" if i in outer else "")
        for i, o in sums.items()
    ]
    # Each begins where numbers of any type may.
    ends = itertools.accumulate((f"({size} + 15) / 16 * 16" for size in sizes), "{} + {}".format)
    starts = dict(zip(sums, ("0", *ends)))
    total = " + ".join(f"({size} + 15) / 16 * 16" for size in sizes)
    sources = [
        f"thread->sums + {starts[i]}" if i in sums else f"run->arguments[{i}]"
        for i in range(len(buffers))
    ]
    given = ", ".join(
        f"({buffer.rsplit('*', 1)[0].strip()}*)({source})"
        for buffer, source in zip(buffers, sources, strict=True)
    )
    run_lanes = _RUN_LANES.format(given)
    work = parts("work")
    added = [f"#define LW_SUMS_BYTES {total}", work["lw_add_up"], _add_sums(sums, rows, starts)]
    text = [*(added if sums else ()), run_lanes, *([work["meeting"]] if meets else ())]
    return "\n".join(["#ifndef __CUDACC__", *text, work["alone"], "#endif"])


def _add_sums(sums: dict[int, Operand], rows: dict[int, str], starts: dict[int, str]) -> str:
    flushing = [
        f"  lw_flush_outer<{rows[i]}>((lw_sum<{sums[i].kind}>::type*)(own + {starts[i]}));"
        for i in sorted(rows)
    ]
    adding = [
        f"  lw_add_up(({o.kind}*)run->arguments[{at}], (lw_sum<{o.kind}>::type*)(own + {starts[at]}),"
        f" {math.prod(o.shape)}ll);"
        for at, o in sums.items()
    ]
    return _ADD_SUMS.format("\n".join(flushing), "\n".join(adding))


_RUN_LANES = """static void lw_run_lanes(void* data) {{
  lw_thread* thread = (lw_thread*)data;
  lw_run* run = thread->run;
  lw_share share = {{run, 0, 0, 1, 0, 0, LW_IDLE}};
  lanewise_kernel({}, &share, thread->scratch, run->examples, run->capacity);
}}"""
# The run has the lock, not this library: while better code takes over, threads of two libraries add.
_ADD_SUMS = """static void lw_add_sums(lw_run* run, char* own) {{
{}
  while (__atomic_exchange_n(&run->adding, 1, __ATOMIC_ACQUIRE)) sched_yield();
{}
  __atomic_store_n(&run->adding, 0, __ATOMIC_RELEASE);
}}"""
