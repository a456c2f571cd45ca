"""Recursions that differ in weak types alone.

A recursion that is called with Python scalars often calls itself with arrays of the same dtype: to JAX these are other
types, weak and strong, and so other traces. It would be two programs, the first of which runs once and calls the
second, and a derivative would have tapes within tapes. `lax.while_loop` makes such a carry strong; here, if the code at
both types is the same but for weak types (`same_code`), and gives the same types, the call is one of the second
program. Where a weak type made a difference, to how it meets other dtypes, there are two programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.core import ShapedArray

from lanewise import _jax


def weaker(first: Sequence[ShapedArray], second: Sequence[ShapedArray]) -> bool:
    """Whether types differ from others in weak types alone, and some of the first are weak where the others are not.

    >>> weak, strong = _jax.aval_of(1.0), _jax.strong(_jax.aval_of(1.0))
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

    >>> import jax.numpy as jnp
    >>> def mixed(x):
    ...     return [(x + jnp.float16(1)).astype(jnp.float32)]
    >>> weak, strong = _jax.aval_of(1.0), _jax.strong(_jax.aval_of(1.0))
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
