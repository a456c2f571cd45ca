"""The carrier `kernel`: the whole program as one CUDA kernel, a thread a lane."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from lanewise.carriers import alone
from lanewise.core.profile import GPU
from lanewise.cpp.emit.emitted import Emitted, size_obstacle
from lanewise.cpp.kernels import blocks_for, kernel_or_obstacle, run_kernel
from lanewise.cpp.toolchain import device, waiting
from lanewise.grow.memory import FIRST_DEPTH
from lanewise.job.job import Job
from lanewise.job.plan import HostRun, Plan, Ran


def offer(job: Job, schedule: str, why: str) -> Plan | str:
    """Any program that a kernel can be written for, whose lanes take little memory."""
    refused = alone.obstacle("kernel", "gpu", job.platform, schedule)
    if refused is not None:
        return refused
    if not device.available():
        return 'carrier="kernel" needs an NVIDIA GPU and NVIDIA\'s cuda-bindings (lanewise[cuda]).'
    found = kernel_or_obstacle(job.program, job.varying, job.options)
    obstacle = size_obstacle(found, GPU) if isinstance(found, Emitted) else found
    if obstacle is not None:
        return f'carrier="kernel" cannot carry {obstacle}. Use carrier="ticks".'
    assert isinstance(found, Emitted)
    return Plan(job, "kernel", "one lane", why, "NVRTC", emitted=found)


def run(plan: Plan, operands: Sequence[Any]) -> list[Any]:
    """The run as traceable code."""
    return alone.run_inside_jit(plan, operands, _run_lanes)


def on_host(plan: Plan) -> HostRun:
    """The run outside `jit`. The more memory a lane takes the fewer are in flight, so stacks start small."""
    job = plan.job
    linked = blocks_for(job.program, job.varying, job.options)
    return alone.run_on_host(
        plan, _run_lanes, waiting.stoppable, linked, in_flight=1, first=FIRST_DEPTH
    )


def _run_lanes(plan: Plan, operands: Sequence[Any], capacity: int, stops: bool) -> Ran:
    emitted, job = plan.emitted, plan.job
    assert emitted is not None
    if stops:
        emitted = emitted.stopped_by_flag(device.LISTENING_TICKS)
    call = functools.partial(device.call, lanes=job.options.lanes, info=plan.info)
    return run_kernel(emitted, job.program, operands, job.examples, capacity, call)
