"""Learned models in miniature: weights are shared by all lanes, work is decided by data."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from programs.case import Case, constant, floats, inputs, ints, normals
from programs.recursion import random_trees


def _weights(seed: int, *shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple((rng.normal(size=s) / np.sqrt(s[-1])).astype(np.float32) for s in shapes)


@lw.program
def early_exit(layers, head, x):
    """A network that stops at the first layer whose head is sure enough."""
    used = jnp.int32(0)
    score = head @ x
    for layer in layers:
        if jnp.max(jax.nn.softmax(score)) > 0.6:
            break
        x = jax.nn.relu(layer @ x) + x
        score = head @ x
        used += 1
    return jnp.argmax(score), used, score


def early_exit_lax(layers, head, x):
    def body(state):
        x, used = state
        return jax.nn.relu(layers[used] @ x) + x, used + 1

    def unfinished(state):
        x, used = state
        return (used < layers.shape[0]) & (jnp.max(jax.nn.softmax(head @ x)) <= 0.6)

    x, used = lax.while_loop(unfinished, body, (x, jnp.int32(0)))
    return jnp.argmax(head @ x), used, head @ x


@lw.program
def mixture(gate, cheap, expensive, x):
    """One expert in four is expensive: it iterates a matrix to a fixed point."""
    expert = jnp.argmax(gate @ x)
    if expert == 0:
        y = jnp.zeros_like(x)
        for _ in range(10):
            y = jnp.tanh(expensive @ y + x)
        return y
    elif expert == 1:
        return cheap[0] * x
    return jnp.where(expert == 2, cheap[1], cheap[2]) + x


def mixture_lax(gate, cheap, expensive, x):
    def iterate(x):
        return lax.fori_loop(0, 10, lambda _, y: jnp.tanh(expensive @ y + x), jnp.zeros_like(x))

    branches = [iterate, lambda x: cheap[0] * x, lambda x: cheap[1] + x, lambda x: cheap[2] + x]
    return lax.switch(jnp.argmax(gate @ x), branches, x)


@lw.program
def beam_search(table, start, length):
    """Two beams through a table of transition scores, shared by all lanes."""
    size = table.shape[0]
    tokens = jnp.zeros((2, 6), jnp.int32).at[:, 0].set(start)
    scores = jnp.array([0.0, -jnp.inf], jnp.float32)
    t = 0
    while t < length:
        joint = scores[:, None] + table[tokens[:, t]]
        scores, flat = lax.top_k(joint.reshape(-1), 2)
        tokens = tokens[flat // size].at[:, t + 1].set(flat % size)
        t += 1
        if scores[0] - scores[1] > 2.0:
            break
    return tokens[0], scores[0], t


def beam_search_lax(table, start, length):
    size = table.shape[0]

    def body(state):
        tokens, scores, t, _ = state
        joint = scores[:, None] + table[tokens[:, t]]
        scores, flat = lax.top_k(joint.reshape(-1), 2)
        tokens = tokens[flat // size].at[:, t + 1].set(flat % size)
        return tokens, scores, t + 1, scores[0] - scores[1] > 2.0

    tokens = jnp.zeros((2, 6), jnp.int32).at[:, 0].set(start)
    scores = jnp.array([0.0, -jnp.inf], jnp.float32)
    state = (tokens, scores, jnp.int32(0), jnp.array(False))
    tokens, scores, t, _ = lax.while_loop(lambda s: (s[2] < length) & ~s[3], body, state)
    return tokens[0], scores[0], t


@lw.program
def tree_network(mix, embedding, words, left, right, node):
    """A recursive network over a tree of words: one matrix for all nodes of all lanes."""
    own = embedding[words[node]]
    if left[node] >= 0:
        own += mix[0] @ tree_network(mix, embedding, words, left, right, left[node])
    if right[node] >= 0:
        own += mix[1] @ tree_network(mix, embedding, words, left, right, right[node])
    return jnp.tanh(own)


@lw.program
def settled_tree(mix, embedding, words, left, right, node):
    """What a network gives for a tree, until it is small: a loop on values behind a recursion that has none."""
    if words[node] == 4:
        return embedding[4], jnp.int32(0)
    h = tree_network(mix, embedding, words, left, right, node)
    rounds = jnp.int32(0)
    while jnp.sum(h * h) > 1.0 and rounds < 6:
        h = jnp.tanh(0.7 * (mix[0] @ h))
        rounds += 1
    return h, rounds


@lw.program
def adaptive_steps(weights, x):
    """Adaptive computation: halting weights accumulate until they exceed one."""
    halted = jnp.zeros((), x.dtype)
    output = jnp.zeros_like(x)
    rounds = jnp.int32(0)
    while halted < 0.95 and rounds < 8:
        x = jnp.tanh(weights @ x)
        p = jnp.minimum(jax.nn.sigmoid(2.0 * x[0]), 1.0 - halted)
        output += p * x
        halted += p
        rounds += 1
    return output, rounds


def adaptive_steps_lax(weights, x):
    def body(state):
        x, output, halted, rounds = state
        x = jnp.tanh(weights @ x)
        p = jnp.minimum(jax.nn.sigmoid(2.0 * x[0]), 1.0 - halted)
        return x, output + p * x, halted + p, rounds + 1

    start = (x, jnp.zeros_like(x), jnp.zeros((), x.dtype), jnp.int32(0))
    state = lax.while_loop(lambda s: (s[2] < 0.95) & (s[3] < 8), body, start)
    return state[1], state[3]


@lw.program
def greedy_decode(table, prompt, stop):
    """Feeds its own output back until it says the stop word."""
    said = jnp.full(8, -1, jnp.int32)
    word = prompt
    for t in range(8):
        word = jnp.argmax(table[word] - 3.0 * (jnp.arange(table.shape[0]) == word)).astype(
            jnp.int32
        )
        said = said.at[t].set(word)
        if word == stop:
            break
    return said


def _sentences(width: int) -> Callable[[np.random.Generator, int], tuple]:
    def examples(rng: np.random.Generator, n: int) -> tuple:
        left, right = random_trees(rng, n, 9)
        words = rng.integers(0, 5, (n, 9)).astype(np.int32)
        mix, embedding = _weights(3, (2, width, width), (5, width))
        return mix, embedding, words, left, right, np.zeros(n, np.int32)

    return examples


LAYERS, HEAD = _weights(0, (4, 5, 5), (3, 5))
GATE, CHEAP, EXPENSIVE = _weights(1, (4, 4), (3, 4), (4, 4))
(TRANSITIONS,) = _weights(2, (7, 7))
(RECURRENT,) = _weights(4, (4, 4))

CASES = (
    Case(
        "early_exit",
        early_exit,
        inputs(constant(LAYERS), constant(HEAD), normals(5, scale=1.5)),
        in_axes=(None, None, 0),
        lax_form=early_exit_lax,
        rtol=1e-4,
        differentiable=(0, 1, 2),
    ),
    Case(
        "mixture",
        mixture,
        inputs(constant(GATE), constant(CHEAP), constant(0.5 * EXPENSIVE), normals(4)),
        in_axes=(None, None, None, 0),
        lax_form=mixture_lax,
        rtol=1e-4,
        differentiable=(1, 2, 3),
    ),
    Case(
        "beam_search",
        beam_search,
        inputs(constant(3.0 * TRANSITIONS), ints(0, 6), ints(0, 5)),
        in_axes=(None, 0, 0),
        lax_form=beam_search_lax,
    ),
    Case(
        "tree_network",
        tree_network,
        _sentences(4),
        in_axes=(None, None, 0, 0, 0, 0),
        rtol=1e-4,
        differentiable=(0, 1),
        recursive=True,
    ),
    Case(
        "settled_tree",
        settled_tree,
        _sentences(12),
        in_axes=(None, None, 0, 0, 0, 0),
        rtol=1e-4,
        differentiable=(0, 1),
        recursive=True,
    ),
    Case(
        "adaptive_steps",
        adaptive_steps,
        inputs(constant(RECURRENT), floats(-2.0, 2.0, 4)),
        in_axes=(None, 0),
        lax_form=adaptive_steps_lax,
        rtol=1e-4,
        differentiable=(0, 1),
    ),
    Case(
        "greedy_decode",
        greedy_decode,
        inputs(constant(TRANSITIONS), ints(0, 6), ints(0, 6)),
        in_axes=(None, 0, 0),
    ),
)
