"""The linear equation behind an implicit derivative: v = J v + b, solved to a residual that is checked.

J is known by its products alone. Small systems are written out and factorized. Others are solved by GMRES (Saad and
Schultz 1986), started again from its answer after some products: of all combinations of b, J b, J² b, ... it takes the
one with the least residual, so it does no worse than adding these up, and does not need J to contract. Where it comes
to a standstill, a system that is not too large is written out too.

A solution counts if its residual is small beside it: |b - (v - J v)| at most `tolerance` (|v| + |b|), or what rounding
allows. Otherwise it is no solution, and the lane says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Product = Callable[[Any], Any]

# Up to the first number of unknowns a factorization is cheapest; up to the second it is tried where nothing else helps.
ALWAYS_WRITTEN_OUT = 32
MOST_WRITTEN_OUT = 1024
# Products between two starts of GMRES, which keeps a vector for each; and what a start must gain to be worth another.
PRODUCTS = 24
GAIN = 0.999


def as_reals(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A tree of floats and complex numbers as one real vector, and the way back.

    Derivatives are linear over the real numbers, not always over the complex ones.

    >>> vector, back = as_reals({"z": jnp.array(1 + 2j)})
    >>> vector.tolist(), back(vector)["z"].item()
    ([1.0, 2.0], (1+2j))
    """
    leaves, structure = jax.tree.flatten(tree)
    parts = [
        part.ravel()
        for leaf in leaves
        for part in ((leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else (leaf,))
    ]
    dtype = jnp.result_type(*parts) if parts else jnp.float32
    # Factorizations have no 16-bit floats.
    dtype = jnp.promote_types(dtype, jnp.float32)
    shapes = [(leaf.shape, leaf.dtype, leaf.size) for leaf in leaves]

    def back(vector: Any) -> Any:
        found, at = [], 0
        for shape, kind, size in shapes:
            if jnp.issubdtype(kind, jnp.complexfloating):
                real, imaginary = vector[at : at + size], vector[at + size : at + 2 * size]
                value, at = lax.complex(real, imaginary), at + 2 * size
            else:
                value, at = vector[at : at + size], at + size
            found.append(value.astype(kind).reshape(shape))
        return jax.tree.unflatten(structure, found)

    if not parts:
        return jnp.zeros(0, dtype), back
    return jnp.concatenate([part.astype(dtype) for part in parts]), back


def solved(product: Product, b: Any, tolerance: float) -> tuple[Any, Any]:
    """The v with v = J v + b, and whether it is one; `product` gives v - J v."""
    if b.size == 0:
        return b, jnp.bool_(True)
    rounding = jnp.finfo(b.dtype).eps * 8 * b.size**0.5
    enough = jnp.maximum(jnp.asarray(tolerance, b.dtype), rounding)
    if b.size <= ALWAYS_WRITTEN_OUT:
        v = _factorized(product, b)
    else:
        v = _by_products(product, b, enough * _size(b))
        if b.size <= MOST_WRITTEN_OUT:
            v = lax.cond(
                _holds(product, v, b, enough), lambda v: v, lambda v: _factorized(product, b), v
            )
    # Whatever J is: where nothing moves, nothing follows.
    v = jnp.where(jnp.any(b != 0), v, jnp.zeros_like(v))
    return v, _holds(product, v, b, enough)


def _holds(product: Product, v: Any, b: Any, enough: Any) -> Any:
    return _size(b - product(v)) <= enough * (_size(v) + _size(b))


def _size(vector: Any) -> Any:
    # The squares of large numbers overflow.
    most = jnp.max(jnp.abs(vector))
    scale = jnp.where((most > 0) & jnp.isfinite(most), most, 1.0)
    return scale * jnp.sqrt(jnp.sum(jnp.square(vector / scale)))


def _factorized(product: Product, b: Any) -> Any:
    if b.size == 1:
        return b / product(jnp.ones_like(b))
    matrix = jax.vmap(product, out_axes=1)(jnp.eye(b.size, dtype=b.dtype))
    v = jnp.linalg.solve(matrix, b)
    # Once more for what rounding left over.
    return v + jnp.linalg.solve(matrix, b - product(v))


def _by_products(product: Product, b: Any, enough: Any) -> Any:
    def goes_on(carry: Any) -> Any:
        _, left, before = carry
        return (left > enough) & (left < GAIN * before)

    def again(carry: Any) -> Any:
        v, left, _ = carry
        better = _improved(product, v, b)
        after = _size(b - product(better))
        gained = after < left
        return jnp.where(gained, better, v), jnp.where(gained, after, left), left

    start = jnp.zeros_like(b), _size(b), jnp.asarray(jnp.inf, b.dtype)
    return lax.while_loop(goes_on, again, start)[0]


def _improved(product: Product, v: Any, b: Any) -> Any:
    """The best of v and combinations of its residual and its products: one start of GMRES."""
    count = min(b.size, PRODUCTS)
    rest = b - product(v)
    size = _size(rest)
    basis = jnp.zeros((count + 1, b.size), b.dtype).at[0].set(rest / size)
    small = jnp.zeros((count + 1, count), b.dtype)

    def longer(step: Any, carry: Any) -> Any:
        basis, small = carry
        new = product(basis[step])
        before = _size(new)
        # Twice, as what rounding leaves of the others after one pass is no longer small beside what is new.
        first = basis @ new
        new = new - first @ basis
        second = basis @ new
        new = new - second @ basis
        length = _size(new)
        fresh = length > jnp.finfo(b.dtype).eps * 8 * before
        unit = jnp.where(fresh, new / length, jnp.zeros_like(new))
        column = (first + second).at[step + 1].set(jnp.where(fresh, length, 0.0))
        return basis.at[step + 1].set(unit), small.at[:, step].set(column)

    basis, small = lax.fori_loop(0, count, longer, (basis, small))
    wanted = jnp.zeros(count + 1, b.dtype).at[0].set(size)
    weights = jnp.linalg.lstsq(small, wanted)[0]
    return v + weights @ basis[:-1]
