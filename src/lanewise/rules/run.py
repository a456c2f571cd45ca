"""What runs a job: traceable code inside `jit`, and outside it the host with a part in the run.

`execute` is for use inside `jit` and inside other programs; there a stack holds a fixed number of frames. Outside, an
`OnHost` is made once for each job. When a stack or a tape is full the host makes room, and the machine goes on from the
state it stopped in. It looks at some lanes before it decides how to run them all. And an interrupt ends the run: a
machine by ticks comes back to Python every now and then (`growing.py`), and kernels are left
(`cpp/toolchain/foreign.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn
from lanewise.carriers.table import ALONE, carrier_for
from lanewise.core import compiling, events
from lanewise.core.program import on_machine_inside
from lanewise.grow.rerun import RerunLarger
from lanewise.job.job import Job, job_for, of_rows
from lanewise.job.plan import HostRun, Plan, apart, of_no_lanes
from lanewise.plan.choose import as_watched, given_up, inside_jit, or_given_up, plan
from lanewise.plan.folded import Folded, folded


def execute(*operands: Any, platform: str | None = None, **params: Any) -> list[Any]:
    """Answers, then outcomes and statistics if they are wanted, as traceable code for a platform, or for any.

    `params` are those of `program_p`.
    """
    job = job_for(**params, platform=platform).as_it_runs()
    return or_given_up(job, lambda: _traced(job, operands))


def _traced(job: Job, operands: Sequence[Any]) -> list[Any]:
    if job.examples == 0:
        return of_no_lanes(job)
    fold = _fold(job)
    if fold is not None:
        return fold.answers(_traced(fold.inner, fold.operands(operands)))
    chosen = inside_jit(plan(job))
    compiling.watch(job.program.name, chosen.words, job.options.progress)
    return carrier_for(chosen).run(chosen, operands)


def _fold(job: Job) -> Folded | None:
    """The job with some of its axes of lanes inside; of one axis none goes."""
    return folded(job) if len(job.lanes) > 1 else None


def _machine_inside(eqn: JaxprEqn) -> Jaxpr:
    """The code of a program under an inner `jax.vmap`: a machine of its own, as a jaxpr; the outer one is watched.

    It is carried by what carries the whole, as code of one lane: no library is called from inside another.
    """
    options = eqn.params["options"].unwatched().updated(carrier="auto")
    params = eqn.params | {"options": options}
    with events.not_recording():
        return _jax.trace(
            lambda *operands: execute(*operands, **params), [atom.aval for atom in eqn.invars]
        ).jaxpr


on_machine_inside(_machine_inside)


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
        if self._plan is None or given_up(job.program):
            if job.options.watched:
                self._plan = as_watched(on_host(job.unwatched()).plan(operands), job)
            elif (fold := _fold(job)) is not None:
                self._plan = on_host(fold.inner).plan(fold.operands(operands))
            else:
                self._plan = plan(job, operands)
        return self._plan

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        with contextlib.nullcontext() if self._run else _jax.ROOM:
            return or_given_up(self.job, lambda: self._latest(operands)(operands))

    def _latest(self, operands: Sequence[Any]) -> HostRun:
        failed = given_up(self.job.program)
        if self._run is None or failed != self._failed:
            self._run, self._failed = self._made(operands), failed
        return self._run

    def _made(self, operands: Sequence[Any]) -> HostRun:
        job = self.job
        if job.examples == 0:
            return lambda operands: of_no_lanes(job)
        fold = _fold(job)
        if fold is not None:
            inner = on_host(fold.inner)
            return lambda operands: fold.answers(inner(fold.operands(operands)))
        compiling.watch(job.program.name, progress=job.options.progress, new=True)
        chosen = self.plan(operands)
        compiling.watch(job.program.name, chosen.words, job.options.progress)
        run = carrier_for(chosen).on_host(chosen)
        larger = job.larger() if job.program.has_tapes else None
        return run if larger is None else _with_larger_tapes(run, chosen, larger)


on_host = functools.lru_cache(maxsize=512)(OnHost)


def _with_larger_tapes(run: HostRun, chosen: Plan, larger: Job) -> HostRun:
    """The run of a gradient's forward program, with lanes run again whose tapes were full in the end."""
    job = chosen.job
    alone = chosen.carrier in ALONE
    if alone:
        larger = larger.with_options(carrier=chosen.carrier)

    def whole(operands: Sequence[Any]) -> list[Any]:
        return on_host(larger)(larger.given(operands))

    def part(operands: Sequence[Any], rows: np.ndarray) -> list[Any]:
        taken, axes = of_rows(larger.given(operands), rows, job.lanes, job.mapped)
        return on_host(replace(larger, lanes=rows.shape, mapped=axes))(taken)

    codes = job.program.num_results
    return RerunLarger(run, whole, part if alone and apart(job) else None, codes).run_growing
