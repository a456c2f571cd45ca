"""Reverse mode through a program that is run by levels.

Linearizing it decides control, runs the table, keeps what its reverse reads, and stages `tangents_p` as usual:
run as it is, that map is the program's own derivative, by tangents; its transpose is here the reverse of the table
(`dynamic/reverse.py`). The table is data of this call, so it goes along with the map. `second.py` differentiates that
reverse in its turn.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.carriers.decided import Decision, decided, flattened
from lanewise.core.errors import TransformError
from lanewise.core.program import Program, program_p, throw_p
from lanewise.job.job import Job, Mapped
from lanewise.rules.explain import explainable
from lanewise.rules.pulled import pulled
from lanewise.rules.second import adjoints
from lanewise.rules.sums import summed_over
from lanewise.rules.tangents import active_of, linear_map


@dataclass(frozen=True, eq=False)
class _Gradient(abc.ABC):
    """What `tangents_p` knows of a program that was run by levels."""

    job: Job
    active: tuple[bool, ...]
    out_active: tuple[bool, ...]

    def transposed(
        self,
        cts: Sequence[Any],
        primals: Sequence[Any],
        saved: Sequence[Any],
        tangents_mapped: Mapped,
        wanted: Sequence[bool],
    ) -> list[Any]:
        """Adjoints of the active operands, `None` for those not wanted; those of answers have all lane axes."""
        _check_not_batched(self.job, self.active, tangents_mapped)
        found = iter(adjoints(self, primals, saved, cts, wanted))
        return [next(found) if want else None for want in wanted]

    @abc.abstractmethod
    def reverse(
        self,
        primals: Sequence[Any],
        saved: Sequence[Any],
        cts: Sequence[Any],
        wanted: Sequence[bool],
    ) -> list[Any]:
        """Adjoints of the active operands that are wanted."""


@dataclass(frozen=True, eq=False)
class TableGradient(_Gradient):
    """Of one whose control is decided; `tree`: how what is saved is put together."""

    decision: Decision
    tree: Any

    @_jax.our_transfers()
    def reverse(
        self,
        primals: Sequence[Any],
        saved: Sequence[Any],
        cts: Sequence[Any],
        wanted: Sequence[bool],
    ) -> list[Any]:
        """The reverse of the table: adjoints of the active operands that are wanted."""
        lanes, examples = self.job.lanes, self.job.examples
        flat = flattened(primals, self.job)
        given = iter(cts)
        of_answers = [
            self.decision.of_lanes_done(ct.reshape(examples, *ct.shape[len(lanes) :]))
            if (ct := next(given) if moves else None) is not None
            else None
            for moves in self.out_active
        ]
        kept = jax.tree.unflatten(self.tree, saved)
        found = self.decision.values.reverse(flat, kept, self.active, of_answers)
        outs = []
        moved = itertools.compress(range(len(primals)), self.active)
        for number in itertools.compress(moved, wanted):
            adjoint = found.get(number)
            if adjoint is None:
                aval = _jax.aval_of(primals[number])
                outs.append(jnp.zeros(aval.shape, aval.dtype))
            elif self.job.varying[number]:
                whole = adjoint.reshape(*lanes, *adjoint.shape[1:])
                outs.append(
                    summed_over(whole, (True,) * len(lanes), self.job.mapped[number], lanes)
                )
            else:
                outs.append(adjoint)
        return outs


@dataclass(frozen=True, eq=False)
class LaterGradient(_Gradient):
    """Of one in a batch that `jax.vmap` takes of derivatives: its control is known with the batch.

    The answers are those of a run of their own, and what a reverse reads is computed again (`pulled.py`).
    """

    def reverse(
        self,
        primals: Sequence[Any],
        saved: Sequence[Any],
        cts: Sequence[Any],
        wanted: Sequence[bool],
    ) -> list[Any]:
        """The run again, and its reverse."""
        del saved
        job = self.job
        numbers = itertools.compress(range(len(primals)), self.active)
        kept = frozenset(itertools.compress(numbers, wanted))
        active = [i in kept for i in range(len(primals))]
        params = {"program": job.program, "lanes": job.lanes, "mapped": job.mapped}
        return pulled(primals, cts, active, whole=len(job.lanes), options=job.options, **params)


def _check_not_batched(job: Job, active: Sequence[bool], tangents_mapped: Mapped) -> None:
    if tangents_mapped != tuple(itertools.compress(job.mapped, active)):
        raise TransformError(
            f"the linear map of `{job.program.name}`, which was run by levels, is batched and then"
            ' transposed. Use schedule="sweep".'
        )


def linearized_by_levels(
    nonzero: Sequence[bool], primals: Sequence[Any], program: Program, job: Job
) -> Any:
    """JAX's rule: answers, which of their tangents are not zero, residuals, and the linear map of those."""
    active = active_of(nonzero, primals)
    with jax.ensure_compile_time_eval():
        decision = decided(job, primals, gradient=True)
    again = any(map(_jax.has_derivative, primals))
    # Of what is saved no derivative is needed (`second.py`); those of the answers are the program's.
    outs, kept = decision.saving(jax.lax.stop_gradient(list(primals)) if again else primals, active)
    if again:
        outs = _bound(primals, job)
    saved, tree = jax.tree.flatten(kept)
    gradient = TableGradient(job, active, _out_active(program), decision, tree)
    return _linear(primals, outs, saved, gradient)


def linearized_later(
    nonzero: Sequence[bool], primals: Sequence[Any], program: Program, job: Job
) -> Any:
    """The same where what decides control is in a batch."""
    gradient = LaterGradient(job, active_of(nonzero, primals), _out_active(program))
    return _linear(primals, _bound(primals, job), [], gradient)


def _out_active(program: Program) -> tuple[bool, ...]:
    return tuple(map(_jax.has_tangent, program.out_avals))


def _bound(primals: Sequence[Any], job: Job) -> list[Any]:
    params = {"program": job.program, "lanes": job.lanes, "mapped": job.mapped}
    return program_p.bind(*primals, **params, options=job.options)


def _linear(
    primals: Sequence[Any],
    outs: Sequence[Any],
    saved: Sequence[Any],
    gradient: TableGradient | LaterGradient,
) -> Any:
    """What JAX's rule gives, of answers and what is saved."""
    job, program = gradient.job, gradient.job.program
    num = len(program.out_avals)
    if program.gives_outcomes(job.options):
        explainable(outs[num], program, primals, job.mapped)
        if job.options.throw:
            # A caller that wants the gradient alone never reads the answers: a check of them alone would be dropped.
            checked = throw_p.bind(*outs, sites=program.sites, name=program.name)
            outs = [*checked, *outs[num:]]
    return linear_map(
        primals,
        saved,
        outs,
        program=program,
        gradient=gradient,
        active=gradient.active,
        lanes=job.lanes,
        mapped=job.mapped,
        saved_mapped=((False,) * len(job.lanes),) * len(saved),
        tangents_mapped=tuple(itertools.compress(job.mapped, gradient.active)),
        options=job.options,
    )
