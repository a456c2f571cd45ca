"""Programs over records: trees, lists and terms that are packed into arrays, one of them a lane."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import lanewise as lw
from programs.case import Case, ints


@lw.record
class Tree:
    label: int
    weight: float
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Node:
    label: int
    children: list[Node]


@lw.record
class Leaf:
    value: float


@lw.record
class Product:
    factor: float
    first: Leaf | Product
    second: Leaf | Product


@lw.program
def tree_depth(tree):
    if tree is None:
        return 0
    return 1 + jnp.maximum(tree_depth(tree.left), tree_depth(tree.right))


@lw.program
def tree_search(tree, label):
    """Down a search tree to a label, or to where it would be: a loop over references."""
    steps = 0
    while tree is not None and tree.label != label:
        steps += 1
        tree = tree.left if label < tree.label else tree.right
    return steps, tree is not None


@lw.program
def tree_folded(tree):
    match tree:
        case None:
            return 0.0
        case Tree(weight=weight, left=None, right=None):
            return weight
        case Tree(weight=weight, left=left, right=right):
            return jnp.sin(tree_folded(left) - weight * tree_folded(right))


@lw.program
def node_total(node):
    found = node.label
    for child in node.children:
        found = found + node_total(child)
    return found * len(node.children) % 1001 + found


@lw.program
def term_value(term):
    if isinstance(term, Leaf):
        return term.value
    return term.factor * term_value(term.first) + term_value(term.second)


def _tree(rng: np.random.Generator, size: int) -> Tree | None:
    if size == 0:
        return None
    left = int(rng.integers(size))
    return Tree(
        int(rng.integers(100)),
        float(rng.normal()),
        _tree(rng, left),
        _tree(rng, size - 1 - left),
    )


def _search_tree(rng: np.random.Generator, size: int) -> Tree | None:
    root = None
    for label in rng.permutation(100)[:size].tolist():
        at, node = root, Tree(label, 0.0)
        root = root or node
        while at is not None:
            side = "left" if label < at.label else "right"
            below = getattr(at, side)
            if below is None:
                setattr(at, side, node)
            at = below
    return root


def _node(rng: np.random.Generator, size: int) -> Node:
    children, left = [], size - 1
    while left > 0:
        part = int(rng.integers(1, left + 1))
        children.append(_node(rng, part))
        left -= part
    return Node(int(rng.integers(50)), children)


def _term(rng: np.random.Generator, size: int) -> Any:
    if size <= 1:
        return Leaf(float(rng.normal()))
    part = int(rng.integers(1, size))
    return Product(float(rng.uniform(-1, 1)), _term(rng, part), _term(rng, size - part))


def _case(program: Any, make: Any, of: Any, *more: Any, least: int = 0) -> Case:
    """A batch of references into one forest, which all lanes share."""

    def examples(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        records = [make(rng, int(rng.integers(least, 12))) for _ in range(n)]
        return lw.pack(records, of=of).roots, *(spec(rng, n) for spec in more)

    axes = (lw.pack([], of=of).axes, *(0 for _ in more))
    recursive = program is not tree_search
    return Case(program.__name__, program, examples, in_axes=axes, recursive=recursive)


CASES = (
    _case(tree_depth, _tree, Tree),
    _case(tree_search, _search_tree, Tree, ints(0, 99)),
    _case(tree_folded, _tree, Tree),
    _case(node_total, _node, Node, least=1),
    _case(term_value, _term, Leaf | Product, least=1),
)
