"""An arc-hybrid transition parser with stack LSTMs (Dyer et al. 2015), trained with a dynamic oracle.

The parser shifts words to a stack, and pops them as dependents of the next word (`LEFT`) or of the word below
(`RIGHT`). What it does depends on values, and it learns from where its own decisions lead (Goldberg and Nivre 2013):
at each step the oracle says which transitions lose no arc that can still be had. The stack is a Python list of LSTM
states, so that a pop goes back to an older state; a head is changed by its dependent when an arc is made.

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


def init(width: int) -> dict[str, Any]:
    return {
        "words": weights(0, words=(len(made.CLASSES) + 1, width))["words"],
        "stack": lstm_weights(1, width, width),
        "buffer": lstm_weights(2, width, width),
        "head": weights(3, w=(2 * width, width), b=(width,)),
        "act": weights(4, w=(2 * width, width), b=(width,), out=(width, 3)),
    }


@lw.op
def look(words: Any, word: Any) -> Any:
    return words[word]


@lw.op
def put(head: Any, cell: Any, x: Any, dependent: Any, joins: Any, h: Any, c: Any) -> Any:
    """A vector, changed by a dependent if one joins it, and the state of a reader after it.

    One op for both: all transitions of a turn that put something on the stack, or on the buffer, run together.
    """
    changed = jnp.tanh(jnp.concatenate([x, dependent]) @ head["w"] + head["b"])
    x = jnp.where(joins, changed, x)
    return x, *lstm(cell, x, h, c)


@lw.op
def decide(act: Any, stack: Any, buffer: Any, legal: Any, good: Any, found: Any) -> Any:
    """The best legal transition, and `[loss, right, of]` so far: the loss is that of all that lose nothing."""
    scores = jnp.tanh(jnp.concatenate([stack, buffer]) @ act["w"] + act["b"]) @ act["out"]
    scores = jnp.where(legal, scores, -1e9)
    best = jnp.argmax(scores)
    loss = jax.nn.logsumexp(scores) - jax.nn.logsumexp(jnp.where(good, scores, -1e9))
    return best, found + jnp.stack([loss, good[best] * 1.0, jnp.ones_like(loss)])


class Sentence:
    """Numbers of words, the last of which is the root, and the head of each."""

    def __init__(self, read: Any) -> None:
        self.words = [made.CLASS[word.form] for word in read.words] + [len(made.CLASSES)]
        self.heads = [len(read.words)] * len(read.words)
        for word in read.words:
            for child in word.children:
                self.heads[child.position - 1] = word.position - 1


def oracle(heads: list[int], stack: list[int], front: int) -> tuple[np.ndarray, np.ndarray]:
    """Which transitions are legal, and which of these lose no arc."""
    root = len(heads)
    legal = np.array([front < root, bool(stack), len(stack) > 1])
    if front == root and len(stack) > 1:
        legal[LEFT] = False
    lost = np.zeros(3, int)
    if front < root:
        lost[SHIFT] = (heads[front] in stack[:-1]) + sum(heads[s] == front for s in stack)
    if stack:
        top = stack[-1]
        waiting = sum(heads[b] == top for b in range(front, root))
        lost[LEFT] = waiting + (heads[top] > front or heads[top] in stack[-2:-1])
        lost[RIGHT] = waiting + (heads[top] >= front)
    return legal, legal & (lost == lost[legal].min())


def parse(p: dict[str, Any], sentence: Sentence) -> tuple[Any, list[int]]:
    """`[loss, right, of]` of all transitions, and the heads that were found."""
    zero = np.zeros(p["words"].shape[1], np.float32)
    start = (zero, zero, zero)
    # The buffer is read from its end: its state at a word knows all words from there on.
    buffer = [start]
    for word in reversed(sentence.words):
        x = look(p["words"], word)
        buffer.append(put(p["head"], p["buffer"], x, zero, False, *buffer[-1][1:]))
    stack: list[tuple[int, Any]] = []
    heads, found = [-1] * len(sentence.heads), np.zeros(3, np.float32)
    front = 0
    while front < len(heads) or stack:
        top = stack[-1][1] if stack else start
        under = stack[-2][1] if len(stack) > 1 else start
        legal, good = oracle(sentence.heads, [i for i, _ in stack], front)
        best, found = decide(p["act"], top[1], buffer[-1][1], legal, good, found)
        act = best.item()
        if act == SHIFT:
            x = buffer.pop()[0]
            stack.append((front, put(p["head"], p["stack"], x, zero, False, *top[1:])))
            front += 1
        elif act == LEFT:
            heads[stack.pop()[0]] = front
            x = buffer.pop()[0]
            buffer.append(put(p["head"], p["buffer"], x, top[0], True, *buffer[-1][1:]))
        else:
            dependent, _ = stack.pop()
            head, _ = stack.pop()
            heads[dependent] = head
            below = stack[-1][1] if stack else start
            joined = put(p["head"], p["stack"], under[0], top[0], True, *below[1:])
            stack.append((head, joined))
    return found, heads


def measure(p: dict[str, Any], sentence: Sentence) -> Any:
    return parse(p, sentence)[0]


def batch(seed: int, count: int = 32, deep: float = 0.3) -> list[Sentence]:
    return [Sentence(read) for read in lw.records.conllu(made.parsed(count, seed, deep))]


def main(steps: int = 40) -> tuple[float, float]:
    params, _ = training.fit(measure, init(32), batch, steps)
    fresh = batch(10_000, 32)

    def share(sentence: Sentence) -> Any:
        found = parse(params, sentence)[1]
        pairs = list(zip(found, sentence.heads, strict=True))
        return np.float32(sum(a == b for a, b in pairs)), np.float32(len(pairs))

    right, of = lw.lazy_map(share, fresh)
    uas = float(right.sum() / of.sum())
    nexts = [i + 1 == head for s in fresh for i, head in enumerate(s.heads)]
    print(f"parser: {uas:.1%} of heads right; the next word: {np.mean(nexts):.1%}")
    return uas, float(np.mean(nexts))


if __name__ == "__main__":
    main()
