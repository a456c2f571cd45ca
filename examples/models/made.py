"""Data for the models, made by known rules: nothing is downloaded, and the best answer is known.

Each function gives a number of fresh instances for a seed. A rule needs what its model is for: a bag of words, a
window or a plain recurrence does not get there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Random = np.random.Generator

# ---------------------------------------------------------------------------------------------------------------------
# Sentiment: words have a value from -2 to 2, a phrase has the sum of its parts, cut to that range, and a negation turns
# the value of all beside it round.

NEGATIONS = ("not", "never", "hardly")
VALUES = {
    -2: ("awful", "dire", "vile", "dismal"),
    -1: ("bad", "dull", "weak", "slow"),
    0: ("film", "plot", "cast", "scene", "music", "story", "a", "the", "of", "and"),
    1: ("good", "fun", "neat", "warm"),
    2: ("superb", "great", "moving", "brilliant"),
}
VALUE = {word: value for value, words in VALUES.items() for word in words}
WORDS = (*VALUE, *NEGATIONS)
WORD = {word: number for number, word in enumerate(WORDS)}
LABELS = 5


def _value(parts: list[tuple[str, int]]) -> int:
    """The value of a phrase; a part is a word and its value, or "" and the value of a phrase."""
    total = sum(value for _, value in parts)
    flips = sum(word in NEGATIONS for word, _ in parts)
    return int(np.clip(-total if flips % 2 else total, -2, 2))


def _word(rng: Random, flips: float) -> tuple[str, int]:
    if rng.random() < flips:
        return str(rng.choice(NEGATIONS)), 0
    value = int(rng.choice((-2, -1, 0, 1, 2), p=(0.12, 0.18, 0.4, 0.18, 0.12)))
    return str(rng.choice(VALUES[value])), value


def sentiment(count: int, seed: int, leaves: tuple[int, int] = (4, 16)) -> str:
    """Binary trees with a label (0 to 4) at every phrase, in brackets, one a line, as the Stanford treebank has them.

    >>> print(sentiment(1, seed=2, leaves=(3, 4)))
    (3 (2 never) (1 (3 warm) (0 vile)))
    """
    rng = np.random.default_rng(seed)

    def grow(size: int, may_flip: bool = False) -> tuple[str, str, int]:
        if size == 1:
            word, value = _word(rng, 0.3 if may_flip else 0.0)
            return f"({value + 2} {word})", word, value
        # A negation is a word on the left of a longer phrase.
        first = 1 if rng.random() < 0.4 else int(rng.integers(1, size))
        left, right = grow(first, may_flip=first == 1), grow(size - first)
        value = _value([left[1:], right[1:]])
        return f"({value + 2} {left[0]} {right[0]})", "", value

    return "\n".join(grow(int(rng.integers(*leaves)))[0] for _ in range(count))


def dependents(count: int, seed: int, size: tuple[int, int] = (3, 12)) -> list[Any]:
    """Trees with a word at every node and any number of children: `(word, label, children)`, nested."""
    rng = np.random.default_rng(seed)

    def grow(size: int) -> tuple[tuple[Any, ...], tuple[str, int]]:
        word, value = _word(rng, 0.0 if size == 1 else 0.25)
        kids = []
        left = size - 1
        while left > 0:
            part = int(rng.integers(1, left + 1))
            kids.append(grow(part))
            left -= part
        total = _value([(word, value), *(("", v) for _, (_, v) in kids)])
        return (WORD[word], total + 2, [tree for tree, _ in kids]), (word, total)

    return [grow(int(rng.integers(*size)))[0] for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------------------
# Documents: a sentence has the value of the last strong word in it, and a document the sign of their sum.


def documents(count: int, seed: int, sentences: tuple[int, int] = (2, 6)) -> list[tuple[Any, int]]:
    """`(sentences, label)`: sentences are lists of word numbers; the label is 0, 1 or 2."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        total, made = 0, []
        for _ in range(int(rng.integers(*sentences))):
            words = [_word(rng, 0.0) for _ in range(int(rng.integers(2, 9)))]
            strong = [value for _, value in words if value]
            total += int(np.sign(strong[-1])) if strong else 0
            made.append([WORD[word] for word, _ in words])
        found.append((made, int(np.sign(total)) + 1))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Tagging: short words are known, long ones are made of letters, and their ending shows the tag, but for -s, which is a
# noun after an article or adjective and a verb elsewhere; "that" is an article before nouns and adjectives.

TAGS = ("article", "adjective", "noun", "verb", "adverb", "pronoun")
TAG = {tag: number for number, tag in enumerate(TAGS)}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
KNOWN = (
    "the",
    "a",
    "that",
    "she",
    "they",
    "it",
    "sees",
    "has",
    "dog",
    "house",
    "old",
    "red",
    "soon",
)
KNOWN_WORD = {word: number for number, word in enumerate(KNOWN)}
ENDINGS = {"adjective": "ic", "noun": "er", "verb": "ize", "adverb": "ly"}


def tagged(count: int, seed: int, words: tuple[int, int] = (4, 16)) -> list[list[tuple[str, int]]]:
    """Sentences of `(word, tag)`.

    >>> [(word, TAGS[tag]) for word, tag in tagged(1, seed=3, words=(4, 5))[0]]
    [('that', 'pronoun'), ('sees', 'verb'), ('she', 'pronoun'), ('gerts', 'verb')]
    """
    rng = np.random.default_rng(seed)

    def spelled(tag: str) -> str:
        stem = "".join(rng.choice(list(LETTERS), size=int(rng.integers(3, 6))))
        also_s = tag in ("noun", "verb") and rng.random() < 0.5
        return stem + ("s" if also_s else ENDINGS[tag])

    def one(tag: str, known: tuple[str, ...], rare: float = 0.6) -> tuple[str, int]:
        word = spelled(tag) if tag in ENDINGS and rng.random() < rare else str(rng.choice(known))
        return word, TAG[tag]

    def subject() -> list[tuple[str, int]]:
        if rng.random() < 0.3:
            return [one("pronoun", ("that", "she", "they", "it"))]
        found = [one("article", ("the", "a", "that"))]
        while rng.random() < 0.4:
            found.append(one("adjective", ("old", "red")))
        return [*found, one("noun", ("dog", "house"))]

    found = []
    for _ in range(count):
        sentence: list[tuple[str, int]] = []
        size = int(rng.integers(*words))
        while len(sentence) < size:
            sentence += [*subject(), one("verb", ("sees", "has"))]
            if rng.random() < 0.4:
                sentence.append(one("adverb", ("soon",)))
        found.append(sentence[:size])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Parsing: a verb with a subject and objects; nouns with articles and adjectives before them and phrases behind them.
# "of" belongs to the noun before it, "with" to the verb.

CLASSES = ("verb", "noun", "article", "adjective", "of", "with", "adverb")
CLASS = {name: number for number, name in enumerate(CLASSES)}


def parsed(count: int, seed: int, deep: float = 0.4) -> str:
    """Sentences with their dependency trees, as CoNLL-U."""
    rng = np.random.default_rng(seed)
    return "\n\n".join(_conllu(_clause(rng, deep)) for _ in range(count)) + "\n"


def _clause(rng: Random, deep: float) -> list[list[Any]]:
    """Words in order, each `[class, head's word or None]`; the verb is the root."""
    verb: list[Any] = ["verb", None]

    def noun(head: list[Any], depth: int = 0) -> list[list[Any]]:
        me: list[Any] = ["noun", head]
        before = [["article", me]] if rng.random() < 0.7 else []
        before += [["adjective", me] for _ in range(int(rng.integers(0, 3)))]
        behind: list[list[Any]] = []
        if depth < 3 and rng.random() < deep:
            link: list[Any] = ["of", me]
            behind = [link, *noun(link, depth + 1)]
        return [*before, me, *behind]

    words = [*noun(verb), verb]
    if rng.random() < 0.4:
        words.append(["adverb", verb])
    if rng.random() < 0.8:
        words += noun(verb)
    while rng.random() < deep:
        link: list[Any] = ["with", verb]
        words += [link, *noun(link)]
    return words


def _conllu(words: list[list[Any]]) -> str:
    place = {id(word): i for i, word in enumerate(words, 1)}
    rows = [
        (str(i), name, name, name, "_", "_", str(place.get(id(head), 0)), "_", "_", "_")
        for i, (name, head) in enumerate(words, 1)
    ]
    return "\n".join("\t".join(row) for row in rows)


# ---------------------------------------------------------------------------------------------------------------------
# Trees that grow from a symbol by rules, to a depth.

RULES = ((1, 2), (3,), (4, 0, 4), (5, 5), (), (2, 1))
SYMBOLS = len(RULES)
DEPTHS = (2, 5)


@dataclass(frozen=True)
class Plant:
    """A symbol and what grows from it."""

    symbol: int
    children: tuple[Plant, ...]

    @property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)


def plant(symbol: int, depth: int) -> Plant:
    """What the rules make of a symbol.

    >>> plant(0, 2).size
    7
    """
    grown = RULES[symbol] if depth else ()
    return Plant(symbol, tuple(plant(s, depth - 1) for s in grown))


def plants(count: int, seed: int) -> list[tuple[int, int, Plant]]:
    """`(symbol, depth, the tree)`: a model gets the first two and grows the third."""
    rng = np.random.default_rng(seed)
    pairs = [(int(rng.integers(SYMBOLS)), int(rng.integers(*DEPTHS))) for _ in range(count)]
    return [(symbol, depth, plant(symbol, depth)) for symbol, depth in pairs]


# ---------------------------------------------------------------------------------------------------------------------
# Brackets of several kinds, of which the closing ones do not show the kind.

KINDS = 3
CLOSE = KINDS  # the symbol of all closing brackets


def brackets(
    count: int, seed: int, pairs: tuple[int, int] = (4, 16)
) -> list[list[tuple[int, int]]]:
    """Lists of `(symbol, kind)`: a closing bracket has the kind of the one it closes.

    >>> brackets(1, seed=0, pairs=(3, 4))
    [[(2, 2), (1, 1), (0, 0), (3, 0), (3, 1), (3, 2)]]
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        left, stack, made = int(rng.integers(*pairs)), [], []
        while left or stack:
            if left and (not stack or rng.random() < 0.55):
                stack.append(int(rng.integers(KINDS)))
                made.append((stack[-1], stack[-1]))
                left -= 1
            else:
                made.append((CLOSE, stack.pop()))
        found.append(made)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Circuits: gates that read what was made before, several of them the same.

GATES = ("false", "true", "not", "and", "or", "xor")
MOST_GATES = 40


def circuits(
    count: int, seed: int, size: tuple[int, int] = (10, 30)
) -> list[list[tuple[int, tuple[int, ...], int]]]:
    """Lists of `(gate, what it reads, its value)`, at most 40, in an order in which what is read comes first."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        nodes: list[tuple[int, tuple[int, ...], int]] = []
        for i in range(int(rng.integers(*size))):
            gate = int(rng.integers(2)) if i < 4 else int(rng.integers(2, len(GATES)))
            many = 0 if gate < 2 else 1 if gate == 2 else int(rng.integers(2, 4))
            near = rng.choice(np.arange(max(0, i - 8), i), size=many, replace=False)
            reads = tuple(int(r) for r in near)
            bits = [nodes[r][2] for r in reads]
            value = {
                "false": 0,
                "true": 1,
                "not": 1 - sum(bits),
                "and": int(all(bits)),
                "or": int(any(bits)),
                "xor": sum(bits) % 2,
            }[GATES[gate]]
            nodes.append((gate, reads, value))
        found.append(nodes)
    return found
