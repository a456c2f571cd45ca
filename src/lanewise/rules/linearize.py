"""Reverse mode through `program_p`: what `jax.grad`, `jax.vjp` and `jax.linearize` do at a program.

Linearizing a program runs its forward program, which also gives what is saved, and stages `tangents_p`: the
linear map from tangents of operands to tangents of answers, at these operands. Run as it is, that map is the program's
own derivative (`diff/jvp.py`); its transpose runs the reverse program (`diff/vjp.py`). Both are `program_p` again.

An operand that lanes share has one adjoint, the sum over the lanes. A batch in which no lanes diverge is linearized as
a program of one lane (`whole.py`), one that is run by levels by its table (`levels.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad
from lanewise.core.options import Options
from lanewise.core.program import Program, program_p, throw_p
from lanewise.job.job import Mapped, answer_axes, job_for, with_axes, with_constants
from lanewise.plan.choose import forks, levels_plan
from lanewise.rules.explain import explainable
from lanewise.rules.sums import unsummed
from lanewise.rules.tangents import tangents_p
from lanewise.rules.whole import whole_batch


@_jax.ROOM
def _linearize(
    nonzero: Sequence[bool],
    *primals: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...] = (),
) -> Any:
    """JAX's rule: answers, which of their tangents are not zero, residuals, and the linear map of those."""
    if summed:
        params = {"program": program, "lanes": lanes, "mapped": mapped, "options": options}
        return _jax.linearized(
            functools.partial(unsummed, **params, summed=summed), nonzero, primals
        )
    # As a program of one lane, a batch could not be split along its lanes.
    split = any(map(_jax.is_split, primals)) or (_jax.may_be_split() and not _jax.runs_now())
    if options.schedule in ("auto", "levels") and not split:
        by_levels = _by_levels(nonzero, primals, program, lanes, mapped, options)
        if by_levels is not None:
            return by_levels
    if lanes and not (split or options.stats or program.gives_outcomes(options)):
        whole = whole_batch(program, lanes, mapped, options, _jax.placed(primals)[0])
        if whole is not None:
            alone = ((),) * len(primals)
            return _linearize(
                nonzero, *primals, program=whole, lanes=(), mapped=alone, options=options
            )
    moving = tuple(
        flag and _jax.has_tangent(_jax.aval_of(x)) for flag, x in zip(nonzero, primals, strict=True)
    )
    job = job_for(program, lanes, mapped, options, platform=_jax.placed(primals)[0]).as_it_runs()
    if forks(job):
        # Its records have to have numbers, and both sweeps read them.
        options = options.updated(schedule="fork")
    # Imported where it is used: most programs that import Lanewise do not differentiate.
    from lanewise.rules.forward import run_forward

    found, outs = run_forward(primals, moving, program, lanes, mapped, options)
    forward = found.forward
    num_answers = len(program.out_avals)
    num_values = len(forward.program.out_avals)
    answers, saved, rest = outs[:num_answers], outs[num_answers:num_values], outs[num_values:]
    all_mapped = with_constants(forward.constants, mapped, lanes)
    axes = answer_axes(forward.program, all_mapped, options, lanes)
    wanted = answer_axes(program, mapped, options, lanes)
    answers = [with_axes(*each, lanes) for each in zip(answers, axes, wanted, strict=False)]
    num_rest = 2 if program.gives_outcomes(options) else 0
    codes = rest[:2] if forward.program.gives_outcomes(options) else []
    stats = rest[len(codes) :]
    if codes:
        codes = list(_own_outcomes(codes, forward.program, program))
        explainable(codes[0], program, primals, mapped)
        if options.throw:
            # A caller that wants the gradient alone never reads the answers: a check of them alone would be dropped.
            checked = throw_p.bind(*answers, *saved, *codes, sites=program.sites, name=program.name)
            answers, saved = checked[:num_answers], checked[num_answers:]
    elif num_rest:
        # As a loop a tail recursion cannot fail.
        codes = [jnp.zeros(lanes, jnp.int32), jnp.full(lanes, -1, jnp.int32)]
    outs = [*answers, *codes[:num_rest], *stats]
    params: dict[str, Any] = {
        "program": program,
        "gradient": found,
        "moving": moving,
        "lanes": lanes,
        "mapped": mapped,
        "saved_mapped": axes[num_answers:],
        "tangents_mapped": tuple(itertools.compress(mapped, moving)),
        "options": options.updated(stats=False, max_steps=None),
    }

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, flag in zip(tangents, moving, strict=True) if flag]
        moved = iter(tangents_p.bind(*residuals, *given, **params))
        flags = [*found.out_moving, *[False] * (len(outs) - num_answers)]
        return [
            next(moved) if flag else _jax.zero_tangent(x)
            for x, flag in zip(outs, flags, strict=True)
        ]

    out_flags = [*found.out_moving, *[False] * (len(outs) - num_answers)]
    return outs, out_flags, [*primals, *saved], tangents_of


_jax.on_linearize(program_p, _linearize)


def _by_levels(
    nonzero: Sequence[bool],
    primals: Sequence[Any],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> Any:
    """The same for a program that is run by levels; None for one that is not."""
    job = job_for(program, lanes, mapped, options, platform=_jax.placed(primals)[0]).as_it_runs()
    if levels_plan(job, primals) is None:
        return None
    # Imported where it is used: it brings the tables along.
    from lanewise.carriers.levels import can_decide, in_parts
    from lanewise.rules.levels import linearized_by_levels, linearized_later

    parts = in_parts(job)
    if parts is not None:
        return _jax.linearized(parts, nonzero, primals)
    linearize = linearized_by_levels if can_decide(job, primals) else linearized_later
    return linearize(nonzero, primals, program, job)


def _own_outcomes(codes: Sequence[Any], forward: Program, program: Program) -> tuple[Any, Any]:
    """Outcomes of a forward program as those of the program it is of, which may number its sites otherwise."""
    code, site = codes
    if forward.sites == program.sites:
        return code, site
    own = tuple(program.sites.index(s) if s in program.sites else -1 for s in forward.sites)
    return code, _renumbered(site, own)


# As one piece: outside `jit` each operation would be compiled separately.
@functools.partial(jax.jit, static_argnums=1)
def _renumbered(site: Any, own: tuple[int, ...]) -> Any:
    """Sites by the numbers that these have; -1 stays."""
    return jnp.array((*own, -1), jnp.int32)[site]
