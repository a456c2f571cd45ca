"""Constant folding on the small scalars that control flow hangs on: flags, indices, comparisons of constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var

Known = dict[Var, Any]

_PLAIN: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "xor": np.bitwise_xor,
}


# What can be told of an equation's results, all of its inputs known or only some.
_FOLDED = {
    *_PLAIN,
    *("not", "and", "or", "select_n", "cond", "jit", "pjit"),
    *("convert_element_type", "copy", "stop_gradient"),
}


def known_value(atom: Atom, eqns: Iterable[JaxprEqn]) -> Any | None:
    """The value of a scalar if the equations fix it, else None."""
    return value_of(evaluate(eqns, {}), atom)


def evaluate(eqns: Iterable[JaxprEqn], known: Known) -> Known:
    """What the equations fix, given what is known of their inputs."""
    known = dict(known)
    for eqn in eqns:
        if eqn.primitive.name in _FOLDED and all(var.aval.shape == () for var in eqn.outvars):
            known.update(
                {
                    k: v
                    for k, v in zip(eqn.outvars, _outputs(eqn, known), strict=True)
                    if v is not None
                }
            )
    return known


def value_of(known: Known, atom: Atom) -> Any | None:
    if isinstance(atom, Literal):
        return np.asarray(atom.val, atom.aval.dtype)[()] if np.ndim(atom.val) == 0 else None
    return known.get(atom)


def identical(first: Any, second: Any) -> bool:
    """Whether two constants are the same bits.

    >>> identical(np.float32(0.0), np.float32(-0.0))
    False
    """
    first, second = np.asarray(first), np.asarray(second)
    return (first.dtype, first.shape, first.tobytes()) == (
        second.dtype,
        second.shape,
        second.tobytes(),
    )


def _outputs(eqn: JaxprEqn, known: Known) -> list[Any | None]:
    values = [value_of(known, atom) for atom in eqn.invars]
    nothing = [None] * len(eqn.outvars)
    name = eqn.primitive.name
    is_bool = len(eqn.outvars) == 1 and eqn.outvars[0].aval.dtype == np.bool_
    if name == "not" and is_bool:
        return [None if values[0] is None else np.logical_not(values[0])]
    if name in ("and", "or") and is_bool:
        decisive = name == "or"
        if any(v is not None and bool(v) == decisive for v in values):
            return [np.bool_(decisive)]
        return nothing if any(v is None for v in values) else [np.bool_(not decisive)]
    if name == "select_n" and values[0] is not None:
        return [values[1 + int(values[0])]]
    if name == "cond" and values[0] is not None:
        return _run(eqn.params["branches"][int(values[0])], values[1:])
    if name in ("jit", "pjit"):
        return _run(eqn.params["jaxpr"], values)
    if any(v is None for v in values):
        return nothing
    if name == "convert_element_type" and not _jax.is_extended(eqn.params["new_dtype"]):
        return [np.asarray(values[0]).astype(eqn.params["new_dtype"])[()]]
    if name in ("copy", "stop_gradient"):
        return [values[0]]
    return [_PLAIN[name](*values)] if name in _PLAIN else nothing


def _run(jaxpr: Any, values: Iterable[Any | None]) -> list[Any | None]:
    known = evaluate(
        jaxpr.eqns, {var: v for var, v in zip(jaxpr.invars, values, strict=True) if v is not None}
    )
    return [value_of(known, atom) for atom in jaxpr.outvars]
