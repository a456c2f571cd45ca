"""Tail recursion as a loop, before it is differentiated.

A function that calls itself only where the call's results are its own needs no frames, and so its gradient should need
no record for each call: it is a loop over its parameters. Calls may stand in the branches of a `cond` that comes last.
A function that does more with a call's results, or calls another function, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.core.program import Function, Program, call_p
from lanewise.diff.calls import calls


class _NotInTail(Exception):
    """A call whose results are not those of the function."""


def as_loop(program: Program) -> Program | None:
    """The same program without recursion, if its one function calls itself in tail position only."""
    entry = program.functions[program.entry]
    if any(eqn.params["name"] != entry.name for eqn in calls(entry.jaxpr)):
        return None
    params = [v.aval for v in entry.params]
    results = [a.aval for a in entry.jaxpr.outvars]

    def run(*values: Any) -> list[Any]:
        captures, given = _jax.divided(values, program.num_captures)
        own = [captures[i] for i in entry.captures]

        def turn(carry: Any) -> Any:
            _, given, _ = carry
            return _turn(entry.jaxpr, [*own, *given], params, results)

        blank = [_jax.zeros(a) for a in results]
        start = (jnp.bool_(True), list(given), blank)
        return lax.while_loop(lambda carry: carry[0], turn, start)[2]

    try:
        traced = _jax.trace(run, [*program.capture_avals, *params])
    except _NotInTail:
        return None
    if traced.captures:
        return None
    name = f"loop({entry.name})"
    captured = tuple(range(program.num_captures))
    return Program({name: Function(name, traced.jaxpr, captured)}, name, program.num_captures)


def _calls(eqn: _jax.JaxprEqn) -> bool:
    return eqn.primitive is call_p or any(calls(code) for code in _jax.subjaxprs(eqn))


def _turn(
    jaxpr: _jax.Jaxpr, args: Sequence[Any], params: Sequence[Any], results: Sequence[Any]
) -> tuple[Any, list[Any], list[Any]]:
    """One call: whether another follows, its arguments if so, and the results if not."""
    if not calls(jaxpr):
        found = zip(_jax.evaluate(jaxpr, args, _jax.run_eqn), results, strict=True)
        outs = [_jax.convert_to_aval(x, a) for x, a in found]
        return jnp.bool_(False), [_jax.zeros(a) for a in params], outs
    *before, last = jaxpr.eqns
    if any(_calls(eqn) for eqn in before) or list(jaxpr.outvars) != list(last.outvars):
        raise _NotInTail
    head = _jax.new_jaxpr([*jaxpr.constvars, *jaxpr.invars], last.invars, before)
    operands = _jax.eval_jaxpr(head, *_jax.attached_consts(jaxpr), *args)
    if last.primitive is call_p:
        following = [_jax.convert_to_aval(x, a) for x, a in zip(operands, params, strict=True)]
        return jnp.bool_(True), following, [_jax.zeros(a) for a in results]
    if last.primitive.name != "cond":
        raise _NotInTail
    branch = _jax.Cond.of(last, operands)
    sides = [
        lambda *given, code=code: _turn(code, given, params, results) for code in branch.branches
    ]
    return lax.switch(branch.index, sides, *branch.operands)
