"""Loops of unknown length inside a piece.

A piece runs for as many rows as an envelope has room for, and some of these are not there: what they read may be
anything, and a loop on it may never end. So a launch of such a piece has copies of a row that is there in their place,
and is left out where there is none (`compute.py`). Rows that are there do not change each other: the loop is a program
of its own inside the piece, with a lane for each row. A row that has ended stays as it is, and a loop in a branch runs
for the rows that take it. And it has a gradient, which JAX's own loop of unknown length has not: what that saves does
not grow with the number of turns (`diff/checkpoint.py`).

Considered and not done: to have the loop run under JAX's own batching, guarded by flags of the rows that are there. It
would have to be guarded inside every branch too, and has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn, Literal
from lanewise.core.options import Options
from lanewise.core.program import Function, Program, codes_inside, program_p

_OPTIONS = Options()


def may_not_end(eqn: JaxprEqn) -> bool:
    """Whether an equation holds a loop of unknown length, or a recursion."""
    return any(
        each.primitive.name == "while"
        or (each.primitive is program_p and each.params["program"].recursive)
        for each in _jax.equations((eqn,), codes_inside)
    )


def with_programs(code: Jaxpr, options: Options = _OPTIONS) -> Jaxpr:
    """The same code, with equations that hold loops of unknown length as programs, which run with these options.

    >>> import jax
    >>> def halved(x):
    ...     return jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
    >>> code = _jax.trace(lambda x: [halved(x) + 1], [jax.ShapeDtypeStruct((), "float32")]).jaxpr
    >>> [eqn.primitive.name for eqn in with_programs(code).eqns]
    ['program', 'add']
    """
    if not any(map(may_not_end, code.eqns)):
        return code
    eqns = [_as_program(eqn, options) if may_not_end(eqn) else eqn for eqn in code.eqns]
    return _jax.new_jaxpr(code.invars, code.outvars, eqns)


def _as_program(eqn: JaxprEqn, options: Options) -> JaxprEqn:
    if eqn.primitive is program_p:
        return eqn
    operands = list(dict.fromkeys(a for a in eqn.invars if not isinstance(a, Literal)))
    name = f"{eqn.primitive.name} in a piece"
    body = Function(name, _jax.new_jaxpr(operands, eqn.outvars, [eqn]))
    program = Program({name: body}, name)
    traced = _jax.trace(
        lambda *values: program_p.bind(
            *values, program=program, lanes=(), mapped=((),) * len(values), options=options
        ),
        [a.aval for a in operands],
    )
    (whole,) = traced.jaxpr.eqns
    return whole.replace(invars=operands, outvars=eqn.outvars, source_info=eqn.source_info)


def with_gradients(fun: Callable[..., Sequence[Any]]) -> Callable[..., list[Any]]:
    """A function of arrays, written so that JAX goes backwards through its loops too, as often as is asked."""

    def run(*args: Any) -> list[Any]:
        traced = _jax.trace(fun, [_jax.shape_dtype_struct(_jax.aval_of(x)) for x in args])
        code = with_programs(traced.jaxpr, Options(schedule="plain"))
        return _jax.eval_jaxpr(code, *traced.captures, *args)

    return run
