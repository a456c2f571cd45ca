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
        matrix=(width, 2 * width),
        out=(width, made.LABELS),
    )
    # A word's matrix starts near the one that changes nothing.
    noise = p["matrix_of"] / width
    return {**p, "matrix": p["matrix"] / jnp.sqrt(2.0), "matrix_of": jnp.eye(width) + noise}


@lw.op
def of_word(p: Any, word: Any, label: Any) -> Any:
    a = jnp.tanh(p["words"][word])
    return a, p["matrix_of"][word], judged(a @ p["out"], label)


@lw.op
def of_pair(p: Any, left: Any, right: Any, label: Any) -> Any:
    a, first, below = left
    b, second, beside = right
    vector = jnp.tanh(jnp.concatenate([second @ a, first @ b]) @ p["vector"])
    matrix = p["matrix"] @ jnp.concatenate([first, second])
    return vector, matrix, judged(vector @ p["out"], label) + below + beside


def phrase(p: dict[str, Any], tree: Any) -> Any:
    label, word, *parts = tree
    if parts:
        return of_pair(p, phrase(p, parts[0]), phrase(p, parts[1]), label)
    return of_word(p, word, label)


def measure(p: dict[str, Any], tree: Any) -> Any:
    return phrase(p, tree)[2]


def batch(seed: int, count: int = 32, **sizes: Any) -> list[Any]:
    return tree_lstm.trees(count, seed, **sizes)


def main(steps: int = 100) -> tuple[float, float]:
    params, _ = training.fit(measure, init(16), batch, steps)
    fresh = batch(10_000, 200)
    right = training.report(
        "MV-RNN, all phrases", measure, params, fresh[:64], ("the commonest label", common(fresh))
    )
    return right, common(fresh)


def common(trees: list[Any]) -> float:
    """The share of the commonest label, of phrases with more than a word alone."""
    todo, labels = list(trees), []
    for tree in todo:
        todo.extend(tree[2:])
        labels.append((0, tree[0]))
    return training.most_common(labels, labels)


if __name__ == "__main__":
    main()
