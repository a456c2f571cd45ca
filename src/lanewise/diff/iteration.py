"""An iteration of a `while` backwards: its body again, from the state before it, and adjoints pulled through it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lanewise import _jax
from lanewise.diff.after import reading_after
from lanewise.diff.delay import delayed
from lanewise.diff.fold import folded
from lanewise.diff.known import Known
from lanewise.diff.piece import Step
from lanewise.diff.sweep import Scope, spread, sweep, zeros_for


def reverse_step(
    body: _jax.Jaxpr,
    operands: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    flags: tuple[Sequence[bool], Sequence[bool]],
    known: Known,
    scope: Scope,
) -> tuple[Step, Sequence[bool], tuple[int, ...]]:
    """An iteration backwards, from the state before it, parts of that after it, sums and adjoints.

    `operands`: constants of the code, those of the loop and its first state; `flags`: which of the last two move. Also
    gives which parts of a state it reads, and those that it reads after the iteration (`after.py`).
    """
    constants, consts, init = operands
    consts_moving, carry_moving = flags
    num_fixed = len(constants)
    moving = [*[False] * num_fixed, *consts_moving, *carry_moving]
    inner = scope.again()
    const_avals = [_jax.aval_of(x) for x in consts]
    state_avals = [_jax.strong(_jax.aval_of(x)) for x in init]
    sum_avals = [_jax.tangent_aval(a) for a in itertools.compress(const_avals, consts_moving)]
    ct_avals = [_jax.tangent_aval(a) for a in itertools.compress(state_avals, carry_moving)]

    def pulled(*values: Any) -> list[Any]:
        given, rest = values[: len(state_avals)], values[len(state_avals) :]
        swept = sweep(body, [*constants, *consts, *given], moving, inner)
        sums, cts = rest[: len(sum_avals)], rest[len(sum_avals) :]
        start = [*[None] * num_fixed, *spread(sums, consts_moving), *[None] * len(given)]
        found = swept.pull(spread(cts, carry_moving), start)[num_fixed:]
        avals = [*const_avals, *state_avals]
        return [*zeros_for(found, avals, moving[num_fixed:]), *swept.outs]

    traced = _jax.trace(pulled, [*state_avals, *sum_avals, *ct_avals])
    own = slice(len(traced.captures), len(traced.captures) + len(state_avals))
    if not state_avals:
        step_back, after = folded(_jax.without_unused(traced.jaxpr)), ()
    else:
        needed = known.needed(_reads(traced.jaxpr, len(state_avals))[own], len(state_avals))
        kept = [i in needed for i in range(len(state_avals))]
        code, after = reading_after(traced.jaxpr, traced.jaxpr.invars[own], kept)
        step_back = folded(code)
    reads = list(_jax.used_inputs(step_back)[own])
    for i in after:
        reads[i] = True
    at_sums = own.stop + len(after)
    carried = [(at_sums + j, j) for j in range(len(sum_avals) + len(ct_avals))]
    return Step(traced.captures, delayed(step_back, carried)), reads, after


def _reads(code: _jax.Jaxpr, number: int) -> Sequence[bool]:
    """Which inputs code reads for its results but the last ones."""
    return _jax.used_inputs(_jax.new_jaxpr(code.invars, code.outvars[:-number], code.eqns))
