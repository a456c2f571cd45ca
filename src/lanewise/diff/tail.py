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
        captures, given = values[: program.num_captures], values[program.num_captures :]
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


def _turn(
    jaxpr: _jax.Jaxpr, args: Sequence[Any], params: Sequence[Any], results: Sequence[Any]
) -> tuple[Any, list[Any], list[Any]]:
    """One call: whether another follows, its arguments if so, and the results if not."""
    values: dict[_jax.Var, Any] = dict(zip(jaxpr.invars, args, strict=True))
    values.update(zip(jaxpr.constvars, _jax.attached_consts(jaxpr), strict=True))

    def value(atom: _jax.Atom) -> Any:
        return atom.val if isinstance(atom, _jax.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operands = [value(a) for a in eqn.invars]
        if eqn.primitive is not call_p and not any(calls(c) for c in _jax.subjaxprs(eqn)):
            values.update(zip(eqn.outvars, _jax.run_eqn(eqn, operands), strict=True))
            continue
        if eqn is not jaxpr.eqns[-1] or list(jaxpr.outvars) != list(eqn.outvars):
            raise _NotInTail
        if eqn.primitive is call_p:
            following = [_jax.convert_to_aval(x, a) for x, a in zip(operands, params, strict=True)]
            return jnp.bool_(True), following, [_jax.zeros(a) for a in results]
        if eqn.primitive.name != "cond":
            raise _NotInTail
        index, *given = operands
        sides = [
            lambda *given, code=code: _turn(code, given, params, results)
            for code in eqn.params["branches"]
        ]
        return lax.switch(index, sides, *given)
    outs = [_jax.convert_to_aval(value(a), b) for a, b in zip(jaxpr.outvars, results, strict=True)]
    return jnp.bool_(False), [_jax.zeros(a) for a in params], outs
