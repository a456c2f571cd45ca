"""Rules of primitives that are defined by others, in JAX: the definition is traced and written in their place.

JAX's own definition, where it has one: so are the incomplete gamma and beta functions, which are loops; theirs are
written for one element, inside a loop over the elements. Ours is for what is rare in a lane's code, or has no form of
its own that is worth a rule: the factorizations and transforms are the plain algorithms, meant for small sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.writer import Writer


def one_minus_square(x: Any) -> Any:
    return (1 + x) * (1 - x)


def polynomial(x: Any, *coefficients: Any, unroll: Any = None) -> Any:
    del unroll
    return functools.reduce(
        lambda total, c: total * x + c, reversed(coefficients[:-1]), coefficients[-1]
    )


def approx_top_k(
    x: Any, *, k: int, reduction_dimension: int, is_max_k: bool, aggregate_to_topk: bool, **_: Any
) -> Any:
    if not aggregate_to_topk:
        raise Unsupported("approx_top_k without aggregation")
    values, places = lax.top_k(jnp.moveaxis(x if is_max_k else -x, reduction_dimension, -1), k)
    values = values if is_max_k else -values
    return tuple(jnp.moveaxis(found, -1, reduction_dimension) for found in (values, places))


def tridiagonal_solve(below: Any, diagonal: Any, above: Any, right: Any, **unused: Any) -> Any:
    """Elimination downwards, substitution upwards; no pivots."""
    del unused
    if diagonal.ndim > 1:
        return jax.vmap(tridiagonal_solve)(below, diagonal, above, right)

    def down(carry: Any, row: Any) -> Any:
        ratio, found = carry
        a, b, c, d = row
        size = b - a * ratio
        new = c / size, (d - a * found) / size
        return new, new

    def up(found: Any, row: Any) -> Any:
        ratio, value = row
        new = value - ratio * found
        return new, new

    start = (jnp.zeros_like(diagonal[0]), jnp.zeros_like(right[0]))
    _, (ratios, values) = lax.scan(down, start, (below.at[0].set(0), diagonal, above, right))
    _, found = lax.scan(up, jnp.zeros_like(right[0]), (ratios, values), reverse=True)
    return found


def qr(a: Any, *, pivoting: bool, full_matrices: bool, **_: Any) -> Any:
    """Householder reflections, with the signs LAPACK gives them."""
    if pivoting or not jnp.issubdtype(a.dtype, jnp.floating):
        raise Unsupported("qr with pivots, or of complex numbers")
    if a.ndim > 2:
        return jax.vmap(lambda one: qr(one, pivoting=False, full_matrices=full_matrices))(a)
    rows, columns = a.shape
    steps = min(rows, columns)
    places = jnp.arange(rows)

    def reflector(r: Any, step: Any) -> tuple[Any, Any]:
        column = lax.dynamic_index_in_dim(r, step, 1, keepdims=False)
        below = jnp.where(places > step, column, 0)
        first = lax.dynamic_index_in_dim(column, step, keepdims=False)
        rest = (below * below).sum()
        length = jnp.sqrt(first * first + rest)
        end = jnp.where(rest == 0, first, jnp.where(first < 0, length, -length))
        scale = jnp.where(rest == 0, 1, first - end)
        factor = jnp.where(rest == 0, 0, (end - first) / jnp.where(rest == 0, 1, end))
        return jnp.where(places == step, 1, below / scale), factor

    def forward(step: Any, state: Any) -> Any:
        r, vectors, factors = state
        vector, factor = reflector(r, step)
        r = r - factor * vector[:, None] * (vector[:, None] * r).sum(0)
        return r, vectors.at[step].set(vector), factors.at[step].set(factor)

    zeros = jnp.zeros((steps, rows), a.dtype)
    r, vectors, factors = lax.fori_loop(0, steps, forward, (a, zeros, zeros[:, 0]))

    def backward(count: Any, q: Any) -> Any:
        vector, factor = vectors[steps - 1 - count], factors[steps - 1 - count]
        return q - factor * vector[:, None] * (vector[:, None] * q).sum(0)

    width = rows if full_matrices else steps
    q = lax.fori_loop(0, steps, backward, jnp.eye(rows, width, dtype=a.dtype))
    return q, jnp.triu(r[:width])


def fft(x: Any, *, fft_type: Any, fft_lengths: tuple[int, ...]) -> Any:
    """The sums themselves, one axis after the other."""
    name = lax.FftType(fft_type).name if not isinstance(fft_type, str) else fft_type
    inverse = name in ("IFFT", "IRFFT")
    axes = range(x.ndim - len(fft_lengths), x.ndim)
    z = x.astype(jnp.complex64)
    for axis, size in list(zip(axes, fft_lengths))[:: 1 if inverse else -1]:
        z = jnp.moveaxis(z, axis, -1)
        if name == "IRFFT" and axis == x.ndim - 1:
            mirrored = jnp.conj(z[..., 1 : (size + 1) // 2][..., ::-1])
            z = jnp.concatenate([z[..., : size // 2 + 1], mirrored], -1)
        turns = np.outer(np.arange(size), np.arange(size)) % size / size
        wave = np.exp((2j if inverse else -2j) * np.pi * turns) / (size if inverse else 1)
        if name == "RFFT" and axis == x.ndim - 1:
            wave = wave[:, : size // 2 + 1]
        z = jnp.moveaxis(lax.dot(z, wave.astype(np.complex64)), -1, axis)
    return jnp.real(z) if name == "IRFFT" else z


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "one_minus_square": one_minus_square,
    "polynomial": polynomial,
    "approx_top_k": approx_top_k,
    "tridiagonal_solve": tridiagonal_solve,
    "qr": qr,
    "fft": fft,
}


@rule(*DEFINITIONS)
def by_our_definition(w: Writer, eqn: JaxprEqn) -> None:
    for var in eqn.outvars:
        if not dtypes.held(var.aval.dtype):
            raise Unsupported(f"the dtype {var.aval.dtype}")
    define = DEFINITIONS[eqn.primitive.name]
    traced = _jax.trace(
        lambda *args: jax.tree.leaves(define(*args, **eqn.params)),
        [atom.aval for atom in eqn.invars],
    )
    w.inline_traced(traced, eqn)


@rule("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta")
def by_definition(w: Writer, eqn: JaxprEqn) -> None:
    values, (out,) = [w.value(atom) for atom in eqn.invars], eqn.outvars
    jaxpr = _jax.definition(eqn, [_jax.shaped((), value.dtype) for value in values])
    room = w.store(out)
    with w.loops(room.shape) as indices, w.block():
        args = [w.let(v.at(indices if v.shape else ()), v.dtype) for v in values]
        (result,) = w.run(jaxpr, args)
        w.put(room, indices, result.at(()))


@rule("random_gamma", "call_hi_primitive")
def expanded(w: Writer, eqn: JaxprEqn) -> None:
    w.inline(_jax.definition(eqn, [atom.aval for atom in eqn.invars]), eqn.invars, eqn.outvars)
