"""How derivatives of array operators are tested: every order and mode against a plain form, and against differences."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from comparing import assert_same

RTOL = 1e-9
FULL = bool(os.environ.get("LANEWISE_FULL"))


def is_smooth(x: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact)


def random_like(tree: Any, seed: int) -> Any:
    """A tree of random numbers in the inexact leaves, the others as they are."""
    rng = np.random.default_rng(seed)

    def one(x: Any) -> Any:
        x = jnp.asarray(x)
        if not is_smooth(x):
            return x
        found = rng.normal(size=x.shape)
        if jnp.iscomplexobj(x):
            found = found + 1j * rng.normal(size=x.shape)
        return jnp.asarray(found, x.dtype)

    return jax.tree.map(one, tree)


def to_scalar(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A smooth real number made of all inexact results of `fun`, not linear in any."""

    def scalar(*args: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(fun(*args)) if is_smooth(x)]
        weights = random_like(leaves, 5)
        return sum(
            jnp.sum(jnp.sin(jnp.real(x * w)) + 0.3 * jnp.imag(x * w))
            for x, w in zip(leaves, weights, strict=True)
        )

    return scalar


def of_smooth(
    fun: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], list[Any]]:
    """`fun` of the inexact leaves of its arguments alone."""
    leaves, tree = jax.tree.flatten(args)

    def taking(smooth: list[Any]) -> Any:
        given = iter(smooth)
        return fun(*jax.tree.unflatten(tree, [next(given) if is_smooth(x) else x for x in leaves]))

    return taking, [jnp.asarray(x) for x in leaves if is_smooth(x)]


def check_derivatives(
    fun: Callable[..., Any], plain: Callable[..., Any], *args: Any, rtol: float = RTOL
) -> None:
    """Value, forward, reverse, second order and batches of `fun` equal those of `plain`, which JAX differentiates.

    Compiling is the cost: of second orders and batches every second test meets one, in turns. LANEWISE_FULL=1 runs all.
    """
    ours, smooth = of_smooth(to_scalar(fun), args)
    theirs, _ = of_smooth(to_scalar(plain), args)
    direction = random_like(smooth, 1)
    two = [np.stack([a, 0.9 * np.asarray(a) + 0.01 * b]) for a, b in zip(smooth, direction)]

    def in_a_batch(fun: Any, two: Any) -> Any:
        return jax.lax.map(jax.grad(fun), two)

    def second(fun: Any, smooth: Any, direction: Any) -> Any:
        return jax.jvp(jax.grad(fun), (smooth,), (direction,))[1]

    # For each, what ours gives at (smooth, direction, two), and what of the plain form equals it.
    first: dict[str, tuple[Any, Any]] = {
        "reverse": (lambda x, d, t: jax.grad(ours)(x), lambda x, d, t: jax.grad(theirs)(x)),
        "forward": (
            lambda x, d, t: jax.jvp(ours, (x,), (d,))[1],
            lambda x, d, t: inner(jax.grad(theirs)(x), d),
        ),
    }
    more: dict[str, tuple[Any, Any]] = {
        "forward over reverse": (
            lambda x, d, t: second(ours, x, d),
            lambda x, d, t: second(theirs, x, d),
        ),
        "reverse twice": (
            lambda x, d, t: jax.grad(lambda x: inner(jax.grad(ours)(x), d))(x),
            lambda x, d, t: second(theirs, x, d),
        ),
        "in a batch": (
            lambda x, d, t: jax.vmap(jax.grad(ours))(t),
            lambda x, d, t: in_a_batch(theirs, t),
        ),
        "of a batch": (
            lambda x, d, t: jax.grad(lambda x: jnp.sum(jax.vmap(ours)(x)))(t),
            lambda x, d, t: in_a_batch(theirs, t),
        ),
    }
    turn = zlib.crc32(os.environ.get("PYTEST_CURRENT_TEST", "").encode()) % (2 * len(more))
    chosen = first | (more if FULL else dict(list(more.items())[turn : turn + 1]))

    @jax.jit
    def every(args: Any, *given: Any) -> list[tuple[Any, Any]]:
        values = fun(*args), plain(*args)
        return [values, *((mine(*given), wanted(*given)) for mine, wanted in chosen.values())]

    pairs = every(args, smooth, direction, two)
    for name, (mine, wanted) in zip(("value", *chosen), pairs, strict=True):
        try:
            assert_same(mine, wanted, rtol)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def check_against_differences(fun: Callable[..., Any], *args: Any, step: float = 1e-6) -> None:
    """The slope in a random direction is that of finite differences, in both modes. In float64."""
    scalar, smooth = of_smooth(to_scalar(fun), args)
    direction = random_like(smooth, 2)

    @jax.jit
    def slopes(smooth: Any, direction: Any) -> Any:
        def at(t: float) -> Any:
            return scalar(jax.tree.map(lambda x, d: x + t * d, smooth, direction))

        forward = jax.jvp(scalar, (smooth,), (direction,))[1]
        reverse = inner(jax.grad(scalar)(smooth), direction)
        return forward, reverse, (at(step) - at(-step)) / (2 * step)

    forward, reverse, expected = slopes(smooth, direction)
    assert_same(forward, expected, 1e-6)
    assert_same(reverse, expected, 1e-6)


def inner(a: Any, b: Any) -> Any:
    """The real inner product by which JAX's gradients give slopes (complex ones are conjugated)."""
    return sum(jnp.sum(jnp.real(x * y)) for x, y in zip(a, b, strict=True))
