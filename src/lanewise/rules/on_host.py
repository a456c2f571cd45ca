"""Programs outside `jit`.

The host has a part in such a run. When a stack or a tape is full it makes room, and the machine goes on from the state
it stopped in. It looks at some lanes before it decides how to run them all. And an interrupt ends the run: a machine
by ticks comes back to Python every now and then (`growing.py`), and kernels are left (`cpp/build/signals.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.carriers.table import ALONE, carrier_for
from lanewise.core import compiling
from lanewise.core import events as watchers
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.grow.rerun import RerunLarger
from lanewise.job.axes import Mapped, of_rows
from lanewise.job.job import Job, Room, job_for
from lanewise.job.plan import HostRun, Plan
from lanewise.job.results import apart, of_no_lanes
from lanewise.plan import given_up
from lanewise.plan.choose import as_watched, plan
from lanewise.plan.folded import folded
from lanewise.plan.given_up import or_given_up
from lanewise.plan.sharded import Split
from lanewise.rules.explain import explainable


def execute_on_host(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    room: Room | None = None,
) -> list[Any]:
    """Answers of all lanes, then what else is wanted; stacks grow as far as `max_depth` allows."""
    platform, devices = _jax.placed(operands)
    job = job_for(program, lanes, mapped, options, platform, room)
    run = on_host(job)
    if devices > 1 and job.examples:
        split = Split.of_values(operands)
        if split is not None:
            split.refuse(run.plan(operands))
    if not job.options.watched:
        out = run(operands)
    else:
        with watchers.call(program.name):
            out = run(operands)
            out = jax.block_until_ready(out) if job.options.recorded else out
    if program.formats:
        explainable(out[len(program.out_avals)], run.job.program, operands, mapped)
    return out


class OnHost:
    """What runs a job outside `jit`: chosen at the first call, which has lanes to look at, for all later ones."""

    def __init__(self, job: Job) -> None:
        self.job = job.as_it_runs()
        self._plan: Plan | None = None
        self._failed: str | None = None
        self._run: HostRun | None = None

    def plan(self, operands: Sequence[Any]) -> Plan:
        """How the job runs; these operands may be sampled if none have been."""
        job = self.job
        if self._plan is None or given_up.reason(job.program):
            if job.options.watched:
                self._plan = as_watched(on_host(job.unwatched()).plan(operands), job)
            elif (fold := folded(job)) is not None:
                self._plan = on_host(fold.inner).plan(fold.operands(operands))
            else:
                self._plan = plan(job, operands)
        return self._plan

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        return or_given_up(self.job, lambda: self._latest(operands)(operands))

    def _latest(self, operands: Sequence[Any]) -> HostRun:
        failed = given_up.reason(self.job.program)
        if self._run is None or failed != self._failed:
            self._run, self._failed = self._made(operands), failed
        return self._run

    def _made(self, operands: Sequence[Any]) -> HostRun:
        job = self.job
        if job.examples == 0:
            return lambda operands: of_no_lanes(job)
        fold = folded(job)
        if fold is not None:
            inner = on_host(fold.inner)
            return lambda operands: fold.answers(inner(fold.operands(operands)))
        compiling.watch(job.program.name, progress=job.options.progress, new=True)
        chosen = self.plan(operands)
        compiling.watch(job.program.name, chosen.words, job.options.progress)
        run = carrier_for(chosen).on_host(chosen)
        larger = job.larger() if job.program.has_tapes else None
        return run if larger is None else _with_larger_tapes(run, chosen, larger).run_growing


def _with_larger_tapes(run: HostRun, chosen: Plan, larger: Job) -> RerunLarger:
    """The same, with lanes run again whose tapes were full in the end."""
    job = chosen.job
    alone = chosen.carrier in ALONE
    if alone:
        larger = larger.with_options(carrier=chosen.carrier)

    def whole(operands: Sequence[Any]) -> list[Any]:
        return on_host(larger)(larger.given(operands))

    def part(operands: Sequence[Any], rows: np.ndarray) -> list[Any]:
        taken, axes = of_rows(larger.given(operands), rows, job.lanes, job.mapped)
        return on_host(replace(larger, lanes=rows.shape, mapped=axes))(taken)

    codes = len(job.program.out_avals)
    return RerunLarger(run, whole, part if alone and apart(job) else None, codes)


on_host = functools.lru_cache(maxsize=512)(OnHost)
