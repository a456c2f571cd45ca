"""A child-sum Tree-LSTM (Tai et al. 2015) over trees of words with any number of children, as an Equinox module.

Each node has a word. Its value is that of the word and of all below it together; a negation turns round what is below
it (`made.dependents`). The module is an argument of the program as any pytree of weights is; its layers run inside.

    python examples/models/child_sum.py
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import lanewise as lw
import made
import training
from cells import judged


@lw.record
class Node:
    word: int
    label: int
    children: list[Node]


class ChildSum(eqx.Module):
    words: jax.Array
    gates: eqx.nn.Linear
    forget: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, width: int, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.words = jax.random.normal(keys[0], (len(made.WORDS), width)) / 2
        self.gates = eqx.nn.Linear(2 * width, 3 * width, key=keys[1])
        self.forget = eqx.nn.Linear(2 * width, width, key=keys[2])
        self.out = eqx.nn.Linear(width, made.LABELS, key=keys[3])


@lw.program
def node(model, tree):
    """h and c of a node, and `[loss, right, 1]` summed over it and all below."""
    x = model.words[tree.word]
    total, kept, found = jnp.zeros_like(x), jnp.zeros_like(x), jnp.zeros(3)
    for child in tree.children:
        h, c, below = node(model, child)
        total += h
        kept += jax.nn.sigmoid(model.forget(jnp.concatenate([x, h]))) * c
        found += below
    i, o, u = jnp.split(model.gates(jnp.concatenate([x, total])), 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, c, found + judged(model.out(h), tree.label)


@lw.program
def measure(model, tree):
    return node(model, tree)[2]


run = lw.vmap(measure, in_axes=(None, 0))


def init(width: int) -> ChildSum:
    return ChildSum(width, jax.random.key(0))


def batch(seed: int, count: int = 64, **sizes: Any) -> list[Any]:
    return [lw.records.nested(Node, t) for t in made.dependents(count, seed, **sizes)]


def main(steps: int = 80) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)

    def pairs(seed: int) -> list[tuple[int, int]]:
        nodes = batch(seed, 200)
        for node in nodes:
            nodes.extend(node.children)
        return [(node.word, node.label) for node in nodes]

    words = training.most_common(pairs(30_000), pairs(10_000))
    right = training.report(
        "child-sum Tree-LSTM", run, params, lw.pack(batch(10_000)), ("each word by itself", words)
    )
    return right, words


if __name__ == "__main__":
    main()
