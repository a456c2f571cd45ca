"""The carrier `native`: one lane at a time on a CPU, with real loops and branches.

Three paths lead there.

* `C++`: the kernel's text (`cpp/`) compiled by the host's C++ compiler and called by XLA inside `jit`. Loop
  variables live in machine registers, and the examples are spread over all cores. Where lanes multiply by a large
  matrix that they share, a core has several under way, which meet there (`cpp/runtime/meeting.h`).
* `C++, 16 lanes in step`: the same for a program that is one loop of scalar arithmetic, which a core runs for several
  lanes at once with its vector instructions (`cpp/variants/tiles.py`).
* `XLA`: XLA:CPU's own code (`by_xla.py`), where a kernel cannot be made.

Considered: several CPU devices under `shard_map` need a flag before JAX starts; a pool of Python threads that
each run a part works outside `jit` only; several calls in one computation are compiled once each.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from lanewise.carriers import alone, by_xla
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.kernels import blocks_for, kernel_in_step, kernel_or_obstacle, run_kernel
from lanewise.cpp.toolchain import foreign
from lanewise.cpp.variants.tiles import TILE
from lanewise.job.job import Job
from lanewise.job.plan import CPP, HostRun, Plan, Ran

# The frames a stack holds at first: a core has one lane in flight, and memory is not touched before it is used.
DEEP = 1 << 16

IN_STEP = f"C++, {TILE} lanes in step"
XLA = "XLA"


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Any program that one of the three paths takes."""
    refused = alone.obstacle("native", "cpu", job.platform, schedule)
    if refused is not None:
        return refused
    given = (job.program, job.varying, job.options)
    in_the_way = foreign.obstacle()
    if in_the_way is None:
        emitted = kernel_in_step(*given)
        if emitted is not None:
            why = f"{why}; one loop of scalar arithmetic, which vector instructions run"
            return Plan(job, "native", "one lane", why, IN_STEP, emitted=emitted)
        found = kernel_or_obstacle(*given)
        if isinstance(found, Emitted):
            if found.meets:
                why = f"{why}; lanes of a core meet at products with matrices that they share"
            return Plan(job, "native", "one lane", why, CPP, emitted=found)
        in_the_way = str(found)
    linked = blocks_for(job.program, job.varying, job.options.unwatched())
    missing = by_xla.missing(linked)
    if missing is not None:
        return (
            f'carrier="native" cannot run this program. By a C++ compiler: {in_the_way}. By XLA: {missing} has no code'
            ' for one lane at a time. Use carrier="ticks".'
        )
    why = f"{why}; by a C++ compiler it cannot be: {in_the_way}"
    return Plan(job, "native", "one lane", why, XLA, linked=linked)


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """The run as traceable code."""
    return alone.run_inside_jit(plan, operands, _run_lanes)


def on_host(plan: Plan) -> HostRun:
    """The run outside `jit`."""
    job = plan.job
    linked = blocks_for(job.program, job.varying, job.options)
    return alone.run_on_host(
        plan, _run_lanes, foreign.stoppable, linked, in_flight=foreign.cores(), first=DEEP
    )


def _run_lanes(plan: Plan, operands: Sequence[Any], capacity: int, stops: bool) -> Ran:
    info = plan.info
    if plan.path == XLA:
        return by_xla.run_by_xla(plan, operands, capacity, info)
    assert plan.emitted is not None
    call = functools.partial(foreign.call, info=info, counts=plan.path != IN_STEP, stops=stops)
    job = plan.job
    return run_kernel(plan.emitted, job.program, operands, job.examples, capacity, call)
