"""`scan`: what a sequence amounts to up to each of its elements.

A sum is XLA's cumulative sum; every other operator takes the blocked path (`blocked.py`), for which a known one brings
the form whose derivative suits it. One that is linear in each operand brings derivatives of its own (`recurrences.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.arrays.bilinear import Bilinear
from lanewise.arrays.blocked import Combine, is_short, scan_leaves, written
from lanewise.arrays.operands import elements
from lanewise.arrays.operators import ADD, KNOWN, Operator, operator_on
from lanewise.arrays.recurrences import scan_bilinear


def scan(
    operator: Callable[[Any, Any], Any],
    xs: Any,
    *,
    neutral: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> Any:
    """Prefixes: element i of the result is `x[0] ⊕ ... ⊕ x[i]`, or without `x[i]` if `exclusive`.

    With `reverse`, suffixes: `x[i] ⊕ ... ⊕ x[n-1]`, combined in that order. For operator, elements and derivatives see
    `reduce`. `neutral` is the first element of an exclusive scan; the usual operators have one of their own.

    >>> import jax.numpy as jnp, lanewise as lw
    >>> lw.arrays.scan(jnp.maximum, jnp.array([1, 3, 2, 5])).tolist()
    [1, 3, 3, 5]
    >>> lw.arrays.scan(lambda a, b: a + b, jnp.array([1, 3, 2, 5]), exclusive=True).tolist()
    [0, 1, 4, 6]
    >>> affine = lambda f, g: (g[0] * f[0], g[0] * f[1] + g[1])  # f, then g
    >>> half = jnp.full(3, 0.5)
    >>> lw.arrays.scan(affine, (half, jnp.ones(3)))[1].tolist()
    [1.0, 1.5, 1.75]
    """
    given = elements("scan", "xs", xs)
    with _jax.our_transfers():
        op = operator_on("scan", operator, given, neutral)
        first = op.neutral_for("scan", "to be exclusive") if exclusive else None
        if given.length == 0:
            return given.rebuilt(given.leaves)
        found = inclusive(op, given.leaves, reverse)
        if first is None:
            return given.rebuilt(found)
        return given.rebuilt([shifted(e, x, reverse) for e, x in zip(first, found, strict=True)])


def inclusive(op: Operator, leaves: Sequence[Any], reverse: bool) -> list[Any]:
    """Prefixes, or suffixes, of a sequence that is not empty."""
    if op.bilinear is not None and not is_short(leaves[0].shape[0]):
        return _by_recurrences(op.bilinear, leaves, op.neutral or (), reverse)
    if op.kinds is None:
        return _general(op, leaves, op.neutral, reverse)
    # Known leaf by leaf: none looks at another.
    return [
        lax.cumsum(x, axis=0, reverse=reverse)
        if kind == ADD
        else _general(lambda a, b, f=KNOWN[kind].combine: [f(a[0], b[0])], [x], [e], reverse)[0]
        for kind, x, e in zip(op.kinds, leaves, op.neutral or (), strict=True)
    ]


def _by_recurrences(
    op: Bilinear, leaves: Sequence[Any], neutral: Sequence[Any], reverse: bool
) -> list[Any]:
    if not reverse:
        return scan_bilinear(op, leaves, neutral)
    backwards = scan_bilinear(op.swapped, [jnp.flip(x, axis=0) for x in leaves], neutral)
    return [jnp.flip(x, axis=0) for x in backwards]


def _general(
    combine: Combine, leaves: Sequence[Any], neutral: Sequence[Any] | None, reverse: bool
) -> list[Any]:
    if not reverse:
        return scan_leaves(combine, leaves, neutral)
    flipped = [jnp.flip(x, axis=0) for x in leaves]
    backwards = scan_leaves(lambda a, b: combine(b, a), flipped, neutral)
    return [jnp.flip(x, axis=0) for x in backwards]


def shifted(first: Any, x: Any, reverse: bool) -> Any:
    """Each element one place on (back, if `reverse`), the neutral one in the place that is left."""
    neutral = jnp.broadcast_to(first, x.shape)
    return written(neutral, x[1:], 0) if reverse else written(neutral, x[:-1], 1)
