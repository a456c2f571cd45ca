"""A BiLSTM tagger that spells rare words with an LSTM over their letters (Neubig et al. 2017, section 4).

Words that the vocabulary does not know are read letter by letter; which words, and how many letters, differs from
sentence to sentence (`made.tagged`).

    python examples/models/tagger.py
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

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


@lw.op
def look(table: Any, number: Any) -> Any:
    return table[number]


@lw.op
def spelled(letters: Any, cell: Any, letter: Any, state: Any) -> Any:
    return lstm(cell, letters[letter], *state)


@lw.op
def step(cell: Any, x: Any, state: Any) -> Any:
    return lstm(cell, x, *state)


@lw.op
def tag(params: Any, before: Any, after: Any, label: Any) -> Any:
    return judged(jnp.concatenate([before, after]) @ params["w"] + params["b"], label)


def word(p: dict[str, Any], spelling: str, start: Any) -> Any:
    if spelling in made.KNOWN_WORD:
        return look(p["words"], made.KNOWN_WORD[spelling])
    state = start
    for letter in spelling:
        state = spelled(p["letters"], p["spell"], LETTER[letter], state)
    return state[0]


def measure(p: dict[str, Any], sentence: list[tuple[str, int]]) -> Any:
    zero = np.zeros(p["words"].shape[1], np.float32)
    start = (zero, zero)
    vectors = [word(p, spelling, start) for spelling, _ in sentence]

    def run(cell: Any, vectors: Any) -> list[Any]:
        state, found = start, []
        for x in vectors:
            state = step(cell, x, state)
            found.append(state[0])
        return found

    before, after = run(p["forwards"], vectors), run(p["backwards"], vectors[::-1])[::-1]
    labels = [label for _, label in sentence]
    return lw.lazy_sum([tag(p["tag"], *three) for three in zip(before, after, labels)])


def batch(seed: int, count: int = 32, **sizes: Any) -> list[Any]:
    return made.tagged(count, seed, **sizes)


def main(steps: int = 60) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)

    def pairs(seed: int) -> list[tuple[str, int]]:
        # A word that is met once is known by its last two letters.
        return [(word[-2:], tag) for sentence in batch(seed, 400) for word, tag in sentence]

    endings = training.most_common(pairs(30_000), pairs(10_000))
    right = training.report(
        "BiLSTM tagger", measure, params, batch(10_000), ("the word's ending alone", endings)
    )
    return right, endings


if __name__ == "__main__":
    main()
