"""Operators of `reduce`, `scan`, `histogram` and their kin: what they take, and which of them are known.

An operator takes two elements (trees of arrays) and gives one of the same type. It is traced once, at the type of an
element; what it closes over stays an ordinary value of the enclosing trace, so that it is batched and differentiated
like anything else.

The operators with a fast form are recognized by what they compute, not by identity: each result is read off the trace
as an expression of the two operands, and compared with the expressions of the operators in `KNOWN`. So `jnp.add`,
`operator.add`, `lambda a, b: b + a`, and each half of `lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1]))` are all
found. Other ways to write the same (`jnp.where(a > b, a, b)` for a maximum) are not, and take the general path.
Operators that are linear in each operand (products of small matrices, affine maps) are found in `bilinear.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise.arrays.bilinear import Bilinear, bilinear_of
from lanewise.arrays.operands import Elements, shape_text
from lanewise.core.errors import OperatorError
from lanewise.core.primitives.facts import is_forward_call

Leaves = list[Any]
# An operator with a longer expression is none of the known ones.
_LONGEST = 64


@dataclass(frozen=True)
class Known:
    """An operator with a fast form. `combine` is the same as `function`, with a derivative where that has none."""

    name: str
    function: Callable[[Any, Any], Any]
    neutral: Callable[[np.dtype], Any]
    combine: Callable[[Any, Any], Any]
    on: type[np.generic]


def first_maximum(a: Any, b: Any) -> Any:
    """The larger, the first of equals; NaN if one is. Its derivative goes to the one it took."""
    return lax.select((b > a) | (b != b), b, a)


def first_minimum(a: Any, b: Any) -> Any:
    return lax.select((b < a) | (b != b), b, a)


def nothing_or_logaddexp(a: Any, b: Any) -> Any:
    """log(exp a + exp b), with a derivative of zero instead of NaN where both are minus infinity."""
    nothing = (a == -np.inf) & (b == -np.inf)
    return jnp.where(nothing, -np.inf, jnp.logaddexp(jnp.where(nothing, 0, a), b))


def _lowest(dtype: np.dtype) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def _known(
    function: Callable[[Any, Any], Any],
    neutral: Callable[[np.dtype], Any],
    combine: Callable[[Any, Any], Any] | None = None,
    on: type[np.generic] = np.number,
) -> Known:
    return Known(function.__name__, function, neutral, combine or function, on)


ADD, MULTIPLY, MAXIMUM, MINIMUM, LOGADDEXP = "add", "multiply", "maximum", "minimum", "logaddexp"
AND, OR = "bitwise_and", "bitwise_or"

# Of two that are the same for a type (on bools, + is "or") the first counts.
KNOWN: dict[str, Known] = {
    ADD: _known(jnp.add, lambda dtype: 0),
    MULTIPLY: _known(jnp.multiply, lambda dtype: 1),
    MAXIMUM: _known(jnp.maximum, _lowest, first_maximum),
    MINIMUM: _known(jnp.minimum, _highest, first_minimum),
    LOGADDEXP: _known(jnp.logaddexp, lambda dtype: -np.inf, nothing_or_logaddexp, np.floating),
    OR: _known(jnp.bitwise_or, lambda dtype: False if dtype == np.bool_ else 0, on=np.generic),
    AND: _known(jnp.bitwise_and, lambda dtype: True if dtype == np.bool_ else -1, on=np.generic),
}


@dataclass(frozen=True)
class Operator:
    """An operator on elements, as flat leaves.

    `kinds` names the known operator of each leaf, if all are known. Otherwise `bilinear` is what it is made of, if
    it is linear in each operand.
    """

    traced: _jax.Traced
    kinds: tuple[str, ...] | None
    bilinear: Bilinear | None
    neutral: tuple[Any, ...] | None
    neutral_given: bool

    def __call__(self, a: Sequence[Any], b: Sequence[Any]) -> Leaves:
        if self.kinds is None:
            return self.traced(*a, *b)
        return [KNOWN[kind].combine(x, y) for kind, x, y in zip(self.kinds, a, b, strict=True)]

    def neutral_for(self, what: str, why: str) -> Leaves:
        """The neutral element, or an error that says why it is needed."""
        if self.neutral is None:
            raise OperatorError(
                f"`{what}` needs the neutral element of its operator {why}. Give `neutral=`, the element e with"
                " operator(e, x) == x == operator(x, e)."
            )
        return list(self.neutral)


def _refuse_arity(what: str, operator: Callable[..., Any]) -> None:
    """Raise for a function that cannot be called with two elements."""
    try:
        signature = inspect.signature(operator)
    except (TypeError, ValueError):  # it has no signature
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise OperatorError(
            f"`{what}`: `operator` is {getattr(operator, '__name__', operator)}{signature}. Give one that takes two"
            " elements."
        ) from None


def operator_on(what: str, operator: Any, xs: Elements, neutral: Any) -> Operator:
    """The operator traced at the type of an element of `xs`, checked."""
    if not callable(operator):
        raise OperatorError(
            f"`{what}`: `operator` is {operator!r}, not a function. Give one that takes two elements."
        )
    _refuse_arity(what, operator)
    found: list[Any] = []

    def flat(*leaves: Any) -> Leaves:
        count = len(xs.avals)
        a = jax.tree.unflatten(xs.tree, leaves[:count])
        b = jax.tree.unflatten(xs.tree, leaves[count:])
        out = operator(a, b)
        found.append(out)
        # A result made of Python scalars alone would be weakly typed, which elements are not.
        return [
            jnp.asarray(x, _jax.aval_of(x).dtype) if _jax.aval_of(x).weak_type else x
            for x in jax.tree.leaves(out)
        ]

    traced = _jax.trace(flat, [*xs.avals, *xs.avals])
    _check_result(what, found[-1], traced, xs)
    kinds = _kinds(traced, xs.avals)
    known = kinds is not None or bool(traced.captures)
    bilinear = None if known else bilinear_of(traced.jaxpr, xs.avals)
    found_neutral = _neutral(what, neutral, kinds, bilinear, xs)
    return Operator(traced, kinds, bilinear, found_neutral, neutral is not None)


def _check_result(what: str, out: Any, traced: _jax.Traced, xs: Elements) -> None:
    tree = jax.tree.structure(out)
    if tree != xs.tree:
        raise OperatorError(
            f"`{what}`: `operator` takes two elements of structure {xs.tree} and gives {tree}. Make it return the"
            " structure of its operands."
        )
    for place, aval, found in zip(xs.places, xs.avals, traced.out_avals, strict=True):
        if (aval.shape, aval.dtype) != (found.shape, found.dtype):
            raise OperatorError(
                f"`{what}`: `operator` gives {shape_text(found)} where its operands{place} are {shape_text(aval)}."
                " Make the result of the type of the operands (cast it, or the arrays)."
            )


def _neutral(
    what: str,
    neutral: Any,
    kinds: tuple[str, ...] | None,
    bilinear: Bilinear | None,
    xs: Elements,
) -> tuple[Any, ...] | None:
    if neutral is None:
        if bilinear is not None:
            return tuple(bilinear.neutral_leaves(xs.avals))
        if kinds is None:
            return None
        return tuple(
            jnp.full(aval.shape, KNOWN[kind].neutral(aval.dtype), aval.dtype)
            for kind, aval in zip(kinds, xs.avals, strict=True)
        )
    leaves, tree = jax.tree.flatten(neutral)
    if tree != xs.tree:
        raise OperatorError(
            f"`{what}`: `neutral` has structure {tree}, the elements have {xs.tree}. Give one value for each array."
        )
    return tuple(
        _neutral_leaf(what, value, aval, place)
        for value, aval, place in zip(leaves, xs.avals, xs.places, strict=True)
    )


def _neutral_leaf(what: str, value: Any, aval: _jax.ShapedArray, place: str) -> Any:
    try:
        found = _jax.aval_of(value)
        fits = found.shape in ((), aval.shape) and jnp.result_type(value, aval.dtype) == aval.dtype
    except TypeError:
        raise OperatorError(
            f"`{what}`: `neutral`{place} is {value!r}, where the elements are {shape_text(aval)}."
            " Give an array or a number."
        ) from None
    if not fits:
        raise OperatorError(
            f"`{what}`: `neutral`{place} is {shape_text(found)} where the elements are {shape_text(aval)}."
            " Give it the type of an element."
        )
    # A neutral element is a constant: what is combined with it must not depend on it.
    return lax.stop_gradient(jnp.broadcast_to(jnp.asarray(value, aval.dtype), aval.shape))


# -- which operators are known ----------------------------------------------------------------------


def _kinds(traced: _jax.Traced, avals: Sequence[_jax.ShapedArray]) -> tuple[str, ...] | None:
    """The known operator of each leaf, if each result is a known one of that leaf of the operands alone."""
    if traced.captures or not avals:
        return None
    names = [(side, j) for side in "ab" for j in range(len(avals))]
    found: list[str] = []
    for i, aval in enumerate(avals):
        expression = _expression(traced.jaxpr, i, names)
        table = _known_expressions(aval.shape, aval.dtype, i, _jax.trace_context())
        kind = table.get(expression)
        if kind is None:
            return None
        found.append(kind)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _known_expressions(
    shape: tuple[int, ...], dtype: np.dtype, leaf: int, context: Any
) -> dict[Any, str]:
    """What the known operators compute on this leaf of two elements, either way round."""
    del context
    aval, found = _jax.shaped(shape, dtype), {}
    for kind, known in KNOWN.items():
        if not (jnp.issubdtype(dtype, known.on) and _applies(known, aval)):
            continue
        jaxpr = _jax.trace(lambda a, b, f=known.function: [f(a, b)], [aval, aval]).jaxpr
        for names in ([("a", leaf), ("b", leaf)], [("b", leaf), ("a", leaf)]):
            found.setdefault(_expression(jaxpr, 0, names), kind)
    found.pop(None, None)
    return found


def _applies(known: Known, aval: _jax.ShapedArray) -> bool:
    ordered = not jnp.issubdtype(aval.dtype, jnp.complexfloating)
    if known.name in (MAXIMUM, MINIMUM):
        return ordered
    whole = jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == np.bool_
    return whole if known.name in (AND, OR) else True


class _TooLong(Exception):
    """Signal, never shown: no known operator is that long."""


def _expression(jaxpr: _jax.Jaxpr, out: int, names: Sequence[Any]) -> Any:
    """One result of a jaxpr as nested tuples over the names of its inputs; None if it is long or holds control flow."""
    budget = [_LONGEST]
    try:
        return _read(jaxpr, list(names), budget)[out]()
    except _TooLong:
        return None


def _read(jaxpr: _jax.Jaxpr, names: list[Any], budget: list[int]) -> list[Callable[[], Any]]:
    """The results of a jaxpr, each as a function that reads it: only what a result needs is read."""
    made: dict[Any, Callable[[], Any]] = {
        var: (lambda name=name: name) for var, name in zip(jaxpr.invars, names, strict=True)
    }

    def atom(x: Any) -> Any:
        if isinstance(x, _jax.Literal):
            return ("literal", str(x.val), str(x.aval.dtype))
        return made[x]()

    def operation(eqn: _jax.JaxprEqn) -> Any:
        budget[0] -= 1
        if budget[0] < 0 or any(True for _ in _jax.subjaxprs(eqn)):
            raise _TooLong
        params = tuple(sorted((k, str(v)) for k, v in eqn.params.items()))
        return (eqn.primitive.name, params, *map(atom, eqn.invars))

    for eqn in jaxpr.eqns:
        if is_forward_call(eqn):
            inner = next(_jax.subjaxprs(eqn))
            if len(inner.invars) + len(inner.constvars) != len(eqn.invars):
                raise _TooLong

            def called(i: int, inner: Any = inner, eqn: Any = eqn) -> Any:
                return _read(_jax.flat_jaxpr(inner), [atom(x) for x in eqn.invars], budget)[i]()

            for i, var in enumerate(eqn.outvars):
                made[var] = functools.partial(called, i)
        else:
            for i, var in enumerate(eqn.outvars):
                made[var] = lambda i=i, eqn=eqn: (i, operation(eqn))
    return [functools.partial(atom, x) for x in jaxpr.outvars]
