"""Places on the CPU and the GPU in one program, and what a loop saves in the host's memory. Left out without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs

pytestmark = [needs.on_gpu, needs.compiler]

X, W, V = jnp.linspace(0.1, 1.0, 3), 0.3 * jnp.eye(3) + 0.1, 0.5 * jnp.eye(3)


def encoder(x: Any, w: Any) -> Any:
    return lw.placed(lambda x, w: jnp.tanh(x @ w), "encoder")(x, w)


def decoder(x: Any, w: Any) -> Any:
    return lw.placed(lambda x, w: jnp.sin(x @ w), "decoder")(x, w)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield


def over_both(fun: Callable[..., Any], *args: Any) -> None:
    """A function with its parts on the CPU and on the GPU, either way round, against the CPU alone."""
    cpu, gpu = jax.devices("cpu")[0], jax.devices("gpu")[0]
    args = jax.device_get(args)
    with jax.default_device(cpu):
        expected = jax.device_get(jax.jit(fun)(*args))
    for first, second in ((cpu, gpu), (gpu, cpu)):
        found = lw.run(fun, {"encoder": first, "decoder": second}, in_flight=1)(*args)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def counted(x: Any, w: Any, v: Any) -> Any:
    return jax.lax.fori_loop(0, 7, lambda i, x: decoder(encoder(x, w), v), x)


def until_small(x: Any, w: Any, v: Any) -> Any:
    def body(carry: Any) -> Any:
        x, count = carry
        return 0.6 * decoder(encoder(x, w), v), count + 1

    # It ends far from its bound: the devices round differently.
    return jax.lax.while_loop(
        lambda carry: (carry[1] < 5) & (jnp.sum(carry[0]) > 1e-3), body, (x, 0)
    )


def sometimes(x: Any, w: Any, v: Any) -> Any:
    def step(x: Any, i: Any) -> Any:
        side = jax.lax.cond(i % 3 == 1, lambda: encoder(x, w), lambda: decoder(x, v))
        return side, jnp.sum(side)

    return jax.lax.scan(step, x, jnp.arange(6))


def by_index(x: Any, w: Any, v: Any) -> Any:
    """One function and its weights, at a place that is computed."""
    tables = jnp.stack([w, v])

    def step(x: Any, i: Any) -> Any:
        chosen = (jnp.int32(i) * 5) % 2
        y = lw.placed(lambda x, t: jnp.tanh(x @ t), "either", chosen)(x, tables[chosen])
        return encoder(y, w) + decoder(y, v), None

    return jax.lax.scan(step, x, jnp.arange(4))[0]


@pytest.mark.parametrize("fun", [counted, until_small, sometimes], ids=lambda fun: fun.__name__)
def test_answers(fun: Callable[..., Any]) -> None:
    over_both(fun, X, W, V)


@pytest.mark.parametrize("fun", [counted, sometimes], ids=lambda fun: fun.__name__)
def test_gradients(fun: Callable[..., Any]) -> None:
    def loss(x: Any, w: Any, v: Any) -> Any:
        return sum(jnp.sum(out**2) for out in jax.tree.leaves(fun(x, w, v)))

    over_both(jax.value_and_grad(loss, argnums=(0, 1, 2)), X, W, V)


def test_a_computed_index() -> None:
    cpu, gpu = jax.devices("cpu")[0], jax.devices("gpu")[0]
    args = jax.device_get((X, W, V))
    places = {"encoder": cpu, "decoder": gpu, "either": [gpu, cpu]}

    def slope(x: Any, w: Any, v: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(by_index(x, w, v) ** 2))(w)

    with jax.default_device(cpu):
        expected = [jax.device_get(jax.jit(fun)(*args)) for fun in (by_index, slope)]
    found = [lw.run(fun, places)(*args) for fun in (by_index, slope)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_values_of_any_size_and_type() -> None:
    def f(small: Any, large: Any) -> Any:
        small = lw.placed(lambda x: ~x, "encoder")(small)
        large = lw.placed(lambda x: x * 2, "decoder")(large)
        with lw.on("encoder"):
            large = large + 1
        with lw.on("decoder"):
            return large - 1, small ^ True

    over_both(f, jnp.arange(5) % 2 == 0, jnp.arange(1 << 20, dtype=jnp.int16))


def test_an_assertion_fails_by_its_own_name() -> None:
    @lw.program
    def checked(x):
        y = lw.placed(lambda x: x + 1, "encoder")(x)
        with lw.on("decoder"):
            assert jnp.all(y < 3), "too large"
            return y * 2

    places = {"encoder": jax.devices("cpu")[0], "decoder": jax.devices("gpu")[0]}
    run = lw.run(checked, places)
    assert float(run(np.float32(1))) == 4
    with pytest.raises(lw.errors.LaneError, match="too large"):
        run(np.float32(5))
    assert float(run(np.float32(1))) == 4


def test_what_is_saved_in_the_hosts_memory() -> None:
    def chain(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), jnp.sum(x)), x, length=40)[0].sum()

    weights = np.linalg.qr(np.random.default_rng(0).normal(size=(256, 256)))[0].astype(np.float32)
    x = np.random.default_rng(1).normal(size=(64, 256)).astype(np.float32)
    compiled = jax.jit(lw.grad(chain, 1, offload="host")).lower(x, weights).compile()
    rows = 40 * x.nbytes
    about = compiled.memory_analysis()
    assert about is not None
    assert about.host_temp_size_in_bytes >= rows > about.temp_size_in_bytes
    expected = jax.jit(jax.grad(chain, 1))(x, weights)
    np.testing.assert_allclose(compiled(x, weights), expected, rtol=1e-3, atol=1e-4)
