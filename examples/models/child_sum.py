"""A child-sum Tree-LSTM (Tai et al. 2015) over trees of words with any number of children, as an Equinox module.

Each node has a word. Its value is that of the word and of all below it together; a negation turns round what is below
it (`made.dependents`). Ops are methods of the module; `eqx.filter_jit` and Optax work on it as ever.

    python examples/models/child_sum.py
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

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

    @lw.op
    def edge(self, word: Any, child: Any) -> Any:
        """What a child adds to a node with this word: its h, what is kept of its c, the losses below."""
        h, c, found = child
        kept = jax.nn.sigmoid(self.forget(jnp.concatenate([self.words[word], h]))) * c
        return jnp.concatenate([h, kept, found])

    @lw.op
    def node(self, word: Any, label: Any, below: Any) -> Any:
        h, kept, found = jnp.split(below, [(len(below) - 3) // 2, len(below) - 3])
        i, o, u = jnp.split(self.gates(jnp.concatenate([self.words[word], h])), 3)
        c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, c, found + judged(self.out(h), label)

    def __call__(self, tree: Any) -> Any:
        edges = [self.edge(tree.word, self(child)) for child in tree.children]
        # However many children there are: an op of all of them would be another one for each number.
        below = lw.lazy_sum(edges) if edges else np.zeros(2 * self.words.shape[1] + 3, np.float32)
        return self.node(tree.word, tree.label, below)


def init(width: int) -> ChildSum:
    return ChildSum(width, jax.random.key(0))


def measure(model: ChildSum, tree: Any) -> Any:
    return model(tree)[2]


def batch(seed: int, count: int = 64, **sizes: Any) -> list[Any]:
    return [lw.records.nested(Node, t) for t in made.dependents(count, seed, **sizes)]


def main(steps: int = 80) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)

    def pairs(seed: int) -> list[tuple[int, int]]:
        nodes = batch(seed, 200)
        for node in nodes:
            nodes.extend(node.children)
        return [(node.word, node.label) for node in nodes]

    words = training.most_common(pairs(30_000), pairs(10_000))
    right = training.report(
        "child-sum Tree-LSTM", measure, params, batch(10_000), ("each word by itself", words)
    )
    return right, words


if __name__ == "__main__":
    main()
