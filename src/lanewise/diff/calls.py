"""The calls in a function's code, bound anew.

`call` equations lie deep inside `cond`, `while` and `scan`. `rebind` runs a jaxpr and hands each call it meets to
`on_call`, which binds what it likes instead, values of enclosing traces included: JAX's own control flow takes those
along. Code without calls is run as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from lanewise import _jax
from lanewise.core.errors import TransformError
from lanewise.core.primitives.facts import code_of, is_wrapper
from lanewise.core.program import call_p

OnCall = Callable[[_jax.JaxprEqn, Sequence[Any]], Sequence[Any]]
"""What to do at a call, given its equation and the values of its operands."""


def calls(jaxpr: _jax.Jaxpr, of_values: bool = False) -> list[_jax.JaxprEqn]:
    """Every `call` equation in a jaxpr; with `of_values` those in the tests of loops are left out."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is call_p:
            found.append(eqn)
        elif of_values and eqn.primitive.name == "while":
            found += calls(eqn.params["body_jaxpr"], of_values)
        else:
            for inner in _jax.subjaxprs(eqn):
                found += calls(inner, of_values)
    return found


def rebind(
    jaxpr: _jax.Jaxpr,
    args: Sequence[Any],
    on_call: OnCall,
    *,
    consts: Sequence[Any] = (),
    of_values: bool = False,
) -> list[Any]:
    """Run a jaxpr, with `on_call` at its calls; with `of_values` not at those in the tests of loops."""
    values: dict[_jax.Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def value(atom: _jax.Atom) -> Any:
        return atom.val if isinstance(atom, _jax.Literal) else values[atom]

    def inner(code: Any, *operands: Any) -> list[Any]:
        return rebind(
            code,
            operands,
            on_call,
            consts=_jax.attached_consts(code),
            of_values=of_values,
        )

    for eqn in jaxpr.eqns:
        operands = [value(atom) for atom in eqn.invars]
        name = eqn.primitive.name
        if eqn.primitive is call_p:
            outs = on_call(eqn, operands)
        elif not any(calls(code, of_values) for code in _jax.subjaxprs(eqn)):
            outs = _jax.run_eqn(eqn, operands)
        elif is_wrapper(eqn):
            outs = inner(code_of(eqn), *operands)
        elif name in _CONTROL:
            outs = _CONTROL[name](eqn, operands, inner, of_values)
        else:
            raise TransformError(
                f"a program calls itself inside {name} ({_jax.user_line(eqn)}), and closes over a value that is"
                " differentiated. Pass the value as an argument instead."
            )
        values.update(zip(eqn.outvars, outs, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


_Inner = Callable[..., list[Any]]


def _cond(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], inner: _Inner, of_values: bool
) -> Sequence[Any]:
    del of_values
    index, *args = operands
    # Closed over, so that what a call takes besides is not another operand if it is one of these.
    sides = [functools.partial(inner, code, *args) for code in eqn.params["branches"]]
    if len(sides) == 2:
        return lax.cond(index == 1, sides[1], sides[0])
    return lax.switch(index, sides)


def _while(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], inner: _Inner, of_values: bool
) -> Sequence[Any]:
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    num_test, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test_consts, rest = operands[:num_test], operands[num_test:]
    body_consts, init = rest[:num_body], rest[num_body:]

    def holds(carry: Sequence[Any]) -> Any:
        if of_values:
            as_it_is = _jax.attached_consts(test)
            return rebind(test, [*test_consts, *carry], _jax.run_eqn, consts=as_it_is)[0]
        return inner(test, *test_consts, *carry)[0]

    return lax.while_loop(holds, lambda carry: inner(body, *body_consts, *carry), list(init))


def _scan(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], inner: _Inner, of_values: bool
) -> Sequence[Any]:
    del of_values
    parts, body = _jax.scan_parts(eqn), eqn.params["jaxpr"]
    consts, rest = operands[: parts.num_consts], operands[parts.num_consts :]
    init, xs = rest[: parts.num_carry], rest[parts.num_carry :]

    def step(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = inner(body, *consts, *carry, *slices)
        return outs[: parts.num_carry], outs[parts.num_carry :]

    carry, stacked = lax.scan(
        step, list(init), list(xs), length=parts.length, reverse=parts.reverse
    )
    return [*carry, *stacked]


_CONTROL: dict[str, Callable[..., Sequence[Any]]] = {"cond": _cond, "while": _while, "scan": _scan}
