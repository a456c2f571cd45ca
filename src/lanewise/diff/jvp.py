"""Forward mode, program to program.

Every function of the table gets a derived function that takes, after its captures and after its parameters, the
tangents of those that move, and returns, after its results, the tangents of all inexact results. Straight-line code and
structured control flow go through JAX's own rules; a `call` becomes a call of the derived function. So the derivative
of a program is a program, and the machine runs it like any other.

Which parameters move is part of a derived function's name: a recursion whose tangents reach more parameters on the way
down than at the start asks for another derived function, of which there are finitely many.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from lanewise import _jax
from lanewise._jax import ad
from lanewise.errors import TransformError
from lanewise.program import Function, Program, call_p

Moving = tuple[bool, ...]


@functools.lru_cache(maxsize=512)
def jvp_program(program: Program, moving: Moving) -> Program:
    """The program that computes answers and their tangents when these operands have tangents.

    Its operands are captures, their tangents, parameters, their tangents; its answers are the answers, then tangents of
    the inexact ones.
    """
    captured = moving[: program.num_captures]
    entry = program.functions[program.entry]
    wanted = [(entry.name, moving[program.num_captures :])]
    functions: dict[str, Function] = {}
    first = _derived_name(*wanted[0])
    while wanted:
        name, params = wanted.pop()
        derived = _derived_name(name, params)
        if derived in functions:
            continue
        function = _derive(program.functions[name], derived, captured, params)
        functions[derived] = function
        wanted += _calls_wanted(function.jaxpr)
    _add_unmoved(program, functions, captured)
    return Program(functions, first, program.num_captures + sum(captured))


def _add_unmoved(program: Program, functions: dict[str, Function], captured: Moving) -> None:
    """Calls on which no tangent depends keep the function they name; it joins the table as it is."""
    work = list(functions.values())
    while work:
        for name in _calls_unmoved(work.pop().jaxpr):
            if name in functions:
                continue
            function = program.functions[name]
            if any(captured[i] for i in function.captures):
                raise TransformError(
                    f"`{name}` closes over a value that is differentiated, and calls itself with arguments that are"
                    " not. Pass the value as an argument instead."
                )
            functions[name] = function
            work.append(function)


def _calls_unmoved(jaxpr: Any) -> list[str]:
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is call_p and eqn.params["jvp_of"] is None:
            found.append(eqn.params["name"])
        for inner in _jax.subjaxprs(eqn):
            found += _calls_unmoved(inner)
    return found


def _derived_name(name: str, moving: Moving) -> str:
    bits = "".join("1" if flag else "0" for flag in moving)
    return f"jvp[{bits}]({name})"


def _derive(function: Function, name: str, captured: Moving, params: Moving) -> Function:
    """One function's derived function."""
    num_captures = len(captured)
    held = tuple(captured[i] for i in function.captures)
    # Tangents of captures come after all captures, in order.
    place = {i: num_captures + sum(captured[:i]) for i in range(num_captures) if captured[i]}
    captures = (*function.captures, *(place[i] for i in function.captures if captured[i]))
    moving = (*held, *params)
    avals = [var.aval for var in function.jaxpr.invars]
    num_held, num_moving_held = len(held), sum(held)
    tangent_avals = [_jax.tangent_aval(a) for a, flag in zip(avals, moving, strict=True) if flag]
    in_avals = [
        *avals[:num_held],
        *tangent_avals[:num_moving_held],
        *avals[num_held:],
        *tangent_avals[num_moving_held:],
    ]

    def run(*values: Any) -> list[Any]:
        held_values, rest = values[:num_held], values[num_held:]
        held_tangents, rest = rest[:num_moving_held], rest[num_moving_held:]
        num_params = len(params)
        primals = [*held_values, *rest[:num_params]]
        return _push_forward(function.jaxpr, primals, [*held_tangents, *rest[num_params:]], moving)

    traced = _jax.trace(run, in_avals)
    assert not traced.captures
    return Function(name, traced.jaxpr, captures)


def _push_forward(
    jaxpr: Any, primals: Sequence[Any], tangents: Sequence[Any], moving: Moving
) -> list[Any]:
    moved = [x for x, flag in zip(primals, moving, strict=True) if flag]

    def of_moved(*values: Any) -> list[Any]:
        given = iter(values)
        args = [next(given) if flag else x for x, flag in zip(primals, moving, strict=True)]
        return _jax.eval_jaxpr(jaxpr, *args)

    if not moved:
        outs = _jax.eval_jaxpr(jaxpr, *primals)
        zeros = [
            jax.numpy.zeros_like(x)
            for x, a in zip(outs, jaxpr.outvars, strict=True)
            if _jax.has_tangent(a.aval)
        ]
        return [*outs, *zeros]
    outs, out_tangents = jax.jvp(of_moved, tuple(moved), tuple(tangents))
    kept = [
        t
        for t, atom in zip(out_tangents, jaxpr.outvars, strict=True)
        if _jax.has_tangent(atom.aval)
    ]
    return [*outs, *kept]


def _calls_wanted(jaxpr: Any) -> list[tuple[str, Moving]]:
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is call_p and eqn.params["jvp_of"] is not None:
            found.append(eqn.params["jvp_of"])
        for inner in _jax.subjaxprs(eqn):
            found += _calls_wanted(inner)
    return found


def _jvp_call(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    name: str,
    out_avals: Sequence[Any],
    jvp_of: Any,
) -> tuple[list[Any], list[Any]]:
    del jvp_of
    moving = tuple(type(t) is not ad.Zero for t in tangents)
    given = [t for t, flag in zip(tangents, moving, strict=True) if flag]
    tangent_avals = [_jax.tangent_aval(a) for a in out_avals if _jax.has_tangent(a)]
    outs = call_p.bind(
        *primals,
        *given,
        name=_derived_name(name, moving),
        out_avals=(*out_avals, *tangent_avals),
        jvp_of=(name, moving),
    )
    answers, moved = outs[: len(out_avals)], iter(outs[len(out_avals) :])
    tangent_outs = [
        next(moved) if _jax.has_tangent(a) else _jax.zero_tangent(x)
        for x, a in zip(answers, out_avals, strict=True)
    ]
    return answers, tangent_outs


ad.primitive_jvps[call_p] = _jvp_call
