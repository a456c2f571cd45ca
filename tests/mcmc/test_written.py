"""A log density is written as Python: what its position decides, loops and recursion too, is sampled as it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise import mcmc
from lanewise.core.errors import OptionError
from lanewise.mcmc.written import traceable

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def implicit(x: Any) -> Any:
    """With y + exp(y) = x, by Newton, y is standard normal; dy/dx = 1 / (1 + exp(y))."""
    y = jnp.zeros_like(x)
    step = jnp.ones_like(x)
    while abs(step) > 1e-5:
        step = (y + jnp.exp(y) - x) / (1.0 + jnp.exp(y))
        y = y - step
    return -0.5 * y**2 - jnp.log1p(jnp.exp(y))


@lw.program
def power(x: Any, n: Any) -> Any:
    """x**n by squaring."""
    if n == 0:
        return jnp.ones_like(x)
    half = power(x, n // 2)
    return half * half * x if n % 2 == 1 else half * half


def recursive(x: Any) -> Any:
    n = 2
    if x < 0:
        n = 4
    return -0.5 * power(x, n)


def two_sided(x: Any) -> Any:
    """A normal distribution, twice as wide to the right."""
    if x < 0:
        return -0.5 * x**2
    return -0.125 * x**2


def unmarked(x: Any) -> Any:
    return -unmarked(-x) if x < 0.0 else -x


def helped(x: Any) -> Any:
    return unmarked(x)


def test_a_loop_of_newton_has_the_gradient_of_the_implicit_function() -> None:
    density = traceable(implicit, SCALAR)
    assert density is traceable(implicit, SCALAR), "so that it is compiled once"
    y = jnp.array([-2.0, 0.3, 1.5])
    slope = -y - jax.nn.sigmoid(y)
    found = jax.vmap(jax.grad(density))(y + jnp.exp(y))
    np.testing.assert_allclose(found, slope / (1.0 + jnp.exp(y)), rtol=1e-3)


def test_recursion_has_its_gradient() -> None:
    found = jax.vmap(jax.grad(traceable(recursive, SCALAR)))(jnp.array([-1.5, 2.0]))
    np.testing.assert_allclose(found, [2.0 * 1.5**3, -2.0], rtol=1e-5)


def test_a_density_with_while_is_sampled_as_it_is_written() -> None:
    data = mcmc.sample(
        implicit, 0, chains=8, draws=400, warmup=200, init=jax.random.normal, progress=False
    )
    # E[x] = E[y] + E[exp(y)], and the median of x is that of y moved: 1.
    draws = np.asarray(data.posterior["x"]).ravel()
    assert abs(np.median(draws) - 1.0) < 0.25
    below = np.mean(draws < 1.0 + np.exp(1.0))
    assert abs(below - 0.8413) < 0.04, "y < 1"


@pytest.mark.parametrize(
    "density, below",
    [
        (two_sided, 1.0 / 3.0),
        # Of exp(-x**4 / 2) the half is 2**(1/4) * gamma(5/4), of exp(-x**2 / 2) it is sqrt(pi / 2).
        (recursive, 0.4624),
    ],
)
def test_if_and_recursion_are_sampled_as_they_are_written(density: Any, below: float) -> None:
    data = mcmc.sample(
        density,
        0,
        chains=32,
        draws=200,
        warmup=100,
        init=jax.random.normal,
        sampler=mcmc.HMC(steps=4),
        progress=False,
    )
    assert abs(float((data.posterior["x"] < 0.0).mean()) - below) < 0.06


@pytest.mark.parametrize("density", [helped])
def test_what_is_no_program_is_refused_with_the_decorator(density: Any) -> None:
    with pytest.raises(OptionError, match=r"`helped` has an `if`.*@lanewise.program"):
        traceable(density, SCALAR)


def test_other_mistakes_are_reported_as_they_were() -> None:
    with pytest.raises(OptionError, match="logdensity does not take a position"):
        mcmc.sample(lambda x: x @ x, 0, chains=2, draws=1, warmup=9, init=jax.random.normal)
