"""A program's derivative inside `jax.checkpoint`.

JAX linearizes there by partial evaluation: a forward derivative by unknown tangents has a part that is known, the
program itself. What is left is linear in the tangents, and is transposed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lanewise import _jax
from lanewise._jax import ad
from lanewise.core.errors import TransformError
from lanewise.core.program import Program, program_p
from lanewise.job.job import Mapped, Params, with_axes, with_constants
from lanewise.rules.pulled import pulled
from lanewise.rules.tangents import transpose_tangents


@dataclass(frozen=True)
class _Derivative:
    """The operands of a forward derivative, apart: where primals and tangents stand (see `diff/jvp.py`)."""

    program: Program
    active: tuple[bool, ...]
    derived: Program

    @property
    def places(self) -> tuple[list[int], list[int]]:
        captured, held = self.program.num_captures, self.derived.num_captures
        last = held + len(self.active) - captured
        moved = sum(self.active[:captured])
        primals = [*range(captured), *range(held, last)]
        tangents = [
            *range(captured, captured + moved),
            *range(last, last - moved + sum(self.active)),
        ]
        return primals, tangents

    @property
    def num_tangents(self) -> int:
        return sum(_jax.has_tangent(aval) for aval in self.program.out_avals)


def _derivative(program: Program) -> _Derivative | None:
    from lanewise.diff.jvp import derivative_of

    found = derivative_of(program)
    return None if found is None else _Derivative(*found, program)


def _known_part(unknown: Sequence[bool], program: Program, mapped: Mapped, **params: Any) -> Any:
    """The known part of a forward derivative by unknown tangents: the program itself."""
    derivative = None if params.get("summed") else _derivative(program)
    if derivative is None:
        return None
    primals, _ = derivative.places
    if any(unknown[i] for i in primals):
        return None
    own = {**params, "program": derivative.program, "mapped": tuple(mapped[i] for i in primals)}
    return primals, len(derivative.program.out_avals), derivative.num_tangents, own


_jax.on_partial_evaluation(program_p, _known_part)


def _transpose_program(cts: Sequence[Any], *operands: Any, **given: Any) -> list[Any]:
    """A forward derivative is linear in its tangents."""
    params = Params(**given)
    derivative = _derivative(params.program)
    if derivative is None:
        raise TransformError(
            f"the program `{params.program.name}` is not linear, so it has no transpose."
        )
    axes, lanes = params.answer_axes, params.lanes
    cts = [
        with_axes(ad.instantiate_zeros(ct), params.none, axes[i], lanes)
        if i in params.summed
        else ct
        for i, ct in enumerate(cts)
    ]
    first = len(derivative.program.out_avals)
    cts = cts[first : first + derivative.num_tangents]
    at_primals, at_tangents = derivative.places
    own = params.of(derivative.program, tuple(params.mapped[i] for i in at_primals))
    tangents_mapped = tuple(params.mapped[i] for i in at_tangents)
    primals, tangents = ([operands[i] for i in at] for at in (at_primals, at_tangents))
    if own.options.schedule == "levels":
        found = _by_levels(cts, primals, derivative.active, own, tangents_mapped)
        pairs = zip(found, tangents, strict=True)
        found = [ct if ad.is_undefined_primal(t) else None for ct, t in pairs]
    else:
        found = _by_programs(cts, primals, tangents, derivative.active, own, tangents_mapped)
    placed: list[Any] = [None] * len(operands)
    for i, ct in zip(at_tangents, found, strict=True):
        placed[i] = ct
    return placed


def _by_levels(
    cts: Sequence[Any],
    primals: Sequence[Any],
    active: tuple[bool, ...],
    own: Params,
    tangents_mapped: Mapped,
) -> list[Any]:
    """Adjoints of all tangents of a program that is run by levels."""
    if tangents_mapped != tuple(itertools.compress(own.mapped, active)):
        raise TransformError(
            f"the linear map of `{own.program.name}`, which is run by levels, is batched inside jax.checkpoint. Use"
            ' schedule="sweep", or take jax.checkpoint away.'
        )
    given = own._asdict()
    del given["summed"]
    return pulled(primals, [ad.instantiate_zeros(ct) for ct in cts], active, **given)


def _by_programs(
    cts: Sequence[Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    active: tuple[bool, ...],
    own: Params,
    tangents_mapped: Mapped,
) -> list[Any]:
    """Adjoints of the tangents that are not known, by a forward and a reverse program."""
    from lanewise.rules.forward import run_forward

    program, lanes, mapped, options, _ = own
    gradient, outs = run_forward(primals, active, own)
    forward = gradient.forward
    num_answers, num_values = len(program.out_avals), len(forward.program.out_avals)
    axes = own.of(forward.program, with_constants(forward.constants, mapped, lanes)).answer_axes
    given = iter(cts)
    by_answer = [next(given) if _jax.has_tangent(a) else None for a in program.out_avals]
    found = transpose_tangents(
        list(itertools.compress(by_answer, gradient.out_active)),
        *primals,
        *outs[num_answers:num_values],
        *tangents,
        program=program,
        gradient=gradient,
        active=active,
        lanes=lanes,
        mapped=mapped,
        saved_mapped=axes[num_answers:],
        tangents_mapped=tangents_mapped,
        options=options.updated(stats=False, max_steps=None),
    )
    return found[len(found) - len(tangents) :]


ad.primitive_transposes[program_p] = _transpose_program
