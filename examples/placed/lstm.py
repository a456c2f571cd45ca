"""The layers of an LSTM, each at a place of its own, trained.

Layer 1 reads step t of the sequence while layer 0 is at step t + 1 already: nothing comes back within an iteration,
so places run apart, up to `in_flight` steps. The gradient goes the other way through the same edges. Training is a
loop of the program too: a layer's weights and its moments of Adam are a state of it, and live where the layer is.
What travels is a hidden state a step, and its adjoint.

The task: waves of a frequency and a phase that the network is not given. It is to say the next value.
"""

from __future__ import annotations

from typing import Any

from where import places, same, show  # isort: skip

import jax
import jax.numpy as jnp

import lanewise as lw

LAYERS, WIDTH, BATCH, LENGTH = 4, 24, 16, 20


def init(key: jax.Array) -> list[dict[str, jax.Array]]:
    """Weights, a layer each; the last one's also read its state out."""
    layers = []
    for number, own in enumerate(jax.random.split(key, LAYERS)):
        inputs = (WIDTH if number else 1) + WIDTH
        layers.append({"gates": jax.random.normal(own, (inputs, 4 * WIDTH)) / jnp.sqrt(inputs)})
    layers[-1]["out"] = jnp.zeros((WIDTH, 1))
    return layers


def cell(p: dict[str, jax.Array], x: jax.Array, state: Any) -> Any:
    """One step of one layer: its output and its next state."""
    h, c = state
    keep, write, read, value = jnp.split(jnp.concatenate([x, h], 1) @ p["gates"], 4, axis=1)
    c = jax.nn.sigmoid(keep + 1.0) * c + jax.nn.sigmoid(write) * jnp.tanh(value)
    h = jax.nn.sigmoid(read) * jnp.tanh(c)
    return (h @ p["out"] if "out" in p else h), (h, c)


def loss(params: list[Any], waves: jax.Array) -> jax.Array:
    """How far the next values are off, squared; waves are `[time, batch]`."""
    zero = jnp.zeros((waves.shape[1], WIDTH))

    def step(states: Any, now: Any) -> Any:
        x, after = now[0][:, None], []
        for number, (p, state) in enumerate(zip(params, states, strict=True)):
            x, state = lw.placed(cell, "layer", number)(p, x, state)
            after.append(state)
        with lw.on("score"):
            error = jnp.mean((x[:, 0] - now[1]) ** 2)
        return after, error

    _, errors = jax.lax.scan(step, [(zero, zero)] * LAYERS, (waves[:-1], waves[1:]))
    with lw.on("score"):
        return jnp.mean(errors[LENGTH // 2 :])  # once it has seen some of the wave


def waves_of(key: jax.Array) -> jax.Array:
    frequency, phase = jax.random.split(key)
    w = jax.random.uniform(frequency, (BATCH,), minval=0.3, maxval=1.2)
    at = jax.random.uniform(phase, (BATCH,), maxval=2 * jnp.pi)
    return jnp.sin(w * jnp.arange(LENGTH + 1.0)[:, None] + at)


def train(params: list[Any], keys: jax.Array) -> Any:
    """Weights after a step of Adam for each key, and the losses."""

    def step(carry: Any, key: jax.Array) -> Any:
        params, first, second, count = carry
        value, slope = jax.value_and_grad(loss)(params, waves_of(key))
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g**2, second, slope)

        def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            return p - 0.01 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-6)

        return (jax.tree.map(moved, params, first, second), first, second, count), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    (params, *_), losses = jax.lax.scan(step, (params, zeros, zeros, 0), keys)
    return params, losses


def main(steps: int = 300) -> tuple[float, float]:
    """The loss that is reached, and what one gets by saying the last value again."""
    at = places(LAYERS)
    run = lw.run(train, {"layer": at, "score": at[-1]})
    params, keys = init(jax.random.key(0)), jax.random.split(jax.random.key(1), steps)
    show(run.dry_run(params, keys[:1]), "\n")

    params, losses = jax.device_get(run(params, keys))  # the layers' weights are at four places
    for step in range(0, steps, max(steps // 6, 1)):
        show(f"step {step:4}: loss {losses[step]:.4f}")

    few = min(steps, 5)
    same(losses[:few], jax.jit(train)(init(jax.random.key(0)), keys[:few])[1])
    fresh = waves_of(jax.random.key(2))
    reached, again = float(loss(params, fresh)), float(jnp.mean(jnp.diff(fresh, axis=0) ** 2))
    show(f"fresh waves: {reached:.4f}; saying the last value again: {again:.4f}")
    return reached, again


if __name__ == "__main__":
    main()
