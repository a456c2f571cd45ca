"""What needs more memory than there is, is refused before XLA asks for it, with its parts and a way out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import OptionError
from lanewise.grow import memory
from programs.recursion import fibonacci

WEIGHTS = jnp.eye(32) * 0.1


@lw.program
def grown(weights, x, depth):
    if depth == 0:
        return x
    near = grown(weights * 0.9, x, depth - 1)
    far = grown(weights * 0.9, x + 1.0, depth - 1)
    return jnp.tanh(weights @ (near + far))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with 16 MiB."""
    monkeypatch.setattr(memory, "device_bytes", lambda platform: 16 << 20)


def loss(weights: jax.Array, carrier: str) -> jax.Array:
    run = lw.vmap(grown, in_axes=(None, 0, 0), carrier=carrier)
    return run(weights, jnp.ones((64, 32)), jnp.full(64, 2)).sum()


@pytest.mark.parametrize("carrier", ["auto", "ticks"])
def test_the_gradient_of_a_recursion_inside_jit(small: None, carrier: str) -> None:
    with pytest.raises(OptionError) as caught:
        jax.jit(jax.grad(loss), static_argnums=1)(WEIGHTS, carrier)
    text = str(caught.value)
    # Each of the 1,024 records of a lane holds the weights it used, and by ticks so does each frame.
    needed = "5" if carrier == "ticks" else "2"
    assert f"`forward(grown)` needs {needed}" in text and "MiB of memory for 64 lanes" in text
    assert "this device has 16.0 MiB" in text
    assert "256.0 MiB for a float32[1024,32,32] of each of 64 lanes" in text
    for way in ("What helps: a smaller batch;", "a shorter tape (tape=)", "no jit around it"):
        assert way in text


def test_weights_that_all_frames_share_are_saved_once(small: None) -> None:
    @lw.program
    def shared(weights, x, depth):
        if depth == 0:
            return x
        near = shared(weights, x, depth - 1)
        far = shared(weights, x + 1.0, depth - 1)
        return jnp.tanh(weights @ (near + far))

    def plain(weights, x, depth):
        if depth == 0:
            return x
        near, far = plain(weights, x, depth - 1), plain(weights, x + 1.0, depth - 1)
        return jnp.tanh(weights @ (near + far))

    def total(run, weights):
        return jax.vmap(lambda x: run(weights, x, 2))(jnp.ones((16, 32))).sum()

    # With a copy of the weights in each record the tapes would be 64 MiB.
    found = jax.jit(jax.grad(lambda weights: total(shared, weights)))(WEIGHTS)
    expected = jax.jit(jax.grad(lambda weights: total(plain, weights)))(WEIGHTS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_stacks_inside_jit(small: None) -> None:
    numbers = jnp.arange(4096) % 5
    with pytest.raises(OptionError, match=r"and each of 1,024 frames.*fewer frames \(max_depth=\)"):
        jax.jit(lw.vmap(fibonacci, carrier="ticks"))(numbers)
    # What the message says helps.
    expected = lw.vmap(fibonacci, carrier="ticks", max_depth=8)(numbers)
    fewer = jax.jit(lw.vmap(fibonacci, carrier="ticks", lanes=512))(numbers)
    np.testing.assert_array_equal(fewer, expected)


def test_outside_jit(small: None) -> None:
    @lw.program
    def large(x):
        while x.sum() < 10.0:
            x = x + 1.0
        return x

    for carrier in ("ticks", "native"):
        with pytest.raises(
            OptionError, match=r"`large` needs 32.0 MiB.*What helps: a smaller batch"
        ):
            lw.vmap(large, carrier=carrier, schedule="auto")(jnp.zeros((8, 1 << 20)))


def test_this_machine_has_memory() -> None:
    found = memory.device_bytes("cpu")
    assert found is not None and 1 << 28 < found < 1 << 50
