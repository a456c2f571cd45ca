"""A program over trees whose recursion is run by levels, and which then loops on values."""

from __future__ import annotations

import jax.numpy as jnp

import lanewise as lw


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.program
def encode(tree, table, mix):
    if tree.left is None:
        return jnp.sin(table[tree.word])
    return jnp.sin(mix @ encode(tree.left, table, mix) + 2 * encode(tree.right, table, mix))


@lw.program
def settled(tree, table, mix):
    """Run in two: the loop is on values."""
    h = encode(tree, table, mix)
    while jnp.sum(h * h) > 0.5:
        h = h * jnp.cos(mix @ h) / 2
    return h


TREES = [Tree(0, Tree(1), Tree(2, Tree(0), Tree(1))), Tree(2), Tree(1, Tree(2), Tree(0))]
