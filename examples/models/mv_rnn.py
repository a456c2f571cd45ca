"""MV-RNN (Socher et al. 2012): every phrase has a vector and a matrix, which acts on its neighbour's vector.

A negation can be a matrix that turns vectors round. Trees and labels are those of the Tree-LSTM.

    python examples/models/mv_rnn.py
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import lanewise as lw
import made
import training
import tree_lstm
from cells import judged, weights


def init(width: int) -> dict[str, Any]:
    p = weights(
        0,
        words=(len(made.WORDS), width),
        matrix_of=(len(made.WORDS), width, width),
        vector=(2 * width, width),
        matrix=(2 * width, width),
        out=(width, made.LABELS),
    )
    # A word's matrix starts near the one that changes nothing.
    noise = p["matrix_of"] / width
    return {**p, "matrix_of": jnp.eye(width) + noise}


@lw.program
def phrase(p, tree):
    """The vector and the matrix of a phrase, and `[loss, right, 1]` summed over it and all phrases inside."""
    if tree.left is None:
        a = jnp.tanh(p["words"][tree.word])
        return a, p["matrix_of"][tree.word], judged(a @ p["out"], tree.label)
    a, first, below = phrase(p, tree.left)
    b, second, beside = phrase(p, tree.right)
    vector = jnp.tanh(jnp.concatenate([a @ second, b @ first]) @ p["vector"])
    matrix = jnp.concatenate([first, second], axis=1) @ p["matrix"]
    return vector, matrix, judged(vector @ p["out"], tree.label) + below + beside


@lw.program
def measure(p, tree):
    return phrase(p, tree)[2]


run = lw.vmap(measure, in_axes=(None, 0))


def batch(seed: int, count: int = 32, **sizes: Any) -> list[Any]:
    return tree_lstm.batch(seed, count, **sizes)


def main(steps: int = 100) -> tuple[float, float]:
    params, _ = training.fit(run, init(16), training.packed(batch), steps)
    fresh = batch(10_000, 200)
    right = training.report(
        "MV-RNN, all phrases", run, params, lw.pack(fresh[:64]), ("commonest label", common(fresh))
    )
    return right, common(fresh)


def common(trees: list[Any]) -> float:
    """The share of the commonest label among all phrases."""
    todo, labels = list(trees), []
    for tree in todo:
        todo.extend(part for part in (tree.left, tree.right) if part is not None)
        labels.append((0, tree.label))
    return training.most_common(labels, labels)


if __name__ == "__main__":
    main()
