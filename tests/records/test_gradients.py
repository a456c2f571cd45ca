"""Derivatives by weights and by the numbers in records, against JAX node by node."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.rules.sums import FEWEST_ELEMENTS

WIDTH = 4
WIDE = 6  # weights of this width are summed in accumulators
CARRIERS = ["ticks", pytest.param("native", marks=[needs.compiler, needs.on_cpu])]


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


def random_node(rng: random.Random, size: int, width: int = WIDTH, dtype: Any = np.float32) -> Node:
    children, left = [], size - 1
    while left > 0:
        part = rng.randint(1, left)
        children.append(random_node(rng, part, width, dtype))
        left -= part
    return Node(np.array([rng.uniform(-1, 1) for _ in range(width)], dtype), children)


def weights(width: int = WIDTH) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "embedding": jax.random.normal(keys[0], (7, width)),
        "left": 0.5 * jax.random.normal(keys[1], (width, width)),
        "right": 0.5 * jax.random.normal(keys[2], (width, width)),
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


def by_node(
    plainly: Callable[..., Any], trees: list[Any], nodes: list[Any], name: str
) -> Callable[..., Any]:
    """The loss that a forest has, node by node, of the weights and of a field's value at each node."""

    def loss(weights: Any, column: list[Any]) -> Any:
        for node, value in zip(nodes, column, strict=True):
            setattr(node, name, value)
        return sum(jnp.sum(plainly(weights, tree) ** 2) for tree in trees)

    return loss


def close(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected
    )


def exactly(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found, expected
    )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_by_weights_and_by_numbers_in_records(carrier: str) -> None:
    rng = random.Random(0)
    batch = [random_tree(rng, rng.randint(1, 7)) for _ in range(5)]
    forest = lw.pack(batch)

    def loss(weights: Any, bias: Any) -> Any:
        trees = forest.replace(bias=bias)
        return jnp.sum(lw.vmap(encode, in_axes=(None, 0), carrier=carrier)(weights, trees) ** 2)

    expected = by_node(encode_plainly, batch, forest.objects, "bias")
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

    expected = by_node(child_sum_plainly, batch, forest.objects, "vector")
    found = jax.grad(loss, argnums=(0, 1))(weight, forest.values("vector"))
    known = [jnp.asarray(node.vector) for node in forest.objects]
    wanted = jax.grad(expected, argnums=(0, 1))(weight, known)
    close(found[0], wanted[0])
    close(found[1][1 : len(known) + 1], jnp.stack(wanted[1]))


SUMMED: dict[str, tuple[Any, Any, Any, str]] = {
    # A number of each node, and words that are looked up.
    "numbers": (encode, encode_plainly, lambda rng: random_tree(rng, rng.randint(1, 9)), "bias"),
    # An array of each node, in a loop over lists.
    "arrays": (
        child_sum,
        child_sum_plainly,
        lambda rng: random_node(rng, rng.randint(1, 9), WIDE, np.float64),
        "vector",
    ),
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", SUMMED)
def test_what_a_forest_shares_has_one_adjoint(name: str, carrier: str) -> None:
    """Weights and columns of some size: lanes add to one sum. In float64, so that a missing term shows."""
    program, plainly, draw, field = SUMMED[name]
    rng = random.Random(3)
    with jax.enable_x64(True):
        batch = [draw(rng) for _ in range(11)]
        forest = lw.pack(batch)
        given = weights(WIDE) if name == "numbers" else weights(WIDE)["left"]

        def loss(weights: Any, column: Any) -> Any:
            trees = forest.replace(**{field: column})
            return jnp.sum(lw.vmap(program, (None, 0), carrier=carrier)(weights, trees) ** 2)

        column = forest.values(field)
        assert column.dtype == jnp.float64 and column.size >= FEWEST_ELEMENTS
        assert all(x.size >= FEWEST_ELEMENTS for x in jax.tree.leaves(given))
        gradient = jax.grad(loss, argnums=(0, 1))
        known = [jnp.asarray(getattr(node, field)) for node in forest.objects]
        wanted = jax.grad(by_node(plainly, batch, forest.objects, field), argnums=(0, 1))(
            given, known
        )
        for by_weights, by_column in (
            gradient(given, column),
            jax.jit(gradient)(given, column),
        ):
            exactly(by_weights, wanted[0])
            exactly(by_column[1 : len(known) + 1], jnp.stack(wanted[1]))
            assert not by_column[0].any() and not by_column[len(known) + 1 :].any()
        if carrier == "ticks":
            text = jax.jit(gradient).lower(given, column).as_text()
            for shape in [x.shape for x in (*jax.tree.leaves(given), column)]:
                sizes = [*map(str, shape)]
                assert f"tensor<{'x'.join(sizes)}xf64>" in text
                assert f"tensor<{'x'.join([str(len(batch)), *sizes])}xf64>" not in text


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
