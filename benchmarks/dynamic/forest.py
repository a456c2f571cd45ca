"""Random binary trees and the weights of a Tree-LSTM, as NumPy arrays that all contenders take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WORDS = 1000
LEAVES = (20, 41)


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one array, children before parents; -1 for the children of a leaf."""

    left: np.ndarray
    right: np.ndarray
    word: np.ndarray
    root: np.ndarray

    def trees(self) -> list[Any]:
        """The same as Python objects: a word, or a pair of trees."""
        made: list[Any] = []
        for left, right, word in zip(self.left.tolist(), self.right.tolist(), self.word.tolist()):
            made.append(word if left < 0 else (made[left], made[right]))
        return [made[r] for r in self.root.tolist()]


def forest(trees: int, seed: int) -> Forest:
    rng = np.random.default_rng(seed)
    left: list[int] = []
    right: list[int] = []

    def grow(leaves: int) -> int:
        children = (-1, -1)
        if leaves > 1:
            first = int(rng.integers(1, leaves))
            children = grow(first), grow(leaves - first)
        left.append(children[0])
        right.append(children[1])
        return len(left) - 1

    root = [grow(int(rng.integers(*LEAVES))) for _ in range(trees)]
    word = rng.integers(0, WORDS, len(left))
    return Forest(*(np.array(x, np.int32) for x in (left, right, word, root)))


def weights(width: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    return {
        "words": rng.standard_normal((WORDS, width)).astype(np.float32),
        "leaf": matrix(width, 3 * width),
        "leaf_bias": np.zeros(3 * width, np.float32),
        "inner": matrix(2 * width, 5 * width),
        "inner_bias": np.zeros(5 * width, np.float32),
    }
