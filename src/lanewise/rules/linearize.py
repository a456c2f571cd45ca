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
from lanewise.core.program import Program, program_p, throw_p
from lanewise.job.job import Job, Params, job_for, with_axes, with_constants
from lanewise.plan.choose import forks, levels_plan
from lanewise.rules.explain import explainable
from lanewise.rules.sums import unsummed
from lanewise.rules.tangents import active_of, linear_map
from lanewise.rules.whole import whole_batch


@_jax.ROOM
def _linearize(nonzero: Sequence[bool], *primals: Any, **given: Any) -> Any:
    """JAX's rule: answers, which of their tangents are not zero, residuals, and the linear map of those."""
    params = Params(**given)
    program, lanes, mapped, options, summed = params
    if summed:
        return _jax.linearized(functools.partial(unsummed, params), nonzero, primals)
    # As a program of one lane, a batch could not be split along its lanes.
    split = any(map(_jax.is_split, primals)) or (_jax.may_be_split() and not _jax.runs_now())
    platform = _jax.placed(primals)[0]
    job = job_for(program, lanes, mapped, options, platform=platform).as_it_runs()
    if options.schedule in ("auto", "levels") and not split:
        by_levels = _by_levels(nonzero, primals, program, job)
        if by_levels is not None:
            return by_levels
    if lanes and not (split or options.stats or program.gives_outcomes(options)):
        whole = whole_batch(program, lanes, mapped, options, platform)
        if whole is not None:
            alone = Params(whole, (), ((),) * len(primals), options)
            return _linearize(nonzero, *primals, **alone._asdict())
    if forks(job):
        # Its records have to have numbers, and both sweeps read them.
        params = params._replace(options=options.updated(schedule="fork"))
    return _by_programs(primals, active_of(nonzero, primals), params)


_jax.on_linearize(program_p, _linearize)


def _by_levels(nonzero: Sequence[bool], primals: Sequence[Any], program: Program, job: Job) -> Any:
    """The same for a program that is run by levels; None for one that is not."""
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


def _by_programs(primals: Sequence[Any], active: tuple[bool, ...], params: Params) -> Any:
    """The same by a forward program, which also gives what is saved, and a reverse program."""
    # Imported where it is used: most programs that import Lanewise do not differentiate.
    from lanewise.rules.forward import run_forward

    program, lanes, mapped, options, _ = params
    gradient, outs = run_forward(primals, active, params)
    forward = gradient.forward
    num_answers, num_values = len(program.out_avals), len(forward.program.out_avals)
    saved = outs[num_answers:num_values]
    axes = params.of(forward.program, with_constants(forward.constants, mapped, lanes)).answer_axes
    wanted = params.answer_axes
    answers = [with_axes(*each, lanes) for each in zip(outs, axes, wanted, strict=False)]
    num_codes = 2 if forward.program.gives_outcomes(options) else 0
    codes, stats = outs[num_values : num_values + num_codes], outs[num_values + num_codes :]
    if codes:
        codes = _own_outcomes(codes, forward.program, program)
        explainable(codes[0], program, primals, mapped)
        if options.throw:
            # A caller that wants the gradient alone never reads the answers: a check of them alone would be dropped.
            checked = throw_p.bind(*answers, *saved, *codes, sites=program.sites, name=program.name)
            answers, saved = checked[:num_answers], checked[num_answers:]
    elif program.gives_outcomes(options):
        # As a loop a tail recursion cannot fail.
        codes = [jnp.zeros(lanes, jnp.int32), jnp.full(lanes, -1, jnp.int32)]
    if not program.gives_outcomes(options):
        codes = []
    return linear_map(
        primals,
        saved,
        [*answers, *codes, *stats],
        program=program,
        gradient=gradient,
        active=active,
        lanes=lanes,
        mapped=mapped,
        saved_mapped=axes[num_answers:],
        tangents_mapped=tuple(itertools.compress(mapped, active)),
        options=options.updated(stats=False, max_steps=None),
    )


def _own_outcomes(codes: Sequence[Any], forward: Program, program: Program) -> list[Any]:
    """Outcomes of a forward program as those of the program it is of, which may number its sites otherwise."""
    code, site = codes
    if forward.sites == program.sites:
        return [code, site]
    own = tuple(program.sites.index(s) if s in program.sites else -1 for s in forward.sites)
    return [code, _renumbered(site, own)]


# As one piece: outside `jit` each operation would be compiled separately.
@functools.partial(jax.jit, static_argnums=1)
def _renumbered(site: Any, own: tuple[int, ...]) -> Any:
    """Sites by the numbers that these have; -1 stays."""
    return jnp.array((*own, -1), jnp.int32)[site]
