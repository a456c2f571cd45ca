"""Operators that are linear in each operand: products of small matrices, compositions of affine maps, and their kin.

Each number of the result of such an operator is a sum of terms c, c aᵢ, c bⱼ and c aᵢ bⱼ with constants c. That is
read off the operator's trace by computing with polynomials in place of numbers, so that it does not matter how it is
written: `jnp.matmul` of 2 × 2 matrices, the same spelt out in four numbers, affine maps in either order, of numbers or
of the plane, quaternions, dual numbers, a + b + a b.

Such an operator has structure that others lack, which `recurrences.py` uses:

* y ↦ y ⊕ x is an affine map with a linear part A(x) that does not depend on y. As ⊕ is associative, going through a
  whole block of elements has the linear part of what the block amounts to: A(x₁ ⊕ ... ⊕ xₘ) = A(xₘ) ... A(x₁).
* Numbers that A never mixes (the product and the sum of affine maps; each row of a matrix) are *groups*: each is a
  recurrence of its own, which is not computed where its derivative is not requested.
* Its neutral element solves linear equations.

Elements are taken apart into their numbers, so that matrices are stored number by number and no batched product of
tiny ones is left. Where all leaves have one shape and no operation looks across it (affine maps of
rows), the "numbers" are whole leaves. Elements of more numbers than `_MOST` take the general path.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.primitives.facts import is_wrapper

_MOST = 12
# Calls that are looked through, but not those with derivatives of their own: these count.
_ROUNDING = 1e-9

# A constant, and which number of each operand it multiplies, if any.
Term = tuple[Any, int | None, int | None]


@dataclass(frozen=True)
class Bilinear:
    """`results[k]` are the terms of number k; `shapes` what leaves are taken apart into, `()` for one as it is."""

    results: tuple[tuple[Term, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    neutral: tuple[Any, ...]

    def neutral_leaves(self, avals: Sequence[_jax.ShapedArray]) -> list[Any]:
        """The neutral element of leaves of these types."""
        rest, leaves = iter(self.neutral), []
        for shape, aval in zip(self.shapes, avals, strict=True):
            parts = np.array([next(rest) for _ in range(math.prod(shape))]).reshape(shape)
            leaves.append(jnp.broadcast_to(jnp.asarray(parts, aval.dtype), aval.shape))
        return leaves

    def combine(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        return [
            _summed([_times(c, *_picked(a, i), *_picked(b, j)) for c, i, j in terms], a[0])
            for terms in self.results
        ]

    def carried(self, group: Sequence[int], y: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        """A(x) y for a group: how a change of what comes before x changes what comes after it."""
        place = {k: n for n, k in enumerate(group)}
        return [
            _summed(
                [
                    _times(c, y[place[i]], *_picked(x, j))
                    for c, i, j in self.results[k]
                    if i is not None
                ],
                y[0],
            )
            for k in group
        ]

    def carried_back(self, group: Sequence[int], s: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        """The transpose of A(x) of s, for a group."""
        found: list[list[Any]] = [[] for _ in group]
        place = {k: n for n, k in enumerate(group)}
        for n, k in enumerate(group):
            for c, i, j in self.results[k]:
                if i is not None:
                    found[place[i]].append(_times(c, s[n], *_picked(x, j)))
        return [_summed(terms, s[0]) for terms in found]

    def driven(self, group: Sequence[int], y: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
        """How changes of elements change what comes of y and them, for a group."""
        return [
            _summed(
                [
                    _times(c, *_picked(y, i), moved[j])
                    for c, i, j in self.results[k]
                    if j is not None
                ],
                moved[0],
            )
            for k in group
        ]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Numbers that are carried on into each other, apart from those that are not."""
        groups = [{k} for k in range(len(self.results))]
        for k, terms in enumerate(self.results):
            for _, i, _ in terms:
                if i is not None:
                    joined = [g for g in groups if k in g or i in g]
                    groups = [*(g for g in groups if g not in joined), set().union(*joined)]
        return tuple(tuple(sorted(g)) for g in sorted(groups, key=min))

    @property
    def swapped(self) -> Bilinear:
        """The operator with its operands the other way round."""
        results = tuple(tuple((c, j, i) for c, i, j in terms) for terms in self.results)
        return Bilinear(results, self.shapes, self.neutral)


def _picked(numbers: Sequence[Any], i: int | None) -> list[Any]:
    return [] if i is None else [numbers[i]]


def _times(constant: Any, *factors: Any) -> Any:
    if not factors:
        return constant
    product = functools.reduce(lambda x, y: x * y, factors)
    if constant == 1:
        return product
    return -product if constant == -1 else product * jnp.asarray(constant, product.dtype)


def _summed(terms: Sequence[Any], like: Any) -> Any:
    total = functools.reduce(lambda x, y: x + y, terms) if terms else 0
    return jnp.broadcast_to(jnp.asarray(total, like.dtype), like.shape)


# -- recognizing them -------------------------------------------------------------------------------


def bilinear_of(jaxpr: _jax.Jaxpr, avals: Sequence[_jax.ShapedArray]) -> Bilinear | None:
    """What an operator computes (inputs: the leaves of one element, then of the other), if it is bilinear."""
    dtypes = {aval.dtype for aval in avals}
    if len(dtypes) != 1 or not jnp.issubdtype(avals[0].dtype, np.number):
        return None
    shapes = {aval.shape for aval in avals}
    if len(shapes) == 1 and len(avals) <= _MOST:
        found = _read(jaxpr, [()] * len(avals), elementwise=True)
        if found is not None:
            return found
    if sum(math.prod(aval.shape) for aval in avals) > _MOST:
        return None
    return _read(jaxpr, [aval.shape for aval in avals], elementwise=False)


def _read(
    jaxpr: _jax.Jaxpr, shapes: Sequence[tuple[int, ...]], elementwise: bool
) -> Bilinear | None:
    counts = [math.prod(shape) for shape in shapes]
    starts = np.cumsum([0, *counts])

    def leaf(side: int, n: int) -> Any:
        made = [
            Polynomial({((k, None), (None, k))[side]: 1}) for k in range(starts[n], starts[n + 1])
        ]
        return _array(made, shapes[n])

    given = [leaf(side, n) for side in (0, 1) for n in range(len(shapes))]
    try:
        found = _evaluated(jaxpr, given, elementwise)
    except _Otherwise:
        return None
    numbers = [p for x, shape in zip(found, shapes) for p in np.broadcast_to(x, shape).ravel()]
    results = tuple(
        tuple((c, i, j) for (i, j), c in sorted(p.terms.items(), key=str)) for p in numbers
    )
    neutral = _neutral(results)
    return None if neutral is None else Bilinear(results, tuple(shapes), neutral)


def _neutral(results: Sequence[Sequence[Term]]) -> tuple[Any, ...] | None:
    """The element e with e ⊕ x = x = x ⊕ e for every x; None if there is none."""
    count = len(results)
    # e ⊕ x: terms by number of x (and none of it), as linear functions of e. And the other way round.
    rows, wanted = [], []
    for mine in (1, 2):
        for k, terms in enumerate(results):
            for j in (None, *range(count)):
                row, constant = np.zeros(count, complex), 0j
                for term in terms:
                    if term[3 - mine] == j:
                        if term[mine] is None:
                            constant += term[0]
                        else:
                            row[term[mine]] += term[0]
                rows.append(row)
                wanted.append((1.0 if j == k else 0.0) - constant)
    matrix, right = np.array(rows), np.array(wanted)
    found = np.linalg.lstsq(matrix, right, rcond=None)[0]
    real = np.real(found)
    whole = np.round(real) + 0.0
    real = np.where(np.abs(real - whole) < _ROUNDING, whole, real)
    if np.any(np.abs(matrix @ real - right) > _ROUNDING):
        return None
    return tuple(float(e) for e in real)


class _Otherwise(Exception):
    """Signal, never shown: this operator is not linear in each operand, or is written in a way that is not read."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of terms, by which number of either operand they hold."""

    terms: dict[tuple[int | None, int | None], Any]

    def __add__(self, other: Any) -> Polynomial:
        terms = dict(self.terms)
        for key, c in _polynomial(other).terms.items():
            terms[key] = terms.get(key, 0) + c
        return Polynomial({key: c for key, c in terms.items() if c != 0})

    def __mul__(self, other: Any) -> Polynomial:
        found = Polynomial({})
        for (i, j), c in self.terms.items():
            for (k, m), d in _polynomial(other).terms.items():
                if (i is not None and k is not None) or (j is not None and m is not None):
                    raise _Otherwise
                key = (k if i is None else i, m if j is None else j)
                found = found + Polynomial({key: c * d})
        return found

    def __neg__(self) -> Polynomial:
        return self * -1

    def __sub__(self, other: Any) -> Polynomial:
        return self + -_polynomial(other)

    __radd__, __rmul__ = __add__, __mul__


def _polynomial(x: Any) -> Polynomial:
    return x if isinstance(x, Polynomial) else Polynomial({(None, None): x} if x != 0 else {})


def _array(polynomials: Sequence[Polynomial], shape: tuple[int, ...]) -> Any:
    found = np.empty(len(polynomials), object)
    found[:] = polynomials
    return found.reshape(shape)


def _evaluated(jaxpr: _jax.Jaxpr, given: Sequence[Any], elementwise: bool) -> list[Any]:
    rules = _ELEMENTWISE if elementwise else _ELEMENTWISE | _ACROSS

    def constant(literal: _jax.Literal) -> Any:
        if np.ndim(literal.val) != 0:
            raise _Otherwise
        return _array([_polynomial(np.asarray(literal.val).item())], ())

    def rule(eqn: _jax.JaxprEqn, operands: list[Any]) -> list[Any]:
        if is_wrapper(eqn):
            inner = _jax.flat_jaxpr(next(_jax.subjaxprs(eqn)))
            if len(inner.invars) != len(operands):
                raise _Otherwise
            return _evaluated(inner, operands, elementwise)
        if eqn.primitive.name not in rules:
            raise _Otherwise
        found = rules[eqn.primitive.name](eqn, *operands)
        return [_as_objects(x) for x in (found if isinstance(found, list) else [found])]

    return _jax.evaluate(jaxpr, given, rule, literal=constant)


def _as_objects(x: Any) -> Any:
    """NumPy unwraps what has no axes."""
    return x if isinstance(x, np.ndarray) else _array([x], ())


def _converted(eqn: _jax.JaxprEqn, x: Any) -> Any:
    if eqn.invars[0].aval.dtype != eqn.outvars[0].aval.dtype:
        raise _Otherwise
    return x


def _broadcast(eqn: _jax.JaxprEqn, x: Any) -> Any:
    shape, where = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    wide = np.reshape(x, [x.shape[where.index(d)] if d in where else 1 for d in range(len(shape))])
    return np.broadcast_to(wide, shape)


def _spread(eqn: _jax.JaxprEqn, x: Any) -> Any:
    """Elementwise, a number beside leaves of any shape; nothing else may change its shape."""
    if eqn.invars[0].aval.shape not in ((), eqn.outvars[0].aval.shape):
        raise _Otherwise
    return x


def _dot(eqn: _jax.JaxprEqn, x: Any, y: Any) -> Any:
    (mine, theirs), (batch, _) = eqn.params["dimension_numbers"]
    if batch or eqn.outvars[0].aval.dtype != eqn.invars[0].aval.dtype:
        raise _Otherwise
    return np.tensordot(x, y, axes=(mine, theirs))


def _slice(eqn: _jax.JaxprEqn, x: Any) -> Any:
    strides = eqn.params["strides"] or (1,) * x.ndim
    limits = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*limit) for limit in limits)]


def _sum(eqn: _jax.JaxprEqn, x: Any) -> Any:
    return np.sum(x, axis=tuple(eqn.params["axes"]))


def _unstacked(eqn: _jax.JaxprEqn, x: Any) -> list[Any]:
    return list(np.moveaxis(x, eqn.params["axis"], 0))


def _split(eqn: _jax.JaxprEqn, x: Any) -> list[Any]:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return list(np.split(x, ends, axis=eqn.params["axis"]))


# The value of an equation's result, or a list of the values of several.
_Rule = Callable[..., Any]

_ELEMENTWISE: dict[str, _Rule] = {
    "add": lambda eqn, x, y: x + y,
    "add_any": lambda eqn, x, y: x + y,
    "sub": lambda eqn, x, y: x - y,
    "mul": lambda eqn, x, y: x * y,
    "neg": lambda eqn, x: -x,
    "copy": lambda eqn, x: x,
    "convert_element_type": _converted,
    "broadcast_in_dim": _spread,
}
# These look across an element, whose numbers are then taken one by one.
_ACROSS: dict[str, _Rule] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot,
    "transpose": lambda eqn, x: np.transpose(x, eqn.params["permutation"]),
    "reshape": lambda eqn, x: np.reshape(x, eqn.params["new_sizes"]),
    "squeeze": lambda eqn, x: np.squeeze(x, tuple(eqn.params["dimensions"])),
    "slice": _slice,
    "concatenate": lambda eqn, *xs: np.concatenate(xs, axis=eqn.params["dimension"]),
    "stack": lambda eqn, *xs: np.stack(xs, axis=eqn.params["axis"]),
    "unstack": _unstacked,
    "split": _split,
    "reduce_sum": _sum,
}
