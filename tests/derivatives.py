"""How derivatives of array operators are tested: every order and mode against a plain form, and against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from comparing import assert_same

RTOL = 1e-9


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
    """Value, forward, reverse, second order and batches of `fun` equal those of `plain`, which JAX differentiates."""
    assert_same(jax.jit(fun)(*args), jax.jit(plain)(*args), rtol)
    ours, smooth = of_smooth(to_scalar(fun), args)
    theirs, _ = of_smooth(to_scalar(plain), args)
    direction = random_like(smooth, 1)
    two = jax.tree.map(lambda a, b: jnp.stack([a, 0.9 * a + 0.01 * b]), smooth, direction)

    @jax.jit
    def expected(smooth: Any, direction: Any, two: Any) -> Any:
        gradient = jax.grad(theirs)
        first, second = jax.jvp(gradient, (smooth,), (direction,))
        each = jax.lax.map(gradient, two)
        return first, inner(first, direction), second, second, each, each

    @jax.jit
    def found(smooth: Any, direction: Any, two: Any) -> Any:
        gradient = jax.grad(ours)
        return (
            gradient(smooth),
            jax.jvp(ours, (smooth,), (direction,))[1],
            jax.jvp(gradient, (smooth,), (direction,))[1],
            jax.grad(lambda x: inner(gradient(x), direction))(smooth),
            jax.vmap(gradient)(two),
            jax.grad(lambda x: jnp.sum(jax.vmap(ours)(x)))(two),
        )

    names = (
        "reverse",
        "forward",
        "forward over reverse",
        "reverse twice",
        "in a batch",
        "of a batch",
    )
    all_ = zip(names, found(smooth, direction, two), expected(smooth, direction, two), strict=True)
    for name, mine, wanted in all_:
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
