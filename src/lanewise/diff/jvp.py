"""Forward mode, program to program.

Every function of the table gets a derived function that takes, after its captures and after its parameters, the
tangents of those that are active, and returns, after its results, the tangents of all inexact results. Straight-line
code and structured control flow go through JAX's own rules; a `call` becomes a call of the derived function. So the
derivative of a program is a program, and the machine runs it like any other.

Which parameters are active is part of a derived function's name: a recursion whose tangents reach more parameters on
the way down than at the start asks for another derived function, of which there are finitely many.

JAX asks for a derivative only where an operand is active. A call whose function closes over active values is derived
though no operand of it does, so it is bound as `witnessed_call`, which takes one active capture in front as a witness;
its rule makes the derived call, which finds captures and their tangents on its own, and the witness is gone again. The
test of a loop has no tangents: calls in it stay as they are.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from lanewise import _jax
from lanewise._jax import ad
from lanewise.core.program import Function, Program, call_p
from lanewise.diff.calls import calls, rebind

Active = tuple[bool, ...]


witnessed_call_p = _jax.primitive("witnessed_call")


@witnessed_call_p.def_abstract_eval
def _witnessed_call_abstract(*args: Any, out_avals: Sequence[Any], **params: Any) -> Any:
    del args, params
    return list(out_avals)


@functools.lru_cache(maxsize=512)
@_jax.without_mesh()
def jvp_program(program: Program, active: Active) -> tuple[Program, tuple[Any, ...]]:
    """The program that computes answers and their tangents when these operands have tangents, and its constants.

    Its operands are captures, their tangents, constants that rules of its code hold, parameters, their tangents; its
    answers are the answers, then tangents of the inexact ones.
    """
    original, program = program, _without_clashes(program)
    captured = active[: program.num_captures]
    closing = _closing_over(program, captured)
    entry = program.functions[program.entry]
    wanted = [(entry.name, active[program.num_captures :])]
    functions: dict[str, Function] = {}
    count = program.num_captures + sum(captured)
    constants: list[Any] = []
    first = _derived_name(*wanted[0])
    while wanted:
        name, params = wanted.pop()
        derived = _derived_name(name, params)
        if derived in functions:
            continue
        code, captures = _derive(program, program.functions[name], captured, params, closing)
        held = range(count + len(constants), count + len(constants) + len(code.captures))
        constants += code.captures
        function = functions[derived] = Function(derived, code.jaxpr, (*held, *captures))
        wanted += [
            eqn.params["jvp_of"]
            for eqn in calls(function.jaxpr)
            if eqn.params["name"] not in program.functions
        ]
    _add_unmoved(program, functions)
    found = Program(functions, first, count + len(constants), whole=program.whole)
    _derivatives[found] = (original, active)
    return found, tuple(constants)


_derivatives: weakref.WeakKeyDictionary[Program, tuple[Program, Active]] = (
    weakref.WeakKeyDictionary()
)


def derivative_of(program: Program) -> tuple[Program, Active] | None:
    """The program that this one is the forward derivative of, and which of its operands have tangents."""
    return _derivatives.get(program)


def _add_unmoved(program: Program, functions: dict[str, Function]) -> None:
    """Calls on which no tangent depends keep the function they name; it joins the table as it is."""
    work = list(functions.values())
    while work:
        for eqn in calls(work.pop().jaxpr):
            name = eqn.params["name"]
            if name not in functions:
                functions[name] = program.functions[name]
                work.append(functions[name])


def _closing_over(program: Program, captured: Active) -> frozenset[str]:
    """The functions that read an active capture, themselves or in a function they call."""
    closing = {
        name for name, f in program.functions.items() if any(captured[i] for i in f.captures)
    }
    while True:
        more = {
            name
            for name, function in program.functions.items()
            if any(eqn.params["name"] in closing for eqn in calls(function.jaxpr, of_values=True))
        }
        if more <= closing:
            return frozenset(closing)
        closing |= more


def _without_clashes(program: Program) -> Program:
    """The same program with its functions renamed, if a name given here could be one that it has already.

    That is where a function stands in the table both as it is and derived: it joined as one that no tangent reached,
    and is reached by those of another order.
    """
    names = program.functions
    if not any(name.endswith(f"]({other})") for name in names for other in names):
        return program

    def renamed(function: Function) -> Function:
        def call(eqn: _jax.JaxprEqn, args: Sequence[Any]) -> Sequence[Any]:
            return call_p.bind(*args, **{**eqn.params, "name": f"{eqn.params['name']}'"})

        traced = _jax.trace(
            lambda *args: rebind(function.jaxpr, args, call),
            [v.aval for v in function.jaxpr.invars],
        )
        assert not traced.captures
        return Function(f"{function.name}'", traced.jaxpr, function.captures)

    functions = [renamed(function) for function in names.values()]
    return Program({f.name: f for f in functions}, f"{program.entry}'", program.num_captures)


def _derived_name(name: str, active: Active) -> str:
    bits = "".join("1" if flag else "0" for flag in active)
    return f"jvp[{bits}]({name})"


def _derive(
    program: Program,
    function: Function,
    captured: Active,
    params: Active,
    closing: frozenset[str],
) -> tuple[_jax.Traced, tuple[int, ...]]:
    """One function's derived function, and which captures it reads, their tangents among them."""
    num_captures = program.num_captures
    # A function of `closing` that has no active capture of its own borrows one as the witness for its calls.
    lacking = function.name in closing and not any(captured[i] for i in function.captures)
    own = (*function.captures, *((captured.index(True),) if lacking else ()))
    held = tuple(captured[i] for i in own)
    # Tangents of captures come after all captures, in order.
    place = {i: num_captures + sum(captured[:i]) for i in range(num_captures) if captured[i]}
    captures = (*own, *(place[i] for i in own if captured[i]))
    active = (*held, *params)
    num_inputs, num_held, num_active_held = len(function.captures), len(held), sum(held)
    avals = [*(program.capture_avals[i] for i in own), *(var.aval for var in function.params)]
    tangent_avals = [_jax.tangent_aval(a) for a, flag in zip(avals, active, strict=True) if flag]
    in_avals = [
        *avals[:num_held],
        *tangent_avals[:num_active_held],
        *avals[num_held:],
        *tangent_avals[num_active_held:],
    ]

    def primal(*values: Any) -> list[Any]:
        args = [*values[:num_inputs], *values[num_held:]]
        if not any(held):
            return _jax.eval_jaxpr(function.jaxpr, *args)
        witness = values[held.index(True)]

        def call(eqn: _jax.JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
            if eqn.params["name"] in closing:
                return witnessed_call_p.bind(witness, *operands, **eqn.params)
            return _jax.run_eqn(eqn, operands)

        return rebind(function.jaxpr, args, call, of_values=True)

    def run(*values: Any) -> list[Any]:
        held_values, held_tangents, own_values, own_tangents = _jax.divided(
            values, num_held, num_active_held, len(params)
        )
        primals = [*held_values, *own_values]
        tangents = [*held_tangents, *own_tangents]
        has_tangent = [_jax.has_tangent(atom.aval) for atom in function.jaxpr.outvars]
        return _push_forward(primal, primals, tangents, active, has_tangent)

    return _jax.trace(run, in_avals), captures


def _push_forward(
    primal: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    active: Active,
    has_tangent: Sequence[bool],
) -> list[Any]:
    of_moved, moved = _jax.restricted(primal, primals, active)
    if not moved:
        outs = primal(*primals)
        zeros = [jax.numpy.zeros_like(x) for x in itertools.compress(outs, has_tangent)]
        return [*outs, *zeros]
    outs, out_tangents = jax.jvp(of_moved, tuple(moved), tuple(tangents))
    return [*outs, *itertools.compress(out_tangents, has_tangent)]


def _jvp_call(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    name: str,
    out_avals: Sequence[Any],
    jvp_of: Any,
) -> tuple[list[Any], list[Any]]:
    del jvp_of
    active = tuple(type(t) is not ad.Zero for t in tangents)
    given = list(itertools.compress(tangents, active))
    tangent_avals = [_jax.tangent_aval(a) for a in out_avals if _jax.has_tangent(a)]
    outs = call_p.bind(
        *primals,
        *given,
        name=_derived_name(name, active),
        out_avals=(*out_avals, *tangent_avals),
        jvp_of=(name, active),
    )
    answers, given = _jax.divided(outs, len(out_avals))
    moved = iter(given)
    tangent_outs = [
        next(moved) if _jax.has_tangent(a) else _jax.zero_tangent(x)
        for x, a in zip(answers, out_avals, strict=True)
    ]
    return list(answers), tangent_outs


ad.primitive_jvps[call_p] = _jvp_call


def _jvp_witnessed_call(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    return _jvp_call(primals[1:], tangents[1:], **params)


ad.primitive_jvps[witnessed_call_p] = _jvp_witnessed_call
