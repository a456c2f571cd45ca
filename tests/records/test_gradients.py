"""Derivatives by weights and by the numbers in records, against JAX node by node."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw

WIDTH = 4


@lw.record
class Tree:
    word: int
    bias: float
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Node:
    vector: np.ndarray
    children: list[Node]


def random_tree(rng: random.Random, size: int) -> Tree:
    if size == 1:
        return Tree(rng.randrange(7), rng.uniform(-1, 1))
    part = rng.randrange(1, size)
    return Tree(0, rng.uniform(-1, 1), random_tree(rng, part), random_tree(rng, size - part))


def random_node(rng: random.Random, size: int) -> Node:
    children, left = [], size - 1
    while left > 0:
        part = rng.randint(1, left)
        children.append(random_node(rng, part))
        left -= part
    return Node(np.array([rng.uniform(-1, 1) for _ in range(WIDTH)], np.float32), children)


def weights() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "embedding": jax.random.normal(keys[0], (7, WIDTH)),
        "left": 0.5 * jax.random.normal(keys[1], (WIDTH, WIDTH)),
        "right": 0.5 * jax.random.normal(keys[2], (WIDTH, WIDTH)),
    }


@lw.program
def encode(weights, tree):
    if tree.left is None:
        return jnp.tanh(weights["embedding"][tree.word] + tree.bias)
    left, right = encode(weights, tree.left), encode(weights, tree.right)
    return jnp.tanh(weights["left"] @ left + weights["right"] @ right + tree.bias)


def encode_plainly(weights: Any, tree: Any) -> Any:
    if tree.left is None:
        return jnp.tanh(weights["embedding"][tree.word] + tree.bias)
    left, right = encode_plainly(weights, tree.left), encode_plainly(weights, tree.right)
    return jnp.tanh(weights["left"] @ left + weights["right"] @ right + tree.bias)


@lw.program
def child_sum(weights, node):
    state = node.vector
    for child in node.children:
        state = state + jnp.tanh(weights @ child_sum(weights, child))
    return state


def child_sum_plainly(weights: Any, node: Node) -> Any:
    below = [jnp.tanh(weights @ child_sum_plainly(weights, child)) for child in node.children]
    return sum(below, node.vector)


def close(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected
    )


@pytest.mark.parametrize("carrier", ["ticks", "native"])
def test_by_weights_and_by_numbers_in_records(carrier: str) -> None:
    rng = random.Random(0)
    batch = [random_tree(rng, rng.randint(1, 7)) for _ in range(5)]
    forest = lw.pack(batch)

    def loss(weights: Any, bias: Any) -> Any:
        trees = forest.replace(bias=bias)
        return jnp.sum(lw.vmap(encode, in_axes=(None, 0), carrier=carrier)(weights, trees) ** 2)

    def expected(weights: Any, bias: list[Any]) -> Any:
        for node, value in zip(forest.objects, bias):
            node.bias = value
        return sum(jnp.sum(encode_plainly(weights, tree) ** 2) for tree in batch)

    column = forest.values("bias")
    value, (by_weights, by_bias) = jax.value_and_grad(loss, argnums=(0, 1))(weights(), column)
    known = [jnp.float32(node.bias) for node in forest.objects]
    wanted, (their_weights, their_bias) = jax.value_and_grad(expected, argnums=(0, 1))(
        weights(), known
    )
    close(value, wanted)
    close(by_weights, their_weights)
    close(by_bias[1 : len(known) + 1], jnp.stack(their_bias))
    assert not by_bias[0] and not by_bias[len(known) + 1 :].any()


def test_by_vectors_of_children() -> None:
    rng = random.Random(1)
    batch = [random_node(rng, rng.randint(1, 8)) for _ in range(4)]
    forest = lw.pack(batch)
    weight = weights()["left"]

    def loss(weight: Any, vectors: Any) -> Any:
        trees = forest.replace(vector=vectors)
        return jnp.sum(lw.vmap(child_sum, in_axes=(None, 0))(weight, trees) ** 2)

    def expected(weight: Any, vectors: list[Any]) -> Any:
        for node, value in zip(forest.objects, vectors):
            node.vector = value
        return sum(jnp.sum(child_sum_plainly(weight, node) ** 2) for node in batch)

    found = jax.grad(loss, argnums=(0, 1))(weight, forest.values("vector"))
    known = [jnp.asarray(node.vector) for node in forest.objects]
    wanted = jax.grad(expected, argnums=(0, 1))(weight, known)
    close(found[0], wanted[0])
    close(found[1][1 : len(known) + 1], jnp.stack(wanted[1]))


def test_a_loss_at_every_node_is_trained() -> None:
    """Labels at every phrase: a few steps of gradient descent, jitted once for fresh trees."""
    rng = random.Random(2)
    traces: list[int] = []

    def loss(weights: Any, forest: Any) -> Any:
        traces.append(1)
        nodes = forest.nodes
        states = lw.vmap(encode, in_axes=(None, 0))(weights, nodes)
        wrong = (states.sum(-1) - nodes.bias) ** 2
        return jnp.sum(jnp.where(forest.rows(nodes) >= 0, wrong, 0.0)) / forest.size

    step = jax.jit(jax.value_and_grad(loss))
    now, losses, forest = weights(), [], None
    for _ in range(8):
        trees = [random_tree(rng, rng.randint(3, 6)) for _ in range(6)]
        forest = lw.pack(trees, like=forest)
        value, gradient = step(now, forest)
        now = jax.tree.map(lambda w, g: w - 0.03 * g, now, gradient)
        losses.append(float(value))
    assert losses[-1] < losses[0] and len(traces) <= 3
