"""Fixed points, and the two ways to differentiate them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.errors import LaneError, OptionError

RULES = ("implicit", "unrolled")


def cosine_root(rule: str) -> Any:
    """The x with x = a cos(x)."""
    return lambda a: lw.fixed_point(lambda x: a * jnp.cos(x), jnp.float32(0.5), rule=rule)


def slope(a: float) -> tuple[float, float]:
    """The same and its derivative, by bisection and the implicit function theorem, in float64."""
    low, high = 0.0, 1.5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if a * np.cos(middle) > middle else (low, middle)
    return low, np.cos(low) / (1 + a * np.sin(low))


@pytest.mark.parametrize("rule", RULES)
def test_values_and_derivatives_of_every_kind(rule: str) -> None:
    f, a = cosine_root(rule), 0.8
    value, first = slope(a)
    second = (slope(a + 1e-4)[1] - slope(a - 1e-4)[1]) / 2e-4
    np.testing.assert_allclose(f(a), value, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(f)(a), first, rtol=1e-4)
    np.testing.assert_allclose(jax.jvp(f, (a,), (1.0,))[1], first, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(jax.grad(f))(a), second, rtol=1e-2)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.grad(f)))(a), second, rtol=1e-2)


@pytest.mark.parametrize("rule", RULES)
def test_lanes_of_different_lengths(rule: str) -> None:
    a = jnp.array([0.1, 0.5, 0.9])
    expected = np.array([slope(float(x)) for x in a])
    values, slopes = jax.vmap(jax.value_and_grad(cosine_root(rule)))(a)
    np.testing.assert_allclose(values, expected[:, 0], rtol=1e-4)
    np.testing.assert_allclose(slopes, expected[:, 1], rtol=1e-3)


def test_pytrees_and_matrices() -> None:
    matrix = 0.2 * jax.random.normal(jax.random.key(0), (4, 4))

    def solved(b: Any, rule: str) -> Any:
        step = lambda x: {"x": matrix @ x["x"] + b}  # noqa: E731
        return lw.fixed_point(step, {"x": jnp.zeros(4)}, rule=rule)["x"].sum()

    b = jnp.arange(4.0)
    exact = jnp.linalg.solve((jnp.eye(4) - matrix).T, jnp.ones(4))
    for rule in RULES:
        np.testing.assert_allclose(jax.grad(solved)(b, rule), exact, rtol=1e-4)


def test_what_does_not_converge_is_told() -> None:
    with pytest.raises(LaneError, match="fixed_point: steps exhausted"):
        lw.fixed_point(lambda x: x + 1.0, jnp.float32(0.0), max_steps=20)


def test_bad_input() -> None:
    with pytest.raises(OptionError, match="takes a function"):
        lw.fixed_point(3, 1.0)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="implicit"):
        lw.fixed_point(jnp.cos, 1.0, rule="exact")
    with pytest.raises(OptionError, match="floats"):
        lw.fixed_point(lambda x: x, 1)
    with pytest.raises(OptionError, match="give back what it is given"):
        lw.fixed_point(lambda x: jnp.stack([x, x]), 1.0)
