"""NestedRNN: a GRU over the sentences of a document, each of which an inner RNN reads word by word.

Both loops have another length each time (`made.documents`). The weights are a Flax NNX module: its parameters are
split off as dictionaries, which are what is differentiated and what the program is given, and NNX's layers run inside.

    python examples/models/nested_rnn.py
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
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
    """The module with these parameters. In a program this costs nothing: it runs when the program is traced."""
    graph, state = _split(p["out"]["kernel"].shape[0])
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, p)
    return nnx.merge(graph, state)


@lw.record
class Sentence:
    words: list[int]


@lw.record
class Document:
    sentences: list[Sentence]
    label: int


@lw.program
def measure(p, document):
    m = module(p)
    outer = jnp.zeros(m.out.in_features)
    for sentence in document.sentences:
        x = jnp.zeros_like(outer)
        for word in sentence.words:
            x = jnp.tanh(m.inner(jnp.concatenate([m.words(word), x])))
        z, r = jnp.split(jax.nn.sigmoid(m.gates(jnp.concatenate([x, outer]))), 2)
        new = jnp.tanh(m.change(jnp.concatenate([x, r * outer])))
        outer = z * outer + (1 - z) * new
    return judged(m.out(outer), document.label)


run = lw.vmap(measure, in_axes=(None, 0))


def batch(seed: int, count: int = 64, **sizes: Any) -> list[Any]:
    documents = made.documents(count, seed, **sizes)
    return [Document([Sentence(s) for s in found], label) for found, label in documents]


def main(steps: int = 150) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)

    def bags(documents: list[Any]) -> tuple[Any, Any]:
        bags = [[w for s in document.sentences for w in s.words] for document in documents]
        return bags, [document.label for document in documents]

    words = training.bag_of_words(
        *bags(batch(30_000, 3000)), *bags(batch(10_000, 500)), len(made.WORDS)
    )
    right = training.report(
        "NestedRNN", run, params, lw.pack(batch(10_000)), ("a bag of words", words)
    )
    return right, words


if __name__ == "__main__":
    main()
