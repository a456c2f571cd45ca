"""A gradient through a placed loop: two layers of an LSTM, a place each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw

WIDTH, BATCH, STEPS = 128, 32, 100


def cell(weights: Any, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    gates = jnp.concatenate([x, h], axis=1) @ weights
    i, f, g, o = jnp.split(gates, 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def loss(weights: Any, xs: Any) -> Any:
    first, second = lw.placed(cell, "first"), lw.placed(cell, "second")

    def step(carry: Any, x: Any) -> Any:
        h0, c0, h1, c1 = carry
        h0, c0 = first(weights[0], x, h0, c0)
        h1, c1 = second(weights[1], h0, h1, c1)
        return (h0, c0, h1, c1), None

    zeros = jnp.zeros(xs.shape[1:])
    (_, _, h, _), _ = lax.scan(step, (zeros, zeros, zeros, zeros), xs)
    return jnp.mean(h * h)


def lstm_gradient(places: Any) -> Callable[[], Any]:
    """The loss, after its gradient was computed too; without places as one function of one device."""
    both = jax.value_and_grad(loss)
    run = jax.jit(both) if places is None else lw.run(both, places)
    random = np.random.default_rng(0)
    weights = [
        jnp.asarray(random.normal(size=(2 * WIDTH, 4 * WIDTH)) / WIDTH, jnp.float32) for _ in "01"
    ]
    xs = jnp.asarray(random.normal(size=(STEPS, BATCH, WIDTH)), jnp.float32)
    return lambda: jax.block_until_ready(run(weights, xs))[0]
