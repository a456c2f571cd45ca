"""What a run holds in memory, known before it is compiled, and how many frames its stacks may hold.

A machine holds every register of every lane and, where it recurses, as many frames of every stack as there is room for.
Inside `jit` that is fixed when the code is made: the gradient of a recursion has an adjoint of whatever it closes over
in each of 1,024 frames of each lane, which can be terabytes. XLA would request all of it, and the process would end. So
a run that needs more than the device has is refused; the message has the largest parts and what makes them smaller.
Outside `jit` stacks start small and grow, up to `most_depth`.

Not counted are XLA's own copies, and the stacks of kernels, which take memory as they use it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise import _jax
from lanewise._jax import storage_struct
from lanewise.blocks.link import Linked
from lanewise.core.errors import OptionError
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.job.job import Job

# How many parts a message names.
MOST_NAMED = 3
LIMIT_OF_GROUP = Path("/sys/fs/cgroup/memory.max")
# How many frames a stack holds at first outside `jit`, and how many times as many after each growth.
FIRST_DEPTH = 32
GROWTH = 4
# Without max_depth, growth ends here: a recursion this deep, or stacks this large, will not end on its own.
DEEPEST = 1 << 20
MOST_STACK_BYTES = 4 << 30


@dataclass(frozen=True)
class Part:
    """An array that a run holds: what it is, its size, and whether it is a stack, or an answer of every example."""

    what: str
    size: int
    stacked: bool = False
    answered: bool = False


def parts_of_state(linked: Linked, lanes: int, capacity: int) -> list[Part]:
    """The arrays of a machine's state."""
    results = frozenset(linked.program.entry_function.results)
    held = [
        Part(_each(storage_struct(var), lanes), _bytes(var) * lanes, answered=var in results)
        for var in linked.registers
    ]
    frames = [
        Part(
            f"{_each(storage_struct(var), lanes)} and each of {capacity:,} frames",
            _bytes(var) * lanes * capacity,
            stacked=True,
        )
        for var in linked.storage.stacks
    ]
    return [*held, *frames]


def parts_of_answers(avals: Iterable[Any], lanes: int) -> list[Part]:
    """The arrays of answers."""
    return [
        Part(
            _each(aval, lanes),
            math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 8) * lanes,
            answered=True,
        )
        for aval in avals
    ]


def refuse_too_large(job: Job, linked: Linked | None, capacity: int, *, inside_jit: bool) -> None:
    """Raise if a run, of a machine by ticks or of lanes on their own, needs more memory than the platform has.

    The stacks of a machine hold `capacity` frames.
    """
    if job.platform is None:
        return
    own = [
        aval for aval, has in zip(job.program.out_avals, job.answer_axes, strict=True) if all(has)
    ]
    parts = parts_of_answers(own, job.examples)
    if linked is not None:
        # Without refill, answers are registers.
        parts = parts if job.refilled else []
        parts += parts_of_state(linked, job.width, capacity)
    refuse_parts(job.program, parts, job.width, job.platform, inside_jit)


def refuse_parts(
    program: Program, parts: Sequence[Part], lanes: int, platform: str, inside_jit: bool
) -> None:
    """Raise if the parts need more memory than the platform has."""
    limit, needed = device_bytes(platform), sum(part.size for part in parts)
    if limit is None or needed <= limit:
        return
    largest = sorted(parts, key=lambda part: -part.size)[:MOST_NAMED]
    named = "; ".join(f"{in_words(part.size)} for {part.what}" for part in largest)
    ways = ["a smaller batch" if largest[0].answered else "fewer lanes at a time (lanes=)"]
    if any(part.stacked for part in largest):
        ways.append("fewer frames (max_depth=)")
    if program.has_tapes:
        ways.append("a shorter tape (tape=)")
    if inside_jit:
        ways.append("no jit around it: then stacks and tapes start small, and grow as lanes need")
    raise OptionError(
        f"`{program.name}` needs {in_words(needed)} of memory for {lanes:,} lanes, and this device has"
        f" {in_words(limit)}. The largest parts: {named}. What helps: {'; '.join(ways)}."
    )


@functools.cache
def device_bytes(platform: str) -> int | None:
    """The memory of a device of the platform: what JAX may use, or what the machine has; None if that is not known."""
    if platform != "cpu":
        return _jax.device_memory(platform)
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(whole, int(LIMIT_OF_GROUP.read_text()))
    except (OSError, ValueError):
        return whole


def in_words(size: float) -> str:
    """A size in the unit that fits.

    >>> in_words(3 << 40), in_words(1536)
    ('3.0 TiB', '1.5 KiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    place = min(int(math.log2(max(size, 1)) // 10), len(units) - 1)
    return f"{size:,} bytes" if place == 0 else f"{size / 2.0 ** (10 * place):.1f} {units[place]}"


def _each(value: Any, lanes: int) -> str:
    sizes = ",".join(map(str, value.shape))
    return f"a {value.dtype.name}[{sizes}] of each of {lanes:,} lanes"


def _bytes(var: Any) -> int:
    struct = storage_struct(var)
    return math.prod(struct.shape) * struct.dtype.itemsize


def most_depth(linked: Linked, lanes: int, options: Options) -> int:
    """How deep stacks may grow outside `jit`."""
    if options.max_depth is not None:
        return options.max_depth
    frame = sum(map(_bytes, linked.storage.stacks))
    return max(FIRST_DEPTH, min(DEEPEST, MOST_STACK_BYTES // max((frame + 4) * lanes, 1)))
