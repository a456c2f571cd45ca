"""A binary Tree-LSTM (Tai et al. 2015) that learns the sentiment of every phrase, beside a bag of words.

The trees are brackets, as the Stanford Sentiment Treebank has them, of a made language in which a negation turns round
the phrase beside it (`made.sentiment`).

    python examples/models/tree_lstm.py [--steps 120] [--plot loss.png]
"""

from __future__ import annotations

import argparse
from typing import Any

# --8<-- [start:model]
import jax
import jax.numpy as jnp
import numpy as np
import optax

import lanewise as lw
import made
import training
from cells import judged, weights


def init(width):
    leaf = {"leaf": (width, 3 * width), "leaf_bias": (3 * width,)}
    pair = {"pair": (2 * width, 5 * width), "pair_bias": (5 * width,)}
    return weights(0, words=(len(made.WORDS), width), **leaf, **pair, out=(width, made.LABELS))


@lw.op
def of_word(p, word, label):
    i, o, u = jnp.split(p["words"][word] @ p["leaf"] + p["leaf_bias"], 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, c, judged(h @ p["out"], label), jnp.zeros(3)


@lw.op
def of_pair(p, left, right, label):
    gates = jnp.split(jnp.concatenate([left[0], right[0]]) @ p["pair"] + p["pair_bias"], 5)
    i, f, g, o = map(jax.nn.sigmoid, gates[:4])
    c = i * jnp.tanh(gates[4]) + f * left[1] + g * right[1]
    h = o * jnp.tanh(c)
    return h, c, judged(h @ p["out"], label), left[2] + left[3] + right[2] + right[3]


def phrase(p, tree):
    """A tree is `(label, word)` or `(label, None, tree, tree)`: its h and c, the loss there, and that below."""
    label, word, *parts = tree
    below = [phrase(p, part) for part in parts]
    return of_pair(p, *below, label) if parts else of_word(p, word, label)


def loss(p, trees):
    _, _, roots, below = lw.lazy_map(lambda tree: phrase(p, tree), trees)
    return jnp.sum(roots + below, 0)[0] / jnp.sum(roots + below, 0)[2], jnp.mean(roots[:, 1])


def train(p, batches):
    optimizer = optax.adam(0.01)
    update, state = jax.jit(optimizer.update), optimizer.init(p)
    for trees in batches:
        (value, right), grads = jax.value_and_grad(loss, has_aux=True)(p, trees)
        updates, state = update(grads, state)
        p = optax.apply_updates(p, updates)
        yield p, value, right


# --8<-- [end:model]


def trees(count: int, seed: int, **sizes: Any) -> list[Any]:
    """Trees of phrases, read from their text."""

    def node(label: str, word: str | None, parts: list[Any]) -> Any:
        return (int(label), None if word is None else made.WORD[word], *parts)

    return lw.records.bracketed(made.sentiment(count, seed, **sizes), node)


def batch(seed: int, count: int = 64, **sizes: Any) -> list[Any]:
    return trees(count, seed, **sizes)


def measure(p: Any, tree: Any) -> Any:
    """`[loss, right, of]` of all phrases, as the other models give it."""
    _, _, here, below = phrase(p, tree)
    return lw.lazy_sum([here, below])


def words_of(tree: Any) -> list[int]:
    _, word, *parts = tree
    return [word] if not parts else [w for part in parts for w in words_of(part)]


def by_words(train: list[Any], fresh: list[Any]) -> float:
    """The accuracy of a bag of words at the roots of fresh trees."""
    bags = [([words_of(t) for t in found], [t[0] for t in found]) for found in (train, fresh)]
    return training.bag_of_words(*bags[0], *bags[1], len(made.WORDS))


def main(steps: int = 120, plot: str | None = None) -> tuple[float, float]:
    fresh = trees(256, seed=10_000)
    baseline = by_words(trees(3000, seed=20_000), fresh)
    params, losses, rights = init(32), [], []
    batches = (trees(64, seed) for seed in range(steps))
    for step, (trained, value, right) in enumerate(train(init(32), batches)):
        params = trained
        losses.append(float(value))
        rights.append(float(right))
        if step % 20 == 0 or step == steps - 1:
            print(f"  step {step:4d}: loss {value:.3f}, roots right {right:.1%}", flush=True)
    right = float(np.mean([loss(params, fresh[i : i + 64])[1] for i in range(0, 256, 64)]))
    print(
        f"Tree-LSTM: {right:.1%} of {len(fresh)} fresh trees right; a bag of words: {baseline:.1%}"
    )
    if plot:
        training.plot(plot, losses, rights, baseline)
    return right, baseline


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--plot", help="where to draw the loss and the accuracy")
    main(**vars(parser.parse_args()))
