"""D-LSTM: a network of diagonal LSTM cells over a text, one character after another.

The function is ADBench's (its `lstm`): all weights are vectors of the length of a character's bits, so that a
step is elementwise and the whole is one long loop. Layers and characters are ADBench's sizes, 14 bits a
character; characters are random, states and parameters uniform as ADBench draws them. float64.

The gates of a layer that look at its input and those that look at its own state are four rows of one array.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch, by_autograd

BITS = 14


def cell(weights: Any, bias: Any, hidden: Any, memory: Any, given: Any) -> tuple[Any, Any]:
    """One layer's step; `weights` and `bias` are the forget, in, out and change gates in turn."""
    forget = jax.nn.sigmoid(given * weights[0] + bias[0])
    enter = jax.nn.sigmoid(hidden * weights[1] + bias[1])
    leave = jax.nn.sigmoid(given * weights[2] + bias[2])
    change = jnp.tanh(hidden * weights[3] + bias[3])
    memory = memory * forget + enter * change
    return leave * jnp.tanh(memory), memory


def layers_after(main: Any, extra: Any, state: Any, given: Any) -> tuple[Any, Any]:
    """All layers' step for one character: their new states, and what is predicted."""
    signal = given * extra[0]
    layers = []
    for i in range(main.shape[0]):
        hidden, memory = cell(main[i, 0], main[i, 1], state[i, 0], state[i, 1], signal)
        layers.append(jnp.stack([hidden, memory]))
        signal = hidden
    return jnp.stack(layers), signal * extra[1] + extra[2]


def score(predicted: Any, wanted: Any) -> Any:
    """ADBench's: two is added to the sum of exponentials."""
    return jnp.sum(wanted * (predicted - jnp.log(jnp.sum(jnp.exp(predicted)) + 2.0)))


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def loss(main, extra, state, sequence):
    """Mean negative log likelihood of each character given those before it.

    `main` is (layers, weight or bias, gate, bits); `extra` the input weight, output weight and output bias;
    `state` is (layers, hidden or memory, bits).
    """
    total = jnp.zeros((), sequence.dtype)
    given_of, wanted_of = sequence[:-1], sequence[1:]
    for given, wanted in zip(given_of, wanted_of):
        state, predicted = layers_after(main, extra, state, given)
        total = total + score(predicted, wanted)
    return -total / ((sequence.shape[0] - 1) * sequence.shape[1])


# -- plain JAX ---------------------------------------------------------------------------------------


def loss_jax(main: Any, extra: Any, state: Any, sequence: Any) -> jax.Array:
    def step(state: Any, characters: Any) -> Any:
        given, wanted = characters
        state, predicted = layers_after(main, extra, state, given)
        return state, score(predicted, wanted)

    _, scores = lax.scan(step, state, (sequence[:-1], sequence[1:]))
    return -jnp.sum(scores) / ((sequence.shape[0] - 1) * sequence.shape[1])


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
    def step(main: Any, extra: Any, state: Any, given: Any, wanted: Any) -> tuple[Any, Any]:
        """All layers for one character; the state is a list of hidden and memory in turn."""
        signal, after = given * extra[0], []
        for i in range(main.shape[0]):
            weights, bias = main[i].unbind(0)
            hidden, memory = state[2 * i], state[2 * i + 1]
            looks_in = (signal * weights[0::2] + bias[0::2]).sigmoid()
            enter = (hidden * weights[1] + bias[1]).sigmoid()
            change = (hidden * weights[3] + bias[3]).tanh()
            memory = memory * looks_in[0] + enter * change
            signal = looks_in[1] * memory.tanh()
            after += [signal, memory]
        predicted = signal * extra[1] + extra[2]
        norm = (predicted.exp().sum() + 2.0).log()
        return after, (wanted * (predicted - norm)).sum()

    step = compile(step)

    def primal(main: Any, extra: Any, state: Any, sequence: Any) -> Any:
        now, total = list(state.reshape(-1, state.shape[-1]).unbind(0)), 0.0
        characters = sequence.unbind(0)
        for given, wanted in itertools.pairwise(characters):
            now, score = step(main, extra, now, given, wanted)
            total = total + score
        return -total / ((sequence.shape[0] - 1) * sequence.shape[1])

    return by_autograd(torch, primal, (0, 1))


# -- data --------------------------------------------------------------------------------------------


def data(layers: int, characters: int, bits: int = BITS) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    sequence = rng.integers(0, 2, (characters, bits)).astype(np.float64)
    main, extra = rng.random((layers, 2, 4, bits)), rng.random((3, bits))
    return main, extra, rng.random((layers, 2, bits)), sequence


def entry(layers: int, characters: int) -> Entry:
    def case(small: bool) -> Case:
        return Case(
            Pair(loss, jax.grad(loss, argnums=(0, 1))),
            Pair(loss_jax, jax.grad(loss_jax, argnums=(0, 1))),
            torch_pair,
            data(2, 7, 5) if small else data(layers, characters),
            double=True,
            rtol=1e-6,
            atol=1e-9,
        )

    return Entry(f"D-LSTM l{layers} c{characters}", f"{BITS} bits", case, "<= 3")


ENTRIES = (entry(2, 1024), entry(4, 1024), entry(2, 4096), entry(4, 4096))
