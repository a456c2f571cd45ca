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
import optax

import lanewise as lw
import made
import training
from cells import judged, weights


@lw.record
class Phrase:
    label: int
    word: int = 0
    left: Phrase | None = None
    right: Phrase | None = None


def init(width):
    leaf = {"leaf": (width, 3 * width), "leaf_bias": (3 * width,)}
    pair = {"pair": (2 * width, 5 * width), "pair_bias": (5 * width,)}
    return weights(0, words=(len(made.WORDS), width), **leaf, **pair, out=(width, made.LABELS))


@lw.program
def phrase(p, tree):
    """h and c of a phrase, and `[loss, right, 1]` summed over it and all phrases inside."""
    if tree.left is None:
        i, o, u = jnp.split(p["words"][tree.word] @ p["leaf"] + p["leaf_bias"], 3)
        c = jax.nn.sigmoid(i) * jnp.tanh(u)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, c, judged(h @ p["out"], tree.label)
    h0, c0, first = phrase(p, tree.left)
    h1, c1, second = phrase(p, tree.right)
    i, f, g, o, u = jnp.split(jnp.concatenate([h0, h1]) @ p["pair"] + p["pair_bias"], 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f) * c0 + jax.nn.sigmoid(g) * c1
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, c, judged(h @ p["out"], tree.label) + first + second


def loss(p, trees):
    """The mean loss of all phrases, and the share that is right."""
    return training.means(lw.vmap(phrase, in_axes=(None, 0))(p, trees)[2])


def train(p, batches):
    optimizer = optax.adam(0.01)
    update, state = jax.jit(optimizer.update), optimizer.init(p)
    for trees in batches:
        (value, right), grads = jax.value_and_grad(loss, has_aux=True)(p, trees)
        updates, state = update(grads, state)
        p = optax.apply_updates(p, updates)
        yield p, value, right


# --8<-- [end:model]


def batch(seed: int, count: int = 64, **sizes: Any) -> list[Any]:
    """Trees of phrases, read from their text."""

    def node(label: str, word: str | None, parts: list[Any]) -> Any:
        return Phrase(int(label), 0 if word is None else made.WORD[word], *parts)

    return lw.records.bracketed(made.sentiment(count, seed, **sizes), node)


@lw.program
def measure(p, tree):
    """`[loss, right, of]` of all phrases, as the other models give it."""
    return phrase(p, tree)[2]


run = lw.vmap(measure, in_axes=(None, 0))


def words_of(tree: Any) -> list[int]:
    return [tree.word] if tree.left is None else words_of(tree.left) + words_of(tree.right)


def by_words(train: list[Any], fresh: list[Any]) -> float:
    """The accuracy of a bag of words at the roots of fresh trees."""
    bags = [([words_of(t) for t in found], [t.label for t in found]) for found in (train, fresh)]
    return training.bag_of_words(*bags[0], *bags[1], len(made.WORDS))


def roots_right(p: Any, trees: Any) -> float:
    h, _, _ = lw.vmap(phrase, in_axes=(None, 0))(p, trees)
    return float(jnp.mean(jnp.argmax(h @ p["out"], 1) == trees.roots.label))


def main(steps: int = 120, plot: str | None = None) -> tuple[float, float]:
    fresh = batch(10_000, 256)
    baseline = by_words(batch(20_000, 3000), fresh)
    held_out, losses, rights = lw.pack(fresh), [], []
    params = init(32)
    batches = map(training.packed(batch), range(steps))
    for step, (trained, value, right) in enumerate(train(params, batches)):
        params = trained
        losses.append(float(value))
        rights.append(roots_right(params, held_out))
        if step % 20 == 0 or step == steps - 1:
            print(f"  step {step:4d}: loss {value:.3f}, phrases right {right:.1%}", flush=True)
    print(
        f"Tree-LSTM: the roots of {rights[-1]:.1%} of {len(fresh)} fresh trees right;"
        f" a bag of words: {baseline:.1%}"
    )
    if plot:
        training.plot(plot, losses, rights, baseline)
    return rights[-1], baseline


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--plot", help="where to draw the loss and the accuracy")
    main(**vars(parser.parse_args()))
