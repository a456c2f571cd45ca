"""How two types meet, as JAX has it: shapes must be equal, weak types give way to strong ones.

And what a weak type does to code: nothing, unless it meets another dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.core import ShapedArray

from lanewise import _jax


def show(aval: Any) -> str:
    """A type as messages print it.

    >>> show(_jax.shaped((3,), jnp.float32))
    'float32[3]'
    """
    return aval.str_short()


def join(first: ShapedArray, second: ShapedArray) -> ShapedArray | None:
    """The type both can become, or None where there is none.

    A weak type (a Python scalar's) becomes the strong type it meets if JAX's promotion says so.

    >>> weak_int = _jax.aval_of(1)
    >>> join(weak_int, _jax.shaped((), jnp.int8))
    ShapedArray(int8[])
    >>> join(_jax.shaped((), jnp.int32), _jax.shaped((), jnp.float32)) is None
    True
    """
    if first.shape != second.shape:
        return None
    first_weak, second_weak = bool(first.weak_type), bool(second.weak_type)
    if first.dtype == second.dtype:
        return _jax.shaped(first.shape, first.dtype, first_weak and second_weak)
    if _jax.is_extended(first.dtype) or _jax.is_extended(second.dtype):
        return None
    if first_weak and second_weak:
        return _jax.shaped(first.shape, jnp.promote_types(first.dtype, second.dtype), True)
    if first_weak and _gives_way(first, second):
        return second
    if second_weak and _gives_way(second, first):
        return first
    return None


def _gives_way(weak: ShapedArray, strong: ShapedArray) -> bool:
    # `jnp.result_type` looks for a weak type on values only: a `ShapeDtypeStruct` always counts as strong.
    return jnp.result_type(weak_example(weak.dtype), strong.dtype) == strong.dtype


def weaker(first: Sequence[ShapedArray], second: Sequence[ShapedArray]) -> bool:
    """Whether types differ from others in weak types alone, and some of the first are weak where the others are not.

    >>> weak, strong = _jax.aval_of(1.0), _jax.shaped((), jnp.dtype(jnp.float32))
    >>> weaker([weak, strong], [strong, weak]), weaker([strong], [weak]), weaker([weak], [_jax.aval_of(1)])
    (True, False, False)
    """
    if [(a.shape, a.dtype) for a in first] != [(a.shape, a.dtype) for a in second]:
        return False
    return any(a.weak_type and not b.weak_type for a, b in zip(first, second, strict=True))


def stronger(
    first: Sequence[ShapedArray], second: Sequence[ShapedArray]
) -> tuple[ShapedArray, ...]:
    """Types that differ in weak types alone: weak where both are."""
    return tuple(
        _jax.shaped(a.shape, a.dtype, bool(a.weak_type and b.weak_type))
        for a, b in zip(first, second, strict=True)
    )


def same_code(first: _jax.Jaxpr, second: _jax.Jaxpr) -> bool:
    """Whether two traces of one function, at types that differ in weak types alone, compute the same.

    They do if every operation has the same dtypes: the Python code is the same, and a weak type shows in nothing else.

    >>> def mixed(x):
    ...     return [(x + jnp.float16(1)).astype(jnp.float32)]
    >>> weak, strong = _jax.aval_of(1.0), _jax.shaped((), jnp.dtype(jnp.float32))
    >>> codes = [_jax.trace(lambda x: [jnp.sin(x) * 2], [aval]).jaxpr for aval in (weak, strong)]
    >>> differing = [_jax.trace(mixed, [aval]).jaxpr for aval in (weak, strong)]
    >>> same_code(*codes), same_code(*differing)
    (True, False)
    """
    return _types(first.outvars) == _types(second.outvars) and list(_outline(first)) == list(
        _outline(second)
    )


def _outline(jaxpr: _jax.Jaxpr) -> Iterator[Any]:
    """Operations, the types of their results, and the code inside them. To strengthen a type is no operation."""
    for eqn in jaxpr.eqns:
        name, types = eqn.primitive.name, _types(eqn.outvars)
        if name == "convert_element_type" and types == _types(eqn.invars):
            continue
        # A call of what has been traced gives outcomes too, and throws them; of what is being traced it does not.
        if name == "throw":
            continue
        if name == "program":
            name = "call"
            types = [(aval.shape, aval.dtype) for aval in eqn.params["program"].out_avals]
        yield name, types, [list(_outline(inner)) for inner in _jax.subjaxprs(eqn)]


def _types(atoms: Sequence[_jax.Atom]) -> list[Any]:
    return [(atom.aval.shape, atom.aval.dtype) for atom in atoms]


def weak_example(dtype: Any) -> Any:
    """A Python number, so weakly typed, of a dtype's kind.

    >>> weak_example(jnp.int32), weak_example(jnp.float32)
    (0, 0.0)
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return 0j
    return 0.0 if jnp.issubdtype(dtype, jnp.floating) else 0


def convert(value: Any, aval: Any) -> Any:
    """`value` as exactly the type `aval`, weak type included."""
    have = _jax.aval_of(value)
    if have.dtype == aval.dtype and have.weak_type == aval.weak_type:
        return value
    return _jax.convert_to_aval(value, aval)
