"""Networks whose lanes part ways: early exit, and a mixture of four experts.

The twins are what someone who knows `jax.vmap` writes: one pass over all layers with masks, all experts
with a select. Loops and branches that index weights by a lane's own number would copy the weights.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from control.case import Case, entry


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)


# -- early exit ------------------------------------------------------------------------------------


@lw.program
def early_exit(x, certainty, layers, heads):
    """Each layer has a classifier of its own; the first that is sure enough answers."""
    answer = jnp.zeros(heads.shape[-1], jnp.float32)
    used = 0
    for i in range(layers.shape[0]):
        x = x + jnp.tanh(x @ layers[i])
        answer = jax.nn.softmax(x @ heads[i])
        used += 1
        if jnp.max(answer) > certainty:
            break
    return answer, used


def early_exit_lax(x: jax.Array, certainty: jax.Array, layers: jax.Array, heads: jax.Array) -> Any:
    def layer(state: Any, weights: Any) -> Any:
        x, answer, used, done = state
        matrix, head = weights
        new = x + jnp.tanh(x @ matrix)
        guess = jax.nn.softmax(new @ head)
        x = jnp.where(done, x, new)
        answer = jnp.where(done, answer, guess)
        used = jnp.where(done, used, used + 1)
        return (x, answer, used, done | (jnp.max(guess) > certainty)), None

    start = (x, jnp.zeros(heads.shape[-1], jnp.float32), jnp.int32(0), jnp.bool_(False))
    (_, answer, used, _), _ = lax.scan(layer, start, (layers, heads))
    return answer, used


def early_exit_case(lanes: int, small: bool) -> Case:
    """Most inputs are easy: clear after a layer or two; hard ones go through the whole stack."""
    width, depth, classes = (8, 4, 3) if small else (256, 24, 10)
    rng = np.random.default_rng(50)
    strength = rng.lognormal(-1.0, 1.0, (lanes, 1))
    arguments = (
        (strength * rng.standard_normal((lanes, width))).astype(np.float32),
        np.full(lanes, 0.5, np.float32),
        weights(rng, depth, width, width),
        weights(rng, depth, width, classes),
    )
    # A classifier within rounding of the wanted certainty is accepted by one form and not by the other.
    return Case(
        early_exit, early_exit_lax, arguments, (0, 0, None, None), rtol=1e-3, agreement=0.98
    )


# -- mixture of experts ----------------------------------------------------------------------------


def expert(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    return x + jax.nn.gelu(x @ first) @ second


@lw.program
def experts(x, steps, gate, first, second):
    """At every step a gate picks one of four experts; lanes take different numbers of steps."""
    for _ in range(steps):
        choice = jnp.argmax(x @ gate)
        if choice == 0:
            x = expert(x, first[0], second[0])
        elif choice == 1:
            x = expert(x, first[1], second[1])
        elif choice == 2:
            x = expert(x, first[2], second[2])
        else:
            x = expert(x, first[3], second[3])
        x = x / jnp.sqrt(jnp.mean(x * x) + 1e-6)
    return x


def experts_lax(
    x: jax.Array, steps: jax.Array, gate: jax.Array, first: jax.Array, second: jax.Array
) -> jax.Array:
    def step(_: jax.Array, x: jax.Array) -> jax.Array:
        choice = jnp.argmax(x @ gate)
        outcomes = [expert(x, a, b) for a, b in zip(first, second, strict=True)]
        x = lax.select_n(choice, *outcomes)
        return x / jnp.sqrt(jnp.mean(x * x) + 1e-6)

    return lax.fori_loop(0, steps, step, x)


def experts_case(lanes: int, small: bool) -> Case:
    width, hidden = (8, 8) if small else (128, 256)
    rng = np.random.default_rng(51)
    steps = np.minimum(rng.geometric(0.2, lanes), 4 if small else 24).astype(np.int32)
    arguments = (
        rng.standard_normal((lanes, width)).astype(np.float32),
        steps,
        weights(rng, width, 4),
        weights(rng, 4, width, hidden),
        weights(rng, 4, hidden, width),
    )
    # Two experts that weigh alike to the last bits are distinguished by rounding.
    return Case(
        experts, experts_lax, arguments, (0, 0, None, None, None), 1e-2, 1e-2, agreement=0.98
    )


ENTRIES = (
    entry("early-exit MLP", early_exit_case, "diverges", "matrix"),
    entry("mixture of experts", experts_case, "diverges", "matrix"),
)
