"""Programs outside `jit`.

The host has a part in such a run. When a stack or a tape is full it makes room, and the machine goes on from the state
it stopped in. It looks at some lanes before it decides how to run them all. And an interrupt ends the run: a machine
by ticks comes back to Python every now and then (`growing.py`), and kernels are left (`cpp/toolchain/foreign.py`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from lanewise import _jax
from lanewise.core import events
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.job.axes import Mapped
from lanewise.job.job import Room, job_for
from lanewise.plan.sharded import Split
from lanewise.rules.explain import explainable
from lanewise.rules.host_run import OnHost, on_host


def execute_on_host(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    room: Room | None = None,
    summed: tuple[int, ...] = (),
) -> list[Any]:
    """Answers of all lanes, then what else is wanted; stacks grow as far as `max_depth` allows.

    With `room` tapes grow as well.
    """
    platform, devices = _jax.placed(operands)
    run = _runs(program, lanes, mapped, options, platform, events.recorded(), room, summed)
    job = run.job
    if devices > 1 and job.examples:
        split = Split.of_values(operands)
        if split is not None:
            split.refuse(run.plan(operands))
    if not job.options.watched:
        out = run(operands)
    else:
        with events.call(job.program.name):
            out = run(operands)
            out = jax.block_until_ready(out) if job.options.recorded else out
    if job.program.formats:
        explainable(out[job.program.num_results], job.program, operands, job.mapped)
    return out


# Looked up at each call, by what is at hand: a job takes longer to make than to find what it came to.
@functools.lru_cache(maxsize=1024)
def _runs(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    platform: str,
    recorded: bool,
    room: Room | None,
    summed: tuple[int, ...],
) -> OnHost:
    """What runs `program_p` with these parameters."""
    del recorded  # a job knows
    return on_host(
        job_for(program, lanes, mapped, options, platform=platform, room=room, summed=summed)
    )
