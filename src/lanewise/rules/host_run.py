"""What runs a job outside `jit`, made once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from lanewise.carriers.table import carrier_for
from lanewise.core import compiling
from lanewise.job.job import Job
from lanewise.job.plan import HostRun, Plan, of_no_lanes
from lanewise.plan.choose import as_watched, given_up, or_given_up, plan
from lanewise.plan.folded import folded
from lanewise.rules.larger_tapes import with_larger_tapes


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
            elif (fold := folded(job)) is not None:
                self._plan = on_host(fold.inner).plan(fold.operands(operands))
            else:
                self._plan = plan(job, operands)
        return self._plan

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
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
        fold = folded(job)
        if fold is not None:
            inner = on_host(fold.inner)
            return lambda operands: fold.answers(inner(fold.operands(operands)))
        compiling.watch(job.program.name, progress=job.options.progress, new=True)
        chosen = self.plan(operands)
        compiling.watch(job.program.name, chosen.words, job.options.progress)
        run = carrier_for(chosen).on_host(chosen)
        larger = job.larger() if job.program.has_tapes else None
        return run if larger is None else with_larger_tapes(run, chosen, larger, on_host)


on_host = functools.lru_cache(maxsize=512)(OnHost)
