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
from lanewise.core.options import Options
from lanewise.core.program import Program, program_p
from lanewise.job.job import Mapped, answer_axes, with_axes, with_constants
from lanewise.rules.pulled import pulled
from lanewise.rules.tangents import transpose_tangents


@dataclass(frozen=True)
class _Derivative:
    """The operands of a forward derivative, apart: where primals and tangents stand (see `diff/jvp.py`)."""

    program: Program
    moving: tuple[bool, ...]
    derived: Program

    @property
    def places(self) -> tuple[list[int], list[int]]:
        captured, held = self.program.num_captures, self.derived.num_captures
        last = held + len(self.moving) - captured
        moved = sum(self.moving[:captured])
        primals = [*range(captured), *range(held, last)]
        tangents = [
            *range(captured, captured + moved),
            *range(last, last - moved + sum(self.moving)),
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


def _transpose_program(
    cts: Sequence[Any],
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...] = (),
) -> list[Any]:
    """A forward derivative is linear in its tangents."""
    axes = answer_axes(program, mapped, options, lanes)
    none = (False,) * len(lanes)
    cts = [
        with_axes(ad.instantiate_zeros(ct), none, axes[i], lanes) if i in summed else ct
        for i, ct in enumerate(cts)
    ]
    derivative = _derivative(program)
    if derivative is None:
        raise TransformError(f"the program `{program.name}` is not linear, so it has no transpose.")
    from lanewise.rules.forward import run_forward

    at_primals, at_tangents = derivative.places
    primals = [operands[i] for i in at_primals]
    tangents = [operands[i] for i in at_tangents]
    own_mapped = tuple(mapped[i] for i in at_primals)
    own, moving = derivative.program, derivative.moving
    tangents_mapped = tuple(mapped[i] for i in at_tangents)
    placed: list[Any] = [None] * len(operands)
    if options.schedule == "levels":
        if tangents_mapped != tuple(itertools.compress(own_mapped, moving)):
            raise TransformError(
                f"the linear map of `{own.name}`, which is run by levels, is batched inside jax.checkpoint. Use"
                ' schedule="sweep", or take jax.checkpoint away.'
            )
        first = len(own.out_avals)
        given = cts[first : first + derivative.num_tangents]
        params = {"program": own, "lanes": lanes, "mapped": own_mapped, "options": options}
        found = pulled(primals, [ad.instantiate_zeros(ct) for ct in given], moving, **params)
        for i, ct in zip(at_tangents, found, strict=True):
            placed[i] = ct if ad.is_undefined_primal(operands[i]) else None
        return placed
    gradient, outs = run_forward(primals, moving, own, lanes, own_mapped, options)
    num_answers, num_values = len(own.out_avals), len(gradient.forward.program.out_avals)
    all_mapped = with_constants(gradient.forward.constants, own_mapped, lanes)
    given = iter(cts[num_answers : num_answers + derivative.num_tangents])
    by_answer = [next(given) if _jax.has_tangent(a) else None for a in own.out_avals]
    found = transpose_tangents(
        list(itertools.compress(by_answer, gradient.out_moving)),
        *primals,
        *outs[num_answers:num_values],
        *tangents,
        program=own,
        gradient=gradient,
        moving=moving,
        lanes=lanes,
        mapped=own_mapped,
        saved_mapped=answer_axes(gradient.forward.program, all_mapped, options, lanes)[
            num_answers:
        ],
        tangents_mapped=tangents_mapped,
        options=options.updated(stats=False, max_steps=None),
    )
    for i, ct in zip(at_tangents, found[len(found) - len(tangents) :], strict=True):
        placed[i] = ct
    return placed


ad.primitive_transposes[program_p] = _transpose_program
