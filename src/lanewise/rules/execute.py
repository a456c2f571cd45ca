"""From operands to answers, as traceable code.

`execute` is for use inside `jit` and inside other programs; there a stack holds a fixed number of frames. What runs
outside `jit` is in `on_host.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn
from lanewise.carriers.table import carrier_for
from lanewise.core import compiling, events
from lanewise.core.program import on_machine_inside
from lanewise.job.job import Job, job_for
from lanewise.job.plan import of_no_lanes
from lanewise.plan.choose import or_given_up, plan
from lanewise.plan.folded import folded
from lanewise.plan.sharded import Split


def execute(
    *operands: Any, platform: str | None = None, split: Split | None = None, **params: Any
) -> list[Any]:
    """Answers, then outcomes and statistics if they are wanted, as traceable code for a platform, or for any.

    `params` are those of `program_p`; `split`: how XLA may split what is traced over devices.
    """
    job = job_for(**params, platform=platform).as_it_runs()
    return or_given_up(job, lambda: _traced(job, operands, split))


def _traced(job: Job, operands: Sequence[Any], split: Split | None) -> list[Any]:
    if job.examples == 0:
        return of_no_lanes(job)
    fold = folded(job)
    if fold is not None:
        return fold.answers(_traced(fold.inner, fold.operands(operands), split))
    chosen = plan(job)
    if split is not None:
        split.refuse(chosen)
    compiling.watch(job.program.name, chosen.words, job.options.progress)
    return carrier_for(chosen).run(chosen, operands)


def _machine_inside(eqn: JaxprEqn) -> Jaxpr:
    """The code of a program under an inner `jax.vmap`: a machine of its own, as a jaxpr; the outer one is watched.

    It is carried by what carries the whole, as code of one lane: no library is called from inside another.
    """
    options = eqn.params["options"].unwatched().updated(carrier="auto")
    params = eqn.params | {"options": options}
    with events.not_recording():
        return _jax.trace(lambda *operands: execute(*operands, **params), _avals(eqn)).jaxpr


def _avals(eqn: JaxprEqn) -> list[Any]:
    return [atom.aval for atom in eqn.invars]


on_machine_inside(_machine_inside)
