"""Derivatives of gradients that are taken by levels, of any order and in any nesting of modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from programs.settled import TREES, encode, settled

FOREST = lw.pack(TREES)


def given(width: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    table, mix = rng.normal(size=(3, width)), rng.normal(size=(width, width))
    return jnp.float32(table / np.sqrt(width)), jnp.float32(mix / np.sqrt(width))


def losses(program: Any = encode, **options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """By levels, and by plain Python, an instance at a time."""
    run = lw.vmap(program, in_axes=(0, None, None), **options or {"schedule": "levels"})

    def ours(table: Any, mix: Any) -> Any:
        return jnp.sum(jnp.cos(run(FOREST, table, mix)) * jnp.arange(1.0, 4.0)[:, None])

    def plainly(table: Any, mix: Any) -> Any:
        with jax.disable_jit():
            rows = jnp.stack([program(tree, table, mix) for tree in TREES])
        return jnp.sum(jnp.cos(rows) * jnp.arange(1.0, 4.0)[:, None])

    return ours, plainly


def directional(f: Any, table: Any, mix: Any) -> Any:
    """A Hessian-vector product: forwards over backwards."""
    return jax.jvp(lambda m: jax.grad(f, 1)(table, m), (mix,), (mix + 1,))[1]


def backwards_twice(f: Any, table: Any, mix: Any) -> Any:
    return jax.grad(lambda m: jnp.sum(jax.grad(f, 1)(table, m) ** 2))(mix)


def mixed(f: Any, table: Any, mix: Any) -> Any:
    """By one operand, then by the other."""
    return jax.grad(lambda t: jnp.sum(jax.grad(f, 1)(t, mix) ** 2))(table)


def of_the_adjoint(f: Any, table: Any, mix: Any) -> Any:
    """Only what is pulled back moves."""
    _, pull = jax.vjp(lambda t: f(t, mix), table)
    return jax.grad(lambda c: jnp.sum(pull(c)[0] ** 2))(jnp.float32(2))


def third(f: Any, table: Any, mix: Any) -> Any:
    return jax.jvp(lambda m: directional(f, table, m), (mix,), (jnp.ones_like(mix),))[1]


def backwards_over_directional(f: Any, table: Any, mix: Any) -> Any:
    return jax.grad(lambda t: jnp.sum(directional(f, t, mix)))(table)


@pytest.mark.parametrize(
    "derivative",
    [
        directional,
        backwards_twice,
        mixed,
        of_the_adjoint,
        pytest.param(third, marks=pytest.mark.slow),
        pytest.param(backwards_over_directional, marks=pytest.mark.slow),
    ],
)
def test_higher_orders(derivative: Any) -> None:
    ours, plainly = losses()
    values = given(2)
    found, expected = derivative(ours, *values), derivative(plainly, *values)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert float(jnp.abs(expected).max()) > 0.1


@pytest.mark.parametrize(
    "hessian", needs.in_turns([lambda f: jax.jacrev(jax.jacrev(f)), jax.hessian])
)
def test_hessians(hessian: Any) -> None:
    """Batches of directions, one batch inside the other."""
    ours, plainly = losses()
    table, mix = given(2)
    pairs = [
        hessian(lambda a, f=f: f(table * a[0], mix * a[1]))(jnp.ones(2)) for f in (ours, plainly)
    ]
    np.testing.assert_allclose(*pairs, rtol=1e-3, atol=1e-4)


def test_of_a_program_in_two() -> None:
    ours, plainly = losses(settled)
    values = given(12)
    pairs = [directional(f, *values) for f in (ours, plainly)]
    np.testing.assert_allclose(*pairs, rtol=1e-3, atol=1e-3)
