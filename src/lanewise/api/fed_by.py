"""What a stream of a program feeds: lanes that are refilled, or slots or batches for lanes by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lanewise import _jax
from lanewise.carriers.table import ALONE
from lanewise.core.options import Options
from lanewise.core.program import Program
from lanewise.feed.batches import InBatches
from lanewise.feed.fed import Fed
from lanewise.feed.segments import InLanes
from lanewise.job.job import job_for
from lanewise.plan.choose import plan
from lanewise.rules.bind import execute_on_host


def fed_by(program: Program, captures: Sequence[Any], lanes: int, options: Options) -> Fed:
    """What a stream of this program feeds on this device."""
    mapped = tuple((i >= program.num_captures,) for i in range(program.num_operands))
    job = job_for(program, (lanes,), mapped, options, platform=_jax.placed(captures)[0])
    chosen = plan(replace(job.as_it_runs(), streamed=True))
    if chosen.carrier == "native":
        # It brings the C++ toolchain along, so it is imported only where it is needed.
        from lanewise.feed.served import in_slots

        found = in_slots(chosen, captures)
        if found is not None:
            return found
    if chosen.carrier in ALONE:
        options = options.updated(carrier=chosen.carrier)
        return InBatches(execute_on_host, program, captures, lanes, options)
    return InLanes(chosen, captures)
