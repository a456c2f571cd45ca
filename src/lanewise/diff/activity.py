"""Which values move: those that depend on what is differentiated and have a derivative at all.

A value that does not move has no adjoint. The analysis follows dependence only, so a value it finds to move may have an
adjoint of zero; one that it finds not to move has none. Loops are followed until nothing more moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lanewise import _jax
from lanewise.core.program import call_p

Moving = tuple[bool, ...]


OnCall = Callable[[_jax.JaxprEqn, Sequence[bool]], None]
"""What to do at a call, given which of its operands move: perhaps more than once, with more of them each time."""


def moving_outputs(
    jaxpr: _jax.Jaxpr, moving: Sequence[bool], on_call: OnCall | None = None
) -> Moving:
    """Which results move when these inputs do."""
    moves: set[_jax.Var] = {v for v, flag in zip(jaxpr.invars, moving, strict=True) if flag}
    for eqn in jaxpr.eqns:
        flags = [not isinstance(a, _jax.Literal) and a in moves for a in eqn.invars]
        for var, flag in zip(eqn.outvars, moving_results(eqn, flags, on_call), strict=True):
            if flag:
                moves.add(var)
    return tuple(not isinstance(a, _jax.Literal) and a in moves for a in jaxpr.outvars)


def moving_results(
    eqn: _jax.JaxprEqn, moving: Sequence[bool], on_call: OnCall | None = None
) -> Moving:
    """Which results of an equation move."""
    name = eqn.primitive.name
    if name == "cond":
        sides = [moving_outputs(code, moving[1:], on_call) for code in eqn.params["branches"]]
        found = tuple(map(any, zip(*sides, strict=True)))
    elif name == "while":
        found = moving_carry(eqn, moving, on_call)
    elif name == "scan":
        found = moving_in_scan(eqn, moving, on_call)[1]
    else:
        if on_call is not None and eqn.primitive is call_p:
            on_call(eqn, moving)
        found = (any(moving),) * len(eqn.outvars)
    return tuple(
        flag and _jax.has_tangent(var.aval) for flag, var in zip(found, eqn.outvars, strict=True)
    )


def moving_carry(
    eqn: _jax.JaxprEqn, moving: Sequence[bool], on_call: OnCall | None = None
) -> Moving:
    """Which of the state of a `while` moves, in any iteration."""
    first = eqn.params["cond_nconsts"]
    consts = tuple(moving[first : first + eqn.params["body_nconsts"]])
    carry = tuple(moving[first + len(consts) :])
    body = eqn.params["body_jaxpr"]
    while True:
        after = moving_outputs(body, (*consts, *carry), on_call)
        joined = _joined(carry, after)
        if joined == carry:
            return carry
        carry = joined


def moving_in_scan(
    eqn: _jax.JaxprEqn, moving: Sequence[bool], on_call: OnCall | None = None
) -> tuple[Moving, Moving]:
    """Which inputs of a `scan`'s body move in any iteration, and which of its results."""
    parts, body = _jax.scan_parts(eqn), eqn.params["jaxpr"]
    consts = tuple(moving[: parts.num_consts])
    carry = tuple(moving[parts.num_consts : parts.num_consts + parts.num_carry])
    xs = tuple(moving[parts.num_consts + parts.num_carry :])
    while True:
        outs = moving_outputs(body, (*consts, *carry, *xs), on_call)
        joined = _joined(carry, outs[: parts.num_carry])
        if joined == carry:
            return (*consts, *carry, *xs), (*carry, *outs[parts.num_carry :])
        carry = joined


def _joined(before: Sequence[bool], after: Sequence[Any]) -> Moving:
    return tuple(a or b for a, b in zip(before, after, strict=True))
