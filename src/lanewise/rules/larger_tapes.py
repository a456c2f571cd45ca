"""Forward programs of gradients that run again with longer tapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise.carriers.table import ALONE
from lanewise.grow.rerun import RerunLarger
from lanewise.job.axes import of_rows
from lanewise.job.job import Job
from lanewise.job.plan import HostRun, Plan
from lanewise.job.results import apart


def with_larger_tapes(
    run: HostRun, chosen: Plan, larger: Job, on_host: Callable[[Job], HostRun]
) -> HostRun:
    """A run with lanes run again whose tapes were full in the end; `on_host` runs jobs."""
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
