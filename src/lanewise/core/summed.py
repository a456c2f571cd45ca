"""Sums over rows of what code gives for each row, as products where they are products.

The adjoint of a weight matrix, in a program for one row, is an outer product. Summed over rows these are one matrix
product, Xᵀ G, and no row needs an array of the weights' size. So a sum over rows is pushed down through the code that
makes what is summed: through sums, through operations that are linear in one operand that varies, into products (whose
rows become one more contracted axis) and into writes by index (all rows write to one array). Where none of these is
left, each row's value is computed and they are added up.

Rows that a mask leaves out add nothing, whatever they hold: they are set to zero before the sum, on both sides of a
product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core.accumulate import held_as
from lanewise.core.primitives.facts import adds_at, facts_of, is_sum

# A product that sums over this many rows takes XLA:CPU a quarter less time if its first factor is transposed before.
_MANY_ROWS = 64

# Values by variable; those of variables that vary have an axis of rows in front.
Look = Callable[[Atom], Any]


@dataclass(frozen=True)
class RowSum:
    """How the sum over rows of a value is made: `needs` are the variables that must be known, `total` gives the sum.

    `shares`: a factor that all rows share is multiplied with a sum, so it counts even if there are no rows.
    """

    needs: tuple[Var, ...]
    total: Callable[[Look, Any], Any]
    shares: bool = False


def sum_over_rows(
    jaxpr: Jaxpr, args: Sequence[Any], varies: Sequence[bool], mask: Any = None
) -> list[Any]:
    """What code for one row gives, summed over the rows of its arguments.

    Arguments that vary have an axis of rows in front; `mask` says which rows count.

    >>> traced = _jax.trace(lambda x, g: [jnp.outer(x, g)], [_jax.shaped((2,), jnp.float32.dtype)] * 2)
    >>> (total,) = sum_over_rows(traced.jaxpr, [jnp.ones((5, 2)), jnp.ones((5, 2))], [True, True])
    >>> total
    Array([[5., 5.],
           [5., 5.]], dtype=float32)
    """
    rows = next(x.shape[0] for x, flag in zip(args, varies, strict=True) if flag)
    varying = {v for v, flag in zip(jaxpr.invars, varies, strict=True) if flag}
    varying = _jax.reached(jaxpr.eqns, varying)
    sums = [row_sum(jaxpr.eqns, atom, varying) for atom in jaxpr.outvars]
    needed = list(dict.fromkeys(var for each in sums for var in each.needs))
    once = [var for var in needed if var not in varying]
    each = [var for var in needed if var in varying]
    axes = [0 if flag else None for flag in varies]

    def run(wanted: Sequence[Var], *values: Any) -> list[Any]:
        code = _jax.new_jaxpr(jaxpr.invars, wanted, jaxpr.eqns)
        return _jax.eval_jaxpr(_jax.without_unused(code), *values)

    found: dict[Var, Any] = {}
    if each:
        values = jax.vmap(lambda *row: run(each, *row), axes, axis_size=rows)(*args)
        found.update(zip(each, values, strict=True))
    if once:
        # None of these reads what varies: a first row stands for it.
        first = [x[0] if flag else x for x, flag in zip(args, varies, strict=True)]
        found.update(zip(once, run(once, *first), strict=True))
    mask = jnp.ones((rows,), bool) if mask is None else mask

    def look(atom: Atom) -> Any:
        return jnp.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else found[atom]

    return [each.total(look, mask) for each in sums]


def row_sum(
    eqns: Sequence[JaxprEqn], atom: Atom, varying: set[Var], *, transposes: bool = False
) -> RowSum:
    """How to sum what equations make of an atom; `varying`: the variables that differ between rows.

    `transposes`: a product over many rows is made of a factor that was transposed before.
    """
    made = {var: eqn for eqn in eqns for var in eqn.outvars}

    def varies(atom: Atom) -> bool:
        return not isinstance(atom, Literal) and atom in varying

    known: dict[Var, RowSum] = {}

    def plan(atom: Atom) -> RowSum:
        if isinstance(atom, Literal) or atom not in varying:
            return _repeated(atom)
        if atom not in known:
            known[atom] = _once(planned(atom))
        return known[atom]

    def planned(atom: Var) -> RowSum:
        eqn = made.get(atom)
        name = "" if eqn is None else eqn.primitive.name
        if eqn is None:
            return _added_up(atom)
        places = [i for i, a in enumerate(eqn.invars) if varies(a)]
        if is_sum(eqn) or name == "sub":
            terms = [_of_shape(plan(a), a, eqn.outvars[0].aval.shape) for a in eqn.invars]
            return _joined(terms, eqn)
        if places == [0] and (facts_of(eqn).linear or name == "div" or _pads_zeros(eqn)):
            return _through(eqn, 0, plan(eqn.invars[0]))
        if name in ("mul", "dot_general") and len(places) == 1:
            return _through(eqn, places[0], plan(eqn.invars[places[0]]))
        if name == "dot_general":
            return _product(eqn, transposes)
        if name == "mul":
            return _outer(eqn, made) or _added_up(atom)
        if adds_at(eqn) and not varies(eqn.invars[0]):
            return _written(eqn, plan)
        return _added_up(atom)

    return _if_any(plan(atom))


def _once(term: RowSum) -> RowSum:
    """The same, made once for the same values: code is a graph, not a tree."""
    made: list[tuple[Any, Any, Any]] = []

    def total(look: Look, mask: Any) -> Any:
        if not (made and made[0][0] is look and made[0][1] is mask):
            made[:] = [(look, mask, term.total(look, mask))]
        return made[0][2]

    return RowSum(term.needs, total, term.shares)


def _if_any(term: RowSum) -> RowSum:
    """The sum of no rows is zero, also where a factor that all rows share is not finite."""
    if not term.shares:
        return term

    def total(look: Look, mask: Any) -> Any:
        value = term.total(look, mask)
        return jnp.where(mask.any(), value, jnp.zeros((), value.dtype))

    return RowSum(term.needs, total)


def _pads_zeros(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "pad":
        return False
    value = eqn.invars[1]
    return isinstance(value, Literal) and bool(value.val == 0)


def kept(values: Any, mask: Any) -> Any:
    """The rows of a mask, the others zero."""
    zero = jnp.zeros((), values.dtype)
    return jnp.where(lax.expand_dims(mask, range(1, values.ndim)), values, zero)


def _known(atoms: Sequence[Atom]) -> tuple[Var, ...]:
    return tuple(dict.fromkeys(a for a in atoms if not isinstance(a, Literal)))


def _repeated(atom: Atom) -> RowSum:
    """The same value for each row."""

    def total(look: Look, mask: Any) -> Any:
        value = look(atom)
        wide = held_as(value.dtype)
        return (value.astype(wide) * mask.sum().astype(wide)).astype(value.dtype)

    return RowSum(_known([atom]), total, shares=True)


def _added_up(atom: Atom) -> RowSum:
    def total(look: Look, mask: Any) -> Any:
        values = kept(look(atom), mask)
        # With a type of its own, `sum` would add 16-bit floats as such.
        return values.sum(0, dtype=held_as(values.dtype)).astype(values.dtype)

    return RowSum(_known([atom]), total)


def _joined(terms: Sequence[RowSum], eqn: JaxprEqn) -> RowSum:
    """A sum or a difference of sums."""

    def total(look: Look, mask: Any) -> Any:
        a, b = (term.total(look, mask) for term in terms)
        return lax.sub(a, b) if eqn.primitive.name == "sub" else lax.add(a, b)

    needs = tuple(dict.fromkeys(v for term in terms for v in term.needs))
    return RowSum(needs, total, any(term.shares for term in terms))


def _of_shape(term: RowSum, atom: Atom, shape: Sequence[int]) -> RowSum:
    """A term of a sum, whose other term may be larger."""
    if tuple(atom.aval.shape) == tuple(shape):
        return term
    return RowSum(
        term.needs,
        lambda look, mask: jnp.broadcast_to(term.total(look, mask), tuple(shape)),
        term.shares,
    )


def _through(eqn: JaxprEqn, place: int, inner: RowSum) -> RowSum:
    """What is linear in one operand that varies, applied to its sum."""
    others = [a for i, a in enumerate(eqn.invars) if i != place]

    def total(look: Look, mask: Any) -> Any:
        args = [
            inner.total(look, mask) if i == place else look(a) for i, a in enumerate(eqn.invars)
        ]
        return _jax.run_eqn(eqn, args)[0]

    needs = tuple(dict.fromkeys((*_known(others), *inner.needs)))
    return RowSum(needs, total, inner.shares or bool(others))


def _product(eqn: JaxprEqn, transposes: bool) -> RowSum:
    """A product of two operands that vary: the rows are one more axis that it sums over."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    numbers = (
        ((0, *(d + 1 for d in left)), (0, *(d + 1 for d in right))),
        (tuple(d + 1 for d in left_batch), tuple(d + 1 for d in right_batch)),
    )
    params = {name: eqn.params[name] for name in ("precision", "preferred_element_type")}
    outer = not (left or right or left_batch or right_batch)

    def total(look: Look, mask: Any) -> Any:
        a, b = (kept(look(x), mask) for x in eqn.invars)
        if not (transposes and outer and mask.shape[0] >= _MANY_ROWS):
            return lax.dot_general(a, b, numbers, **params)
        # XLA would make one operation of the two again.
        a = lax.optimization_barrier(jnp.moveaxis(a, 0, -1))
        return lax.dot_general(a, b, (((a.ndim - 1,), (0,)), ((), ())), **params)

    return RowSum(_known(eqn.invars), total)


def _outer(eqn: JaxprEqn, made: dict[Var, JaxprEqn]) -> RowSum | None:
    """A product of two arrays that were spread over each other's axes; None if neither was."""
    ndim = len(eqn.outvars[0].aval.shape)
    sides = [spread_from(a, made) for a in eqn.invars]
    axes = [set(own) for _, own in sides]
    if axes[0] == axes[1] or axes[0] | axes[1] != set(range(ndim)):
        return None
    letters = [tuple(1 + d for d in own) for _, own in sides]

    def total(look: Look, mask: Any) -> Any:
        values = []
        for (atom, own), axis in zip(sides, letters, strict=True):
            value = kept(look(atom), mask)
            shape = [eqn.outvars[0].aval.shape[d] for d in own]
            values.append((value.reshape(value.shape[0], *shape), axis))
        (a, left), (b, right) = values
        return jnp.einsum(a, (0, *left), b, (0, *right), tuple(range(1, ndim + 1)))

    return RowSum(_known([atom for atom, _ in sides]), total)


def spread_from(atom: Atom, made: Mapping[Var, JaxprEqn]) -> tuple[Atom, tuple[int, ...]]:
    """The array that a value is a broadcast of, and which axes of the value it has."""
    eqn = None if isinstance(atom, Literal) else made.get(atom)
    if eqn is not None and eqn.primitive.name == "broadcast_in_dim" and len(eqn.invars) == 1:
        source, shape = eqn.invars[0], atom.aval.shape
        if isinstance(source, Literal):
            return atom, tuple(range(len(shape)))
        own = tuple(
            to
            for size, to in zip(source.aval.shape, eqn.params["broadcast_dimensions"], strict=True)
            if size == shape[to]
        )
        if math.prod(source.aval.shape) == math.prod(shape[d] for d in own):
            return source, own
    return atom, tuple(range(len(atom.aval.shape)))


def _written(eqn: JaxprEqn, plan: Callable[[Atom], RowSum]) -> RowSum:
    """Adjoints that each row adds at indices to one array: all rows do."""
    base = plan(eqn.invars[0])
    _, indices, updates = eqn.invars
    added = plan(updates)

    def total(look: Look, mask: Any) -> Any:
        array = base.total(look, mask)
        where, values = look(indices), look(updates) if updates_vary(look) else None
        if where.ndim == len(indices.aval.shape):
            return _jax.run_eqn(eqn, [array, where, added.total(look, mask)])[0]
        if values is None:
            values = jnp.broadcast_to(look(updates), (where.shape[0], *updates.aval.shape))
        return add_rows_at(eqn.params, array, where, values, mask)

    def updates_vary(look: Look) -> bool:
        return look(updates).ndim > len(updates.aval.shape)

    needs = (*base.needs, *_known([indices, updates]), *added.needs)
    return RowSum(tuple(dict.fromkeys(needs)), total)


def add_rows_at(params: dict[str, Any], array: Any, indices: Any, updates: Any, mask: Any) -> Any:
    """Every row's `scatter-add`, with these parameters, to one array: rows are one more axis of places."""
    numbers = params["dimension_numbers"]
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d + 1 for d in numbers.update_window_dims),
        inserted_window_dims=numbers.inserted_window_dims,
        scatter_dims_to_operand_dims=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        scatter_indices_batching_dims=tuple(d + 1 for d in numbers.scatter_indices_batching_dims),
    )
    updates = kept(updates, mask).astype(array.dtype)
    return lax.scatter_add(array, indices, updates, numbers, mode=params["mode"])


def add_rows_in_slices(array: Any, parts: Any, starts: Sequence[Any], mask: Any) -> Any:
    """Every row's part added to one array where the row says; a start that is too large is clipped, as in a slice."""
    if not starts:
        return array + kept(parts, mask).sum(0, dtype=array.dtype)
    rows = parts.shape[0]
    limits = np.subtract(array.shape, parts.shape[1:])
    clamped = [
        jnp.broadcast_to(jnp.clip(s, 0, min(int(limit), int(jnp.iinfo(s.dtype).max))), (rows,))
        for s, limit in zip(starts, limits, strict=True)
    ]
    indices = jnp.stack([s.astype(jnp.int32) for s in clamped], axis=1)
    window = tuple(range(1, array.ndim + 1))
    # An axis along which a part is one element long is one that the index alone chooses.
    single = tuple(d for d, size in enumerate(parts.shape[1:]) if size == 1)
    parts = lax.squeeze(parts, tuple(1 + d for d in single))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=window[: array.ndim - len(single)],
        inserted_window_dims=single,
        scatter_dims_to_operand_dims=tuple(range(array.ndim)),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    parts = kept(parts, mask).astype(array.dtype)
    return lax.scatter_add(array, indices, parts, numbers, mode=mode)
