"""What XLA splits over devices by itself: programs in which nothing diverges.

They have no loop that waits for lanes, and there products may be split along what lanes share. A batch that is a
program of one lane (`whole.py`) has no lane axes along which it could be split otherwise.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from lanewise.core.program import Program
from lanewise.job.job import Job, linked_for
from lanewise.place.after_loops import sums_after_loops
from lanewise.plan.choose import plan


def left_to_xla(job: Job) -> bool:
    """Whether XLA splits the job well by itself: JAX's own batching of what has no loop that waits for lanes.

    What only the host can run is left to it too: it is refused where it is traced.
    """
    if job.program.whole and job.can_be_plain:
        return True
    chosen = plan(job)
    if chosen.schedule in ("local", "levels"):
        return True
    return chosen.plain and (not job.lanes or linked_for(job).straight)


def as_xla_splits_it(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `program_p` for such a job: a batch as a program of one lane has its sums after its loops."""
    program, options = params["program"], params["options"]
    if not program.whole:
        return params
    options = options.updated(schedule="plain", carrier="auto")
    return params | {"program": _with_sums_after_loops(program), "options": options}


@functools.lru_cache(maxsize=512)
def _with_sums_after_loops(program: Program) -> Program:
    functions = {
        name: replace(function, jaxpr=sums_after_loops(function.jaxpr, program.whole))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)
