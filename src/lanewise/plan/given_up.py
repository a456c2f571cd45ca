"""Programs that do without kernels, because the machine's compilers could make none.

A full disk, too little memory or a compiler that hangs is no reason for `auto` to fail: the program runs by ticks. Only
compiling shows that something is wrong, when the plan is made and perhaps half of the tracing is done. So what was
begun is dropped, the program is marked, and planned and traced anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lanewise.core.errors import CompilerError
from lanewise.core.program import Program
from lanewise.job.job import Job

Answer = TypeVar("Answer")

_reasons: dict[Program, str] = {}


def reason(program: Program) -> str | None:
    """Why the program does without kernels; None if it does not."""
    return _reasons.get(program)


def or_given_up(job: Job, run: Callable[[], Answer]) -> Answer:
    """Run what plans and runs a program; again without kernels, if none can be compiled and none was asked for."""
    try:
        return run()
    except CompilerError as error:
        if job.options.carrier in ("native", "kernel") or job.options.schedule != "auto":
            raise
        _reasons[job.program] = str(error)
    return run()
