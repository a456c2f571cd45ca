"""Reverse mode through other people's loops, lifted unchanged; JAX refuses it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from _programs import van_der_pol


def close(found: Any, expected: Any, rtol: float = 1e-3) -> None:
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-5)


@pytest.mark.slow
def test_a_diffrax_solve() -> None:
    """`ForwardMode` runs the solve by a plain `lax.while_loop`; Diffrax's checkpointed adjoint is the reference."""
    diffrax = needs.library("diffrax")

    def solve(mu: Any, adjoint: Any) -> Any:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(van_der_pol),
            diffrax.Heun(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=jnp.array([2.0, 0.0]),
            args=mu,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4),
            max_steps=256,
            adjoint=adjoint,
            throw=False,
        )
        return solution.ys[-1, 0]

    mus = jnp.array([0.1, 8.0])
    ours = lw.lift(lambda mu: solve(mu, diffrax.ForwardMode()))
    theirs = jax.grad(lambda mu: solve(mu, diffrax.RecursiveCheckpointAdjoint()))
    expected = jax.jit(lambda mus: lax.map(theirs, mus))(mus)
    close(jax.jit(jax.vmap(jax.grad(ours)))(mus), expected)


@pytest.mark.slow
def test_the_energy_of_a_nuts_proposal() -> None:
    """BlackJAX's NUTS, by its step size: loops in loops, of lengths that the trajectory decides."""
    blackjax = needs.library("blackjax")
    kernel = blackjax.nuts.build_kernel()

    def density(x: Any) -> Any:
        return -0.5 * jnp.sum(x**2 * jnp.array([1.0, 4.0]))

    def energy(step_size: Any, start: Any, key: Any) -> Any:
        state = blackjax.nuts.init(start, density)
        _, info = kernel(key, state, density, step_size, jnp.ones(2), max_num_doublings=3)
        return info.energy, info.num_integration_steps

    start, key = jnp.array([0.3, -1.0]), jax.random.key(3)
    found, steps = jax.jit(jax.grad(lw.lift(energy), has_aux=True))(0.3, start, key)
    expected = jax.jvp(lambda s: energy(s, start, key)[0], (jnp.float32(0.3),), (jnp.float32(1),))
    assert int(steps) > 1 and float(expected[1]) != 0.0
    close(found, expected[1])


def test_optimistix() -> None:
    """A root by its own implicit rule, and through the iterations of its solver under a plain loop."""
    optimistix = needs.library("optimistix")
    equinox = needs.library("equinox")
    solver = optimistix.Newton(rtol=1e-6, atol=1e-6)

    def cubic(y: Any, offset: Any) -> Any:
        return y**3 + y - offset

    def solved(offset: Any, guess: Any) -> Any:
        found = optimistix.root_find(cubic, solver, guess, args=offset, max_steps=64, throw=False)
        return found.value

    def stepped(offset: Any, guess: Any) -> Any:
        def fn(y: Any, args: Any) -> Any:
            return cubic(y, args), None

        like = jax.ShapeDtypeStruct((), guess.dtype)
        state = solver.init(fn, guess, offset, {}, like, None, frozenset())
        arrays, rest = equinox.partition(state, equinox.is_array)

        def unfinished(carry: Any) -> Any:
            y, arrays, count = carry
            state = equinox.combine(arrays, rest)
            done, _ = solver.terminate(fn, y, offset, {}, state, frozenset())
            return ~done & (count < 64)

        def step(carry: Any) -> Any:
            y, arrays, count = carry
            state = equinox.combine(arrays, rest)
            y, state, _ = solver.step(fn, y, offset, {}, state, frozenset())
            return y, equinox.filter(state, equinox.is_array), count + 1

        return lax.while_loop(unfinished, step, (guess, arrays, 0))[0]

    offsets, guesses = jnp.array([0.0, 1.0, 10.0]), jnp.array([0.5, 1.0, -20.0])
    for find in (solved, stepped):
        values, slopes = jax.jit(jax.vmap(jax.value_and_grad(lw.lift(find))))(offsets, guesses)
        close(values**3 + values, offsets)
        close(slopes, 1.0 / (3.0 * values**2 + 1.0))
