"""Lanes that read the same place of a shared array run together, and the weights are never copied per lane."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.blocks.form import Block
from lanewise.machine.together import SHARED_ELEMENTS, lookups
from seeing import linked_of

WIDTH = 32
LAYERS = 6


@lw.program
def early_exit(x, layers):
    used = 0
    for i in range(layers.shape[0]):
        x = jnp.tanh(x @ layers[i])
        used += 1
        if jnp.max(jnp.abs(x)) < 0.5:
            break
    return x, used


@lw.program
def pick_experts(x, steps, experts):
    for _ in range(steps):
        choice = jnp.argmax(x[: experts.shape[0]])
        x = jnp.tanh(x @ experts[choice])
    return x


def weights(count: int) -> jax.Array:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal((count, WIDTH, WIDTH)) / np.sqrt(WIDTH), jnp.float32)


def inputs(lanes: int) -> jax.Array:
    rng = np.random.default_rng(1)
    scale = np.geomspace(0.2, 20.0, lanes)[:, None]
    return jnp.asarray(scale * rng.standard_normal((lanes, WIDTH)), jnp.float32)


def test_which_reads_are_found() -> None:
    linked = linked_of(
        early_exit, jnp.zeros(WIDTH), jnp.zeros((LAYERS, WIDTH, WIDTH)), varying=(True, False)
    )
    uniform = set(linked.uniforms)
    found = [
        lookups(block, uniform.__contains__) for block in linked.order if isinstance(block, Block)
    ]
    (lookup,) = [lookup for each in found for lookup in each]
    assert lookup.eqn.primitive.name == "dynamic_slice"
    assert WIDTH * WIDTH >= SHARED_ELEMENTS


@pytest.mark.parametrize("schedule", ["sweep", "most", "lowest"])
def test_a_layer_of_its_own(schedule: str) -> None:
    x, layers = inputs(17), weights(LAYERS)
    run = lw.vmap(early_exit, in_axes=(0, None), schedule=schedule)
    answers, used = run(x, layers)
    for lane in range(17):
        alone, count = early_exit(x[lane], layers)
        assert int(used[lane]) == int(count)
        np.testing.assert_allclose(answers[lane], alone, rtol=1e-4, atol=1e-5)
    assert len(set(used.tolist())) > 1


@pytest.mark.parametrize("schedule", ["sweep", "most", "lowest"])
def test_an_expert_of_its_own(schedule: str) -> None:
    x, experts = inputs(12), weights(4)
    steps = jnp.arange(12) % 5
    run = lw.vmap(pick_experts, in_axes=(0, 0, None), schedule=schedule)
    answers = run(x, steps, experts)
    for lane in range(12):
        alone = pick_experts(x[lane], steps[lane], experts)
        np.testing.assert_allclose(answers[lane], alone, rtol=1e-3, atol=1e-4)


def test_weights_are_not_copied_for_every_lane() -> None:
    lanes = 48
    run = jax.jit(lw.vmap(early_exit, in_axes=(0, None), schedule="sweep"))
    text = run.lower(inputs(lanes), weights(LAYERS)).as_text()
    assert f"tensor<{lanes}x{WIDTH}x{WIDTH}xf32>" not in text
    assert f"tensor<{lanes}x1x{WIDTH}x{WIDTH}xf32>" not in text
