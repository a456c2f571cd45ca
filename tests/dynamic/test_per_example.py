"""Derivatives of programs by levels, nested in each other and in `jax.vmap`: as those of each example alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw


@lw.record
class Tree:
    size: float
    left: Tree | None = None
    right: Tree | None = None


@lw.program
def folded(tree, w):
    if tree.left is None:
        return tree.size * w["first"]
    return jnp.tanh(folded(tree.left, w) @ w["square"] - folded(tree.right, w))


@lw.program
def stopping(tree, w):
    """A weight decides, and has a derivative: branches that are not taken have none that is finite."""
    assert tree.size < 9.0, "a size beyond the table"
    size = tree.size * w["scale"]
    if size > 0:
        root = jnp.sqrt(size)
    else:
        root = -size
    if tree.left is None or root > 1.5:
        return root * w["first"]
    return jnp.sin(stopping(tree.left, w) @ w["square"]) - root * stopping(tree.right, w)


TREES = [
    Tree(0.5),
    Tree(1.0, Tree(-1.0), Tree(0.0)),
    Tree(0.0, Tree(0.3, Tree(2.0), Tree(0.1)), Tree(4.0, Tree(1.0), Tree(1.0))),
]


def weights(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"first": (3,), "square": (3, 3), "scale": ()}
    return {k: jnp.asarray(rng.uniform(0.3, 0.9, s), jnp.float32) for k, s in shapes.items()}


def along(f: Callable[[Any], Any], w: Any, moved: Any) -> Any:
    """A product with second derivatives, backwards over backwards."""

    def slope(w: Any) -> Any:
        pairs = zip(jax.tree.leaves(jax.grad(f)(w)), jax.tree.leaves(moved), strict=True)
        return sum(jnp.vdot(a, b) for a, b in pairs)

    return jax.grad(slope)(w)


def pushed(f: Callable[[Any], Any], w: Any, moved: Any) -> Any:
    return jax.jvp(jax.grad(f), (w,), (moved,))[1]


def first(f: Callable[[Any], Any], w: Any, moved: Any) -> Any:
    del moved
    return jax.value_and_grad(f)(w)


@pytest.mark.parametrize("program", [folded, stopping], ids=lambda p: p.__name__)
@pytest.mark.parametrize("derivative", [first, along, pushed], ids=lambda f: f.__name__)
def test_of_each_example(program: Any, derivative: Any) -> None:
    forest, w, moved = lw.pack(TREES), weights(), weights(1)
    by_levels = program.with_options(schedule="levels")

    def of(program: Any, tree: Any) -> Any:
        return derivative(lambda w: jnp.sum(program(tree, w) ** 2), w, moved)

    found = jax.vmap(lambda i: of(by_levels, forest[i]))(jnp.arange(len(TREES)))
    with jax.disable_jit():
        each = [of(program, tree) for tree in TREES]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *each)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected
    )


def test_of_a_sum_of_values_that_decide() -> None:
    """Twice backwards, where the first derivative is by a weight that control reads."""
    forest, w, moved = lw.pack(TREES), weights(), weights(1)
    run = lw.vmap(stopping, in_axes=(0, None), schedule="levels")
    found = along(lambda w: jnp.sum(run(forest, w) ** 2), w, moved)
    with jax.disable_jit():
        expected = along(lambda w: sum(jnp.sum(stopping(t, w) ** 2) for t in TREES), w, moved)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected
    )


def test_an_example_that_fails_is_named() -> None:
    forest = lw.pack([TREES[0], Tree(10.0)])
    program = stopping.with_options(schedule="levels")
    with pytest.raises(lw.errors.LaneError, match="a size beyond the table"):
        jax.vmap(lambda i: jax.grad(lambda w: jnp.sum(program(forest[i], w)))(weights()))(
            jnp.arange(2)
        )
