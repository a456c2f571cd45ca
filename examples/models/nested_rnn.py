"""NestedRNN: a GRU over the sentences of a document, each of which an inner RNN reads word by word.

Both loops have another length each time (`made.documents`). The weights are a Flax NNX module: its parameters are
split off as dictionaries, which are what is differentiated and what ops are given, and NNX's layers run inside the ops.

    python examples/models/nested_rnn.py
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import lanewise as lw
import made
import training
from cells import judged


class Nested(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.words = nnx.Embed(len(made.WORDS), width, rngs=rngs)
        self.inner = nnx.Linear(2 * width, width, rngs=rngs)
        self.gates = nnx.Linear(2 * width, 2 * width, rngs=rngs)
        self.change = nnx.Linear(2 * width, width, rngs=rngs)
        self.out = nnx.Linear(width, 3, rngs=rngs)


@functools.lru_cache(maxsize=8)
def _split(width: int) -> tuple[Any, Any]:
    return nnx.split(Nested(width, nnx.Rngs(0)))


def init(width: int) -> Any:
    """The parameters, as dictionaries."""
    return nnx.to_pure_dict(_split(width)[1])


def module(p: Any) -> Nested:
    """The module with these parameters. Inside an op this costs nothing: it runs when the op is traced."""
    graph, state = _split(p["out"]["kernel"].shape[0])
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, p)
    return nnx.merge(graph, state)


@lw.op
def read(p: Any, word: Any, h: Any) -> Any:
    m = module(p)
    return jnp.tanh(m.inner(jnp.concatenate([m.words(jnp.asarray(word)), h])))


@lw.op
def follow(p: Any, x: Any, h: Any) -> Any:
    m = module(p)
    z, r = jnp.split(jax.nn.sigmoid(m.gates(jnp.concatenate([x, h]))), 2)
    new = jnp.tanh(m.change(jnp.concatenate([x, r * h])))
    return z * h + (1 - z) * new


@lw.op
def choose(p: Any, h: Any, label: Any) -> Any:
    return judged(module(p).out(h), label)


def measure(p: Any, document: Any) -> Any:
    sentences, label = document
    zero = np.zeros(p["out"]["kernel"].shape[0], np.float32)
    outer = zero
    for sentence in sentences:
        inner = zero
        for word in sentence:
            inner = read(p, word, inner)
        outer = follow(p, inner, outer)
    return choose(p, outer, label)


def batch(seed: int, count: int = 64, **sizes: Any) -> list[Any]:
    return made.documents(count, seed, **sizes)


def main(steps: int = 150) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)

    def bags(documents: list[Any]) -> Any:
        return [[w for s in found for w in s] for found, _ in documents], [d[1] for d in documents]

    words = training.bag_of_words(
        *bags(batch(30_000, 3000)), *bags(batch(10_000, 500)), len(made.WORDS)
    )
    right = training.report("NestedRNN", measure, params, batch(10_000), ("a bag of words", words))
    return right, words


if __name__ == "__main__":
    main()
