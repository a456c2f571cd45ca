"""A BiLSTM tagger that spells rare words with an LSTM over their letters (Neubig et al. 2017, section 4).

Words that the vocabulary does not know are read letter by letter; which words, and how many letters, differs from
sentence to sentence (`made.tagged`).

    python examples/models/tagger.py
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import lanewise as lw
import made
import training
from cells import judged, lstm, lstm_weights, weights

LETTER = {letter: number for number, letter in enumerate(made.LETTERS)}


def init(width: int) -> dict[str, Any]:
    return {
        "words": weights(0, words=(len(made.KNOWN), width))["words"],
        "letters": weights(1, words=(len(LETTER), width))["words"],
        "spell": lstm_weights(2, width, width),
        "forwards": lstm_weights(3, width, width),
        "backwards": lstm_weights(4, width, width),
        "tag": weights(5, w=(2 * width, len(made.TAGS)), b=(len(made.TAGS),)),
    }


@lw.record
class Word:
    """A word of a sentence and the one after it. A rare word has no number (-1), and letters."""

    number: int
    letters: list[int]
    label: int
    after: Word | None


@lw.program
def read(p, word, h, c):
    """Reads forwards on its way to the end, and backwards on its way back: the recursion is the BiLSTM.

    Gives the state of the backward LSTM, and `[loss, right, 1]` summed over this word and all after it.
    """
    if word is None:
        zero = jnp.zeros_like(h)
        return zero, zero, jnp.zeros(3)
    x = spelled(p, word.letters) if word.number < 0 else p["words"][word.number]
    h, c = lstm(p["forwards"], x, h, c)
    back, cell, found = read(p, word.after, h, c)
    back, cell = lstm(p["backwards"], x, back, cell)
    logits = jnp.concatenate([h, back]) @ p["tag"]["w"] + p["tag"]["b"]
    return back, cell, found + judged(logits, word.label)


@lw.program
def spelled(p, letters):
    h = c = jnp.zeros(p["words"].shape[1])
    for letter in letters:
        h, c = lstm(p["spell"], p["letters"][letter], h, c)
    return h


@lw.program
def measure(p, sentence):
    start = jnp.zeros(p["words"].shape[1])
    return read(p, sentence, start, start)[2]


run = lw.vmap(measure, in_axes=(None, 0))


def batch(seed: int, count: int = 32, **sizes: Any) -> list[Any]:
    return [sentence(words) for words in made.tagged(count, seed, **sizes)]


def sentence(words: list[tuple[str, int]]) -> Word | None:
    """The first of some words, with the others behind it."""
    first = None
    for spelling, tag in reversed(words):
        number = made.KNOWN_WORD.get(spelling, -1)
        letters = [LETTER[letter] for letter in spelling] if number < 0 else []
        first = Word(number, letters, tag, first)
    return first


def main(steps: int = 60) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)

    def pairs(seed: int) -> list[tuple[str, int]]:
        # A word that is met once is known by its last two letters.
        return [(word[-2:], tag) for words in made.tagged(400, seed) for word, tag in words]

    endings = training.most_common(pairs(30_000), pairs(10_000))
    right = training.report(
        "BiLSTM tagger", run, params, lw.pack(batch(10_000)), ("the word's ending alone", endings)
    )
    return right, endings


if __name__ == "__main__":
    main()
