"""Tail recursion is differentiated as a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.tail import as_loop
from lanewise.diff.vjp import vjp_program


@lw.program
def winding(x, n):
    if n == 0:
        return x * 2.0
    if n == 3:
        return winding(x * x, n - 1)
    return winding(jnp.sin(x), n - 1)


@lw.program
def product(x, n):
    if n == 0:
        return x
    return jnp.sin(x) * product(x, n - 1)


def unrolled(x, n):
    for left in range(n, 0, -1):
        x = x * x if left == 3 else jnp.sin(x)
    return x * 2.0


def test_a_tail_recursion_is_a_loop() -> None:
    staged, _ = winding.stage(1.0, 5)
    loop = as_loop(staged.program)
    assert loop is not None and not loop.recursive
    gradient = vjp_program(staged.program, (True, False), Checkpoints())
    for program in (gradient.forward.program, gradient.reverse.program):
        assert not program.recursive
    for n in range(6):
        expected = jax.grad(unrolled)(0.7, n)
        np.testing.assert_allclose(jax.grad(winding)(0.7, n), expected, rtol=1e-5)
    several = jax.vmap(jax.grad(winding), (None, 0))(0.7, jnp.arange(6))
    expected = [jax.grad(unrolled)(0.7, n) for n in range(6)]
    np.testing.assert_allclose(several, jnp.stack(expected), rtol=1e-5)


def test_it_needs_no_room_for_calls() -> None:
    assert np.isfinite(jax.jit(jax.grad(winding))(0.7, 50_000))
    answer = jax.grad(lambda x: winding.with_options(throw=False)(x, 5)[0])(0.7)
    np.testing.assert_allclose(answer, jax.grad(unrolled)(0.7, 5), rtol=1e-5)


def test_a_recursion_that_uses_its_results_stays_one() -> None:
    staged, _ = product.stage(1.0, 5)
    assert as_loop(staged.program) is None
