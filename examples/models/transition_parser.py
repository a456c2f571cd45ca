"""An arc-hybrid transition parser with stack LSTMs (Dyer et al. 2015), trained with a dynamic oracle.

The parser shifts words to a stack, and pops them as dependents of the next word (`LEFT`) or of the word below
(`RIGHT`). What it does depends on values, and it learns from where its own decisions lead (Goldberg and Nivre 2013):
at each step the oracle says which transitions lose no arc that can still be had. To shift is to call and to pop is to
return: a pop goes back to an older state of the LSTM, which is that of an older frame. A head is changed by its
dependent when an arc is made.

Sentences are CoNLL-U (`made.parsed`), read by `lw.records.conllu`.

    python examples/models/transition_parser.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
import made
import training
from cells import lstm, lstm_weights, weights

SHIFT, LEFT, RIGHT = range(3)
# Words of a sentence, at most, the root included.
MOST = 48


def init(width: int) -> dict[str, Any]:
    return {
        "words": weights(0, words=(len(made.CLASSES) + 1, width))["words"],
        "stack": lstm_weights(1, width, width),
        "buffer": lstm_weights(2, width, width),
        "head": weights(3, w=(2 * width, width), b=(width,)),
        "act": weights(4, w=(2 * width, width), b=(width,), out=(width, 3)),
    }


@lw.record
class Sentence:
    """Numbers of words, of which the one after the last is the root, and the head of each; -1 beyond."""

    words: np.ndarray
    heads: np.ndarray
    size: int


def oracle(s: Any, on: Any, top: Any, under: Any, front: Any) -> tuple[Any, Any]:
    """Which transitions are legal, and which of these lose no arc.

    `on`: which words are on the stack; `top` and `under` are the last two, -1 for none.
    """
    more, some, deep = front < s.size, top >= 0, under >= 0
    legal = jnp.stack([more, some & (more | ~deep), deep])
    head, wanted = s.heads[top], s.heads[front]
    held = jnp.sum(on & (s.heads == front))
    waiting = jnp.sum((jnp.arange(MOST) >= front) & (s.heads == top))
    by_shift = held + (on[wanted] & (wanted != top))
    by_left = waiting + ((head > front) | (deep & (head == under)))
    lost = jnp.stack([by_shift, by_left, waiting + (head >= front)])
    return legal, legal & (lost == jnp.min(jnp.where(legal, lost, MOST)))


def decide(p: Any, stack: Any, buffer: Any, legal: Any, good: Any) -> tuple[Any, Any]:
    """The best legal transition, and `[loss, right, 1, 0]`: the loss is that of all that lose nothing."""
    both = jnp.concatenate([stack, buffer])
    scores = jnp.tanh(both @ p["act"]["w"] + p["act"]["b"]) @ p["act"]["out"]
    scores = jnp.where(legal, scores, -1e9)
    best = jnp.argmax(scores).astype(jnp.int32)
    loss = jax.nn.logsumexp(scores) - jax.nn.logsumexp(jnp.where(good, scores, -1e9))
    return best, jnp.stack([loss, good[best] * 1.0, jnp.ones_like(loss), jnp.zeros_like(loss)])


def joined(p: Any, head: Any, dependent: Any) -> Any:
    return jnp.tanh(jnp.concatenate([head, dependent]) @ p["head"]["w"] + p["head"]["b"])


@lw.program
def element(p, s, ahead, place, below, on, front, found):
    """An element of the stack, until it is popped: gives how, its vector, and how things are then.

    `place`: its word, the word under it, and its vector; without a word (-1) it is the bottom, which is never popped.
    `below`: the state of the LSTM under it. `front`: the first word of the buffer, its vector, and the state there.
    """
    word, under, x = place
    h, c = lstm(p["stack"], x, *below)
    h, c = jnp.where(word < 0, 0.0, h), jnp.where(word < 0, 0.0, c)
    act = SHIFT
    while act == SHIFT and (word >= 0 or front[0] < s.size):
        legal, good = oracle(s, on, word, under, front[0])
        act, here = decide(p, h, front[2], legal, good)
        found += here
        if act == SHIFT:
            at, vector, _, _ = front
            rest = (at + 1, p["words"][s.words[at + 1]], ahead[at + 1, 0], ahead[at + 1, 1])
            pushed, on = (at, word, vector), on.at[at].set(True)
            how, other, on, front, found = element(p, s, ahead, pushed, (h, c), on, rest, found)
            if how == RIGHT:
                x = joined(p, x, other)
                h, c = lstm(p["stack"], x, *below)
    on = on.at[word].set(False)
    head = front[0] if act == LEFT else under
    found += jnp.array([0.0, 0.0, 0.0, 1.0]) * ((word >= 0) & (head == s.heads[word]))
    if act == LEFT:
        at, vector, _, _ = front
        vector = joined(p, vector, x)
        front = (at, vector, *lstm(p["buffer"], vector, ahead[at + 1, 0], ahead[at + 1, 1]))
    return act, x, on, front, found


@lw.program
def read_ahead(p, s):
    """The buffer is read from its end: its state at a word, h and c, knows all words from there on."""
    h = c = jnp.zeros(p["words"].shape[1])
    ahead = jnp.zeros((MOST + 1, 2, *h.shape))
    for k in range(s.size + 1):
        i = s.size - k
        h, c = lstm(p["buffer"], p["words"][s.words[i]], h, c)
        ahead = ahead.at[i].set(jnp.stack([h, c]))
    return ahead


@lw.program
def parse(p, s):
    """`[loss, right, of]` of all transitions, and how many heads are right."""
    ahead = read_ahead(p, s)
    first = p["words"][s.words[0]]
    zero = jnp.zeros_like(first)
    front = (0, first, ahead[0, 0], ahead[0, 1])
    bottom, on = (-1, -1, zero), jnp.zeros(MOST, bool)
    return element(p, s, ahead, bottom, (zero, zero), on, front, jnp.zeros(4))[-1]


@lw.program
def measure(p, s):
    return parse(p, s)[:3]


run = lw.vmap(measure, in_axes=(None, 0))


def sentence(read: Any) -> Sentence:
    size = len(read.words)
    words, heads = np.full(MOST, -1, np.int32), np.full(MOST, -1, np.int32)
    words[: size + 1] = [*(made.CLASS[word.form] for word in read.words), len(made.CLASSES)]
    heads[:size] = size
    for word in read.words:
        for child in word.children:
            heads[child.position - 1] = word.position - 1
    return Sentence(words, heads, size)


def batch(seed: int, count: int = 32, deep: float = 0.3) -> list[Sentence]:
    """Sentences that are short enough."""
    found = lw.records.conllu(made.parsed(2 * count, seed, deep))
    return [sentence(read) for read in found if len(read.words) < MOST][:count]


def main(steps: int = 40) -> tuple[float, float]:
    params, _ = training.fit(run, init(32), training.packed(batch), steps)
    fresh = batch(10_000, 128)
    right = lw.vmap(parse, in_axes=(None, 0))(params, lw.pack(fresh))[:, 3].sum()
    uas = float(right / sum(s.size for s in fresh))
    nexts = np.concatenate([s.heads[: s.size] == np.arange(1, s.size + 1) for s in fresh])
    print(f"parser: {uas:.1%} of heads right; the next word: {nexts.mean():.1%}")
    return uas, float(nexts.mean())


if __name__ == "__main__":
    main()
