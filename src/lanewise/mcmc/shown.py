"""What is kept of draws: named quantities, made of positions a stretch at a time.

`Model.shown` is compiled once, for a block of positions, whatever the numbers of chains and draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lanewise.mcmc.inference import named
from lanewise.mcmc.space import KEPT
from lanewise.mcmc.start import Layout, hashable

# A block has at most so many positions, and numbers.
MOST_ROWS, MOST_NUMBERS = 4096, 2**20


class Shown:
    """Vectors of chains and draws to named arrays; `shown` is a model's, None shows positions themselves."""

    def __init__(self, shown: Callable[..., Any] | None, layout: Layout) -> None:
        self.layout = layout
        self.rows = max(1, min(MOST_ROWS, MOST_NUMBERS // max(layout.size, 1)))
        self.block = None if shown is None else of_block(hashable(shown), layout)

    def __call__(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Quantities by name, with the axes of chains and draws in front."""
        if self.block is None:
            return named(self.layout.position(vectors))
        chains, draws, dimensions = vectors.shape
        flat = vectors.reshape(-1, dimensions)
        parts = []
        for at in range(0, flat.shape[0], self.rows):
            part = flat[at : at + self.rows]
            padded = np.resize(part, (self.rows, dimensions)) if len(part) < self.rows else part
            found, count = self.block(padded), len(part)
            parts.append(jax.tree.map(lambda x, count=count: np.asarray(x)[:count], found))
        whole = jax.tree.map(lambda *xs: np.concatenate(xs) if len(xs) > 1 else xs[0], *parts)
        return named(jax.tree.map(lambda x: x.reshape(chains, draws, *x.shape[1:]), whole))

    def none(self) -> dict[str, np.ndarray]:
        """No draws of one chain: the names, shapes and types of what is shown."""
        if self.block is None:
            return self(np.zeros((1, 0, self.layout.size), self.layout.dtype))
        like = jax.ShapeDtypeStruct((self.rows, self.layout.size), self.layout.dtype)
        shapes = jax.eval_shape(self.block, like)
        return named(jax.tree.map(lambda x: np.zeros((1, 0, *x.shape[1:]), x.dtype), shapes))


@functools.lru_cache(KEPT)
def of_block(shown: Callable[..., Any], layout: Layout) -> Any:
    """What is shown of the positions that a block of vectors stands for."""
    return jax.jit(jax.vmap(lambda vector: shown(layout.position(vector))))
