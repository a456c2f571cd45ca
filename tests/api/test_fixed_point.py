"""Fixed points, and the two ways to differentiate them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import LaneError, OptionError

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


def test_what_does_not_converge_is_reported() -> None:
    for f in (lambda x: x + 1.0, lambda x: 2.0 * x + 1.0, lambda x: jnp.sqrt(x - 1.0)):
        with pytest.raises(
            LaneError, match=r"fixed_point: assertion failed.*has not converged in 50"
        ):
            lw.fixed_point(f, jnp.float32(0.0), max_steps=50)
    with pytest.raises(LaneError, match="not finite"):
        lw.fixed_point(lambda x: 2.0 * x + 1.0, jnp.float32(0.0), max_steps=None)


def affine(b: Any, rate: Any, size: int = 1, **options: Any) -> Any:
    """The sum of the fixed point of a rotation between neighbours, shrunk by a rate; and of b."""
    start = jnp.zeros(size, jnp.result_type(b))
    step = lambda x: rate * jnp.roll(x, 1) * jnp.where(jnp.arange(size) == 0, -1, 1) + b  # noqa: E731
    return lw.fixed_point(step, start, **options).sum()


def exact(rate: float, size: int) -> np.ndarray:
    matrix = rate * np.roll(np.eye(size), 1, axis=0)
    matrix[0] *= -1
    return np.linalg.solve((np.eye(size) - matrix).T, np.ones(size))


@pytest.mark.parametrize("size", [1, 5, 40])
def test_slow_contractions_have_right_derivatives(size: int) -> None:
    """Small systems are factorized, larger ones go by products, and are factorized if these come to a standstill."""
    with jax.enable_x64(True):
        for rate in (0.5, 0.999):
            b = jnp.linspace(1.0, 2.0, size)
            expected = exact(rate, size)
            own = {"size": size, "max_steps": None, "tolerance": 1e-8}
            value, pull = jax.vjp(lambda b: affine(b, rate, **own), b)
            np.testing.assert_allclose(value, expected @ np.asarray(b), rtol=1e-4)
            np.testing.assert_allclose(pull(jnp.ones(()))[0], expected, rtol=1e-6, atol=1e-9)


def test_a_scalar_that_barely_contracts() -> None:
    step = lambda b: lw.fixed_point(lambda x: 0.9999 * x + b, jnp.float32(0.0), max_steps=None)  # noqa: E731
    for slope in (jax.grad(step)(1.0), jax.jvp(step, (1.0,), (1.0,))[1]):
        np.testing.assert_allclose(slope, 1e4, rtol=1e-3)


def test_a_derivative_without_a_solution_is_reported() -> None:
    """Where every x is a fixed point, nothing says how one would move; unless nothing pushes."""
    nowhere = lambda b: lw.fixed_point(lambda x: x + b * jnp.zeros_like(x), jnp.ones(3)).sum()  # noqa: E731
    assert float(nowhere(2.0)) == 3.0
    assert float(jax.jvp(nowhere, (2.0,), (1.0,))[1]) == 0.0
    beside = lambda b: lw.fixed_point(lambda x: x + (b - 2.0), jnp.float32(1.0))  # noqa: E731
    with pytest.raises(LaneError, match=r"derivative of fixed_point.*no solution"):
        jax.grad(beside)(2.0)
    with pytest.raises(LaneError, match="in 1 of 2 lanes: 1"):
        jax.vmap(jax.grad(lambda b, r: affine(b, r, max_steps=None)))(
            jnp.array([1.0, 0.0]), jnp.array([0.5, -1.0])
        )


def test_inside_a_program() -> None:
    @lw.program
    def kepler(mean, eccentricity, turns):
        total = 0.0
        while turns > 0:
            total += lw.fixed_point(lambda x: mean + eccentricity * jnp.sin(x), mean)
            turns -= 1
        return total

    alone = lambda e: lw.fixed_point(lambda x: 1.0 + e * jnp.sin(x), 1.0)  # noqa: E731
    value, slope = jax.value_and_grad(alone)(0.3)
    turns = jnp.array([2, 0, 1])
    for carrier in ("ticks", "auto"):
        found = lw.vmap(kepler, in_axes=(None, None, 0), carrier=carrier)(1.0, 0.3, turns)
        np.testing.assert_allclose(found, value * turns, rtol=1e-5)
    slopes = jax.vmap(lambda n: jax.grad(kepler, 1)(1.0, 0.3, n))(turns)
    np.testing.assert_allclose(slopes, slope * turns, rtol=1e-4)


def test_complex_states_and_real_derivatives() -> None:
    """The function is not holomorphic: it conjugates."""
    step = lambda a: lambda z: 0.5 * jnp.conj(z) + a + 1j  # noqa: E731
    real = lambda a: lw.fixed_point(step(a), jnp.complex64(0)).real  # noqa: E731
    np.testing.assert_allclose(real(1.0), 2.0, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(real)(1.0), 2.0, rtol=1e-5)


traces = 0


def test_a_function_is_traced_once() -> None:
    def solve(a: Any, rate: float = 0.5) -> Any:
        def f(x: Any) -> Any:
            global traces
            traces += 1
            return rate * jnp.cos(x) + a

        return lw.fixed_point(f, jnp.float32(0.0))

    before = traces
    found = [float(solve(jnp.float32(a))) for a in (0.1, 0.2, 0.3)]
    assert traces == before + 1 and len(set(found)) == 3
    slopes = [float(jax.grad(solve)(a)) for a in (0.1, 0.2)]
    assert traces <= before + 3 and len(set(slopes)) == 2
    # What is read is not forgotten.
    assert float(solve(jnp.float32(0.1), 0.25)) != found[0]
    assert float(solve(jnp.float32(0.1))) == found[0]


class Scaled:
    """No pytree: what it holds may change unseen."""

    def __init__(self, by: float) -> None:
        self.by = by


SCALE = 0.5
TABLE = np.zeros(1 << 14)  # larger than what is compared


def test_what_changes_between_calls_is_seen() -> None:
    global SCALE
    held, table = Scaled(0.5), {"by": 0.5}
    seen = []
    for by in (0.5, 0.25):
        held.by = table["by"] = SCALE = TABLE[:] = by
        start = jnp.float32(0.0)
        seen.append(
            [
                float(lw.fixed_point(f, start))
                for f in (
                    lambda x: held.by * x + 1.0,
                    lambda x: table["by"] * x + 1.0,
                    lambda x: SCALE * x + 1.0,
                    lambda x: TABLE[0] * x + 1.0,
                    lambda x: (by if by > 0.3 else 0.25) * x + 1.0,
                )
            ]
        )
    np.testing.assert_allclose(seen, [[2.0] * 5, [4 / 3] * 5], rtol=1e-5)


def test_what_a_function_assigns_around_it_is_assigned() -> None:
    traces = 0

    def halved(x: Any) -> Any:
        def count() -> None:
            nonlocal traces
            traces += 1

        count()
        return 0.5 * x + 1.0

    assert float(lw.fixed_point(halved, jnp.float32(0.0))) == pytest.approx(2.0) and traces == 1


def test_bad_input() -> None:
    with pytest.raises(OptionError, match="takes a function"):
        lw.fixed_point(3, 1.0)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="implicit"):
        lw.fixed_point(jnp.cos, 1.0, rule="exact")
    with pytest.raises(OptionError, match="floats"):
        lw.fixed_point(lambda x: x, 1)
    with pytest.raises(OptionError, match="max_steps=0"):
        lw.fixed_point(jnp.cos, 1.0, max_steps=0)
    with pytest.raises(OptionError, match=r"checkpoints=\[1\] is not known"):
        lw.fixed_point(jnp.cos, 1.0, checkpoints=[1])
    with pytest.raises(OptionError, match="not for fixed_point"):
        lw.fixed_point(jnp.cos, 1.0, throw=False)
    with pytest.raises(OptionError, match="give back what it is given"):
        lw.fixed_point(lambda x: jnp.stack([x, x]), 1.0)
