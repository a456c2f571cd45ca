"""Programs outside `jit`.

The host has a part in such a run. When a stack or a tape is full it makes room, and the machine goes on from the state
it stopped in. It looks at some lanes before it decides how to run them all. And an interrupt ends the run: a machine
by ticks comes back to Python every now and then (`growing.py`), and kernels are left (`cpp/toolchain/signals.py`).
"""

from __future__ import annotations

from typing import Any

import jax

from lanewise import _jax
from lanewise.core import events
from lanewise.job.job import Room, job_for
from lanewise.plan.sharded import Split
from lanewise.rules.explain import explainable
from lanewise.rules.host_run import on_host


def execute_on_host(*operands: Any, room: Room | None = None, **params: Any) -> list[Any]:
    """Answers of all lanes, then what else is wanted; stacks grow as far as `max_depth` allows.

    `params` are those of `program_p`; `room`: tapes grow as well.
    """
    platform, devices = _jax.placed(operands)
    job = job_for(**params, platform=platform, room=room)
    program = job.program
    run = on_host(job)
    if devices > 1 and job.examples:
        split = Split.of_values(operands)
        if split is not None:
            split.refuse(run.plan(operands))
    if not job.options.watched:
        out = run(operands)
    else:
        with events.call(program.name):
            out = run(operands)
            out = jax.block_until_ready(out) if job.options.recorded else out
    if program.formats:
        explainable(out[len(program.out_avals)], run.job.program, operands, job.mapped)
    return out
