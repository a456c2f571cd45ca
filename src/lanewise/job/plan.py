"""A plan: how a job will run, and what will run.

A carrier is a module with three functions:

* `offer(job, schedule, why)`: the plan by which it would run a job, or in words what stands in its way;
* `run(plan, operands)`: the run as traceable code, for use inside `jit` and inside other programs;
* `on_host(plan)`: the run outside `jit`, where the host makes room and hears of interrupts.

`table.py` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lanewise.blocks.link import Linked
from lanewise.core.events import Site
from lanewise.job.job import Job

if TYPE_CHECKING:
    from lanewise.cpp.emit.emitted import Emitted

# A run outside `jit`: operands in, what the job gives out.
HostRun = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, eq=False)
class Plan:
    """How a job will run, and why. `schedule` is "plain" where JAX's own batching is the right code.

    `path` says what compiles a carrier's code. `linked` are the blocks that a machine runs, or that lanes by
    themselves run where XLA compiles them; `emitted` is the code of a kernel.
    """

    job: Job
    carrier: str
    schedule: str
    why: str
    path: str = "XLA"
    linked: Linked | None = None
    emitted: Emitted | None = None

    @property
    def plain(self) -> bool:
        return self.schedule == "plain"

    @property
    def words(self) -> str:
        """What was chosen and why."""
        return f"carrier {self.carrier}, schedule {self.schedule}: {self.why}"

    @property
    def site(self) -> Site | None:
        """What observers learn of the job's runs; None if there are none."""
        job = self.job
        if not job.options.watched:
            return None
        examples = 0 if job.streamed else job.examples
        return Site(job.program.name, examples, job.options.progress, job.options.recorded, self)

    def because(self, why: str) -> Plan:
        """The same for another reason."""
        return replace(self, why=why)


class Carrier(Protocol):
    """What every carrier's module has."""

    def offer(self, job: Job, schedule: str, why: str) -> Plan | str: ...

    def run(self, plan: Plan, operands: Sequence[Any]) -> list[Any]: ...

    def on_host(self, plan: Plan) -> HostRun: ...
