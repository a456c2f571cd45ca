"""A plan: how a job will run, what will run, and what a run returns.

A carrier is a module with three functions:

* `offer(job, schedule, why)`: the plan by which it would run a job, or why it cannot, in words;
* `run(plan, operands)`: the run as traceable code, for use inside `jit` and inside other programs;
* `on_host(plan)`: the run outside `jit`, where the host makes room and handles interrupts.

`carriers/table.py` has them all. A run returns answers with their lane axes apart, then outcomes and statistics if they
are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.events import RunInfo
from lanewise.core.outcomes import blank, counts
from lanewise.job.job import Job

if TYPE_CHECKING:
    from lanewise.cpp.emit.emitted import Emitted


# The path of a plan whose lanes run on their own, in a kernel that the host's C++ compiler makes.
CPP = "C++"

# A run outside `jit`: operands in, the job's results out.
HostRun = Callable[[Sequence[Any]], list[Any]]
# A wrapper around a compiled function, so that an interrupt ends its runs.
Around = Callable[[Callable[..., list[Any]]], Callable[..., list[Any]]]


@dataclass(frozen=True, eq=False)
class Plan:
    """How a job will run, and why. `schedule` is "plain" where JAX's own batching is the right code.

    `path` names what compiles a carrier's code. `linked` are the blocks that a machine runs, or that lanes on
    their own run where XLA compiles them; `emitted` is the code of a kernel.
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
    def info(self) -> RunInfo | None:
        """What observers receive about the job's runs; None if there are none."""
        job = self.job
        if not job.options.watched:
            return None
        examples = 0 if job.streamed else job.examples
        options = job.options
        return RunInfo(
            job.program.name,
            examples,
            options.progress,
            options.recorded,
            self,
            devices=options.devices,
        )

    def because(self, why: str) -> Plan:
        """The same for another reason."""
        return replace(self, why=why)


class Carrier(Protocol):
    """What every carrier's module has."""

    def offer(self, job: Job, schedule: str, why: str) -> Plan | str: ...

    def run(self, plan: Plan, operands: Sequence[Any]) -> list[Any]: ...

    def on_host(self, plan: Plan) -> HostRun: ...


# Answers of all examples and the sums over them, outcome codes and sites, and the statistics of the run.
Ran = tuple[list[Any], Any, Any, list[Any]]


def compiled(run: Callable[..., list[Any]], around: Around | None = None) -> HostRun:
    """A run outside `jit` that is compiled in one piece, and has nothing to grow."""
    whole = jax.jit(run) if around is None else around(jax.jit(run))
    return lambda operands: whole(*operands)


def shaped(ran: Ran, job: Job) -> list[Any]:
    """The results of a run of all lanes, with the lane axes of the job."""
    values, code, site, stats = ran
    out: list[Any] = []
    num_answers = len(job.program.out_avals)
    answers, sums = values[:num_answers], values[num_answers:]
    for value, axes, aval in zip(answers, job.answer_axes, job.program.out_avals, strict=True):
        apart = value if len(job.lanes) == 1 else value.reshape(*job.lanes, *value.shape[1:])
        if aval.weak_type:
            # Kernels have no weak types.
            apart = _jax.convert_to_aval(apart, aval)
        # All entries along an axis that the answer does not depend on are the same.
        same = tuple(slice(None) if has else 0 for has in axes)
        out.append(apart if all(axes) else apart[same])
    if sums and job.program.can_fail(job.options):
        # The answer of a lane that failed is blank, and so is a sum that it adds to.
        failed = (code != int(Outcome.DONE)).any()
        sums = [jnp.where(failed, jnp.asarray(blank(x.dtype), x.dtype), x) for x in sums]
    out = _with_sums(out, sums, job)
    if job.program.gives_outcomes(job.options):
        out += [code.reshape(job.lanes), site.reshape(job.lanes)]
    return _with_records(out + (list(stats) if job.options.stats else []), job)


def none_failed(answers: list[Any], job: Job) -> list[Any]:
    """The same for answers of a run that cannot fail and has no ticks."""
    lanes, width = job.lanes, job.examples
    if job.program.gives_outcomes(job.options):
        answers += [jnp.zeros(lanes, jnp.int32), jnp.full(lanes, -1, jnp.int32)]
    ticks = 1 if width else 0
    stats = counts(ticks, ticks, width, width, steps=0, deepest=0) if job.options.stats else []
    return _with_records([*answers, *stats], job)


def _with_sums(answers: list[Any], sums: Sequence[Any], job: Job) -> list[Any]:
    """Answers and sums in the order in which the job returns them."""
    own = dict(zip(job.summed, sums, strict=True))
    rest = iter(answers)
    return [own[i] if i in own else next(rest) for i in range(job.program.num_results)]


def _with_records(out: list[Any], job: Job) -> list[Any]:
    return out if job.room is None else [*out, jnp.int32(job.room.records)]


def of_no_lanes(job: Job) -> list[Any]:
    """The same for a batch of no examples: nothing runs."""

    def empty(leaf: Any) -> Any:
        return jnp.broadcast_to(leaf, (*job.lanes, *leaf.shape))

    answers = [jax.tree.map(empty, _jax.zeros(aval)) for aval in job.program.out_avals]
    sums = [_jax.zeros(aval) for aval in job.program.sums]
    return none_failed(_with_sums(answers, sums, job), job)


def apart(job: Job) -> bool:
    """Whether the results of some lanes can replace theirs among those of all.

    Statistics and sums are of one run, and a result that is the same for all lanes of an axis belongs to none of them.
    """
    return not (job.options.stats or job.summed) and all(map(all, job.answer_axes))
