"""`lw.grad`, `lw.value_and_grad`, `lw.check_grads` and their options."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import GradientError, OptionError


@lw.program
def power(x, n):
    result = 1.0
    while n > 0:
        result = result * x
        n = n - 1
    return result


@lw.program
def chain(x, weights):
    for _ in range(40):
        x = jnp.tanh(weights @ x)
    return (x * x).sum()


def test_grad_is_jax_grad_with_options() -> None:
    for setting in ("auto", "all", "sqrt", 2, 64):
        assert float(lw.grad(power, checkpoints=setting)(3.0, 4)) == 108.0
    value, slope = lw.value_and_grad(lambda x: x**3)(2.0)
    assert (float(value), float(slope)) == (8.0, 12.0)
    (slope, _), aux = lw.grad(lambda x, y: (x * y, x + y), argnums=(0, 1), has_aux=True)(2.0, 3.0)
    assert (float(slope), float(aux)) == (3.0, 5.0)


def test_a_program_inside_saves_what_the_outer_one_says() -> None:
    @lw.program
    def inner(x):
        for _ in range(100):
            x = jnp.sin(x) * 1.1
        return x

    @lw.program
    def outer(x, inner):
        return inner(x).sum()

    for setting, states in (("all", 100), ("sqrt", 10), (4, 4)):
        run = lw.grad(lambda x: outer(x, inner), checkpoints=setting)
        assert f"f32[{states},7]" in str(jax.make_jaxpr(run)(jnp.ones(7)))
        own = lw.grad(
            lambda x: outer(x, inner.with_options(checkpoints="all")), checkpoints=setting
        )
        assert "f32[100,7]" in str(jax.make_jaxpr(own)(jnp.ones(7)))


def test_what_is_saved_may_be_in_the_hosts_memory() -> None:
    # Orthogonal weights: no product of theirs grows, so that rounding stays rounding after forty of them.
    weights = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0], "float32")
    x = jnp.linspace(-1.0, 1.0, 8)
    expected = jax.grad(chain, 1)(x, weights)
    away = lw.grad(chain, 1, offload="host")
    np.testing.assert_allclose(away(x, weights), expected, rtol=1e-5, atol=1e-6)
    text = str(jax.make_jaxpr(away)(x, weights))
    assert "<host>[40,8]" in text
    lowered = jax.jit(away).trace(x, weights).lower(lowering_platforms=("cuda",)).as_text()
    assert "annotate_device_placement" in lowered
    batch = lw.vmap(chain, (0, None), offload="host")
    found = jax.grad(lambda w: batch(jnp.stack([x, x]), w).sum())(weights)
    np.testing.assert_allclose(found, 2 * expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(OptionError, match="ways of their own"):
        jax.grad(lambda x: lw.vmap(power, offload="host")(x, jnp.arange(3)).sum())(jnp.ones(3))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_loops_of_any_length_are_saved_in_the_hosts_memory(length: int, reverse: bool) -> None:
    random = np.random.default_rng(length)
    weights = jnp.asarray(np.linalg.qr(random.normal(size=(6, 6)))[0], "float32")
    xs = jnp.asarray(random.normal(size=(length, 6)), "float32")

    def run(weights, x, xs):
        def step(carry, x):
            h, total = carry
            h = jnp.tanh(h @ weights + x)
            total = total + jnp.sin(h * x)
            return (h, total), jnp.sum(h * total) + x[0]

        (h, total), ys = jax.lax.scan(step, (x, x), xs, reverse=reverse)
        return jnp.sum(h) + jnp.sum(total**2) + jnp.sum(ys**2)

    given = weights, jnp.ones(6), xs
    found = jax.jit(lw.grad(run, (0, 1, 2), offload="host"))(*given)
    for one, other in zip(found, jax.grad(run, (0, 1, 2))(*given), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@lw.program
def product(x, n):
    if n == 0:
        return x
    return jnp.sin(x) * product(x, n - 1)


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (lw.grad(power, checkpoints="all", tape=4), "power: tape full"),
        (lw.grad(product, tape=4), "product: tape full"),
        (lw.grad(product, max_depth=4), "product: stack overflow"),
        (lw.grad(power, max_steps=4), "power: steps exhausted"),
    ],
)
def test_a_gradient_alone_raises_where_its_program_fails(gradient: Any, text: str) -> None:
    """Inside `jit`, where nothing reads the answer and XLA would drop a check of it."""
    with pytest.raises(Exception, match=text):
        jax.block_until_ready(jax.jit(gradient)(1.5, 9))
    several = jax.jit(jax.vmap(gradient, (None, 0)))
    with pytest.raises(Exception, match=f"{text} in 1 of 3 lanes: 1"):
        jax.block_until_ready(several(1.5, jnp.array([2, 9, 1])))


def test_options_are_checked() -> None:
    names = (("checkpoints", "some"), ("checkpoints", 0), ("tape", -1), ("offload", "disk"))
    for name, wrong in names:
        options: dict[str, Any] = {name: wrong}
        with pytest.raises(OptionError, match=name):
            lw.grad(power, **options)
    with pytest.raises(OptionError, match="takes a function"):
        lw.grad(3)  # type: ignore[arg-type]


def test_check_grads() -> None:
    lw.check_grads(power, (1.5, 3), rtol=1e-2)
    lw.check_grads(power, (1.5, 3), order=2, rtol=2e-2, checkpoints="all")

    @jax.custom_jvp
    def wrong(x):
        return x * x

    wrong.defjvps(lambda t, _, x: 3 * t * x)
    with pytest.raises(GradientError, match="disagree"):
        lw.check_grads(lambda x: wrong(x) + 1.0, (2.0,), rtol=1e-2)
    with pytest.raises(OptionError, match="tuple"):
        lw.check_grads(power, 1.5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="derivatives"):
        lw.check_grads(power, (1, 3))
    with pytest.raises(OptionError, match="fwd"):
        lw.check_grads(power, (1.5, 3), modes=("back",))


def test_gradients_of_complex_and_whole_numbers() -> None:
    """`holomorphic` and `allow_int` are JAX's."""

    @lw.program
    def cubes(z, n):
        total = 0.0 * z
        while n > 0:
            total += z * z * z
            n -= 1
        return total

    z = jnp.complex64(1 + 2j)
    np.testing.assert_allclose(lw.grad(cubes, holomorphic=True)(z, 2), 6 * z * z, rtol=1e-5)
    value, slope = lw.value_and_grad(cubes, holomorphic=True)(z, 2)
    np.testing.assert_allclose((value, slope), (2 * z**3, 6 * z * z), rtol=1e-5)
    by_both = lw.grad(cubes, argnums=(0, 1), allow_int=True)(2.0, 3)
    assert float(by_both[0]) == 36.0 and by_both[1].dtype == jax.dtypes.float0
