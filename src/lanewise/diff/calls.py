"""The calls in a function's code, bound anew.

`call` equations are deep inside `cond`, `while` and `scan`. `rebind` runs a jaxpr and hands each call it meets to
`on_call`, which binds what it likes instead, values of enclosing traces included: JAX's own control flow takes those
along. Code without calls is run as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
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
    inside = _without_tests if of_values else _jax.subjaxprs
    return [eqn for eqn in _jax.equations(jaxpr.eqns, inside) if eqn.primitive is call_p]


def _without_tests(eqn: _jax.JaxprEqn) -> Iterable[_jax.Jaxpr]:
    if eqn.primitive.name == "while":
        return (_jax.While.of(eqn, eqn.invars).body,)
    return _jax.subjaxprs(eqn)


def rebind(
    jaxpr: _jax.Jaxpr,
    args: Sequence[Any],
    on_call: OnCall,
    *,
    of_values: bool = False,
) -> list[Any]:
    """Run a jaxpr, with `on_call` at its calls; with `of_values`, calls in the tests of loops stay as they are."""

    def inner(code: Any, *operands: Any) -> list[Any]:
        return rebind(code, operands, on_call, of_values=of_values)

    def rule(eqn: _jax.JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        name = eqn.primitive.name
        if eqn.primitive is call_p:
            return on_call(eqn, operands)
        if not any(calls(code, of_values) for code in _jax.subjaxprs(eqn)):
            return _jax.run_eqn(eqn, operands)
        if is_wrapper(eqn):
            return inner(code_of(eqn), *operands)
        if name in _CONTROL:
            return _CONTROL[name](eqn, operands, inner, of_values)
        raise TransformError(
            f"a program calls itself inside {name} ({_jax.user_line(eqn)}), and closes over a value that is"
            " differentiated. Pass the value as an argument instead."
        )

    return _jax.evaluate(jaxpr, args, rule)


_Inner = Callable[..., list[Any]]


def _cond(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], inner: _Inner, of_values: bool
) -> Sequence[Any]:
    del of_values
    parts = _jax.Cond.of(eqn, operands)
    # Closed over, so that what a call takes besides is not another operand if it is one of these.
    sides = [functools.partial(inner, code, *parts.operands) for code in parts.branches]
    if len(sides) == 2:
        return lax.cond(parts.index == 1, sides[1], sides[0])
    return lax.switch(parts.index, sides)


def _while(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], inner: _Inner, of_values: bool
) -> Sequence[Any]:
    loop = _jax.While.of(eqn, operands)

    def holds(carry: Sequence[Any]) -> Any:
        if of_values:
            return rebind(loop.test, [*loop.test_consts, *carry], _jax.run_eqn)[0]
        return inner(loop.test, *loop.test_consts, *carry)[0]

    def turn(carry: Sequence[Any]) -> list[Any]:
        return inner(loop.body, *loop.consts, *carry)

    return lax.while_loop(holds, turn, list(loop.init))


def _scan(
    eqn: _jax.JaxprEqn, operands: Sequence[Any], inner: _Inner, of_values: bool
) -> Sequence[Any]:
    del of_values
    loop = _jax.Scan.of(eqn, operands)

    def step(carry: Sequence[Any], slices: Sequence[Any]) -> Any:
        return loop.divided(inner(loop.body, *loop.consts, *carry, *slices))

    carry, stacked = lax.scan(
        step, list(loop.init), list(loop.xs), length=loop.length, reverse=loop.reverse
    )
    return [*carry, *stacked]


_CONTROL: dict[str, Callable[..., Sequence[Any]]] = {"cond": _cond, "while": _while, "scan": _scan}
