"""The quantities that are kept of draws, by name, made from positions a stretch at a time.

`Model.shown` is compiled once, for a block of positions, for any numbers of chains and draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.again import hashable, known_once
from lanewise.mcmc.inference import SAMPLE_DIMS, named, names_of
from lanewise.mcmc.space import KEPT
from lanewise.mcmc.start import Layout

# A block has at most this many positions, and this many numbers.
MOST_ROWS, MOST_NUMBERS = 4096, 2**20


class Shown:
    """Vectors of chains and draws to named arrays; `shown` is a model's, None shows positions themselves."""

    def __init__(self, shown: Callable[..., Any] | None, layout: Layout) -> None:
        self.layout = layout
        self.rows = max(1, min(MOST_ROWS, MOST_NUMBERS // max(layout.size, 1)))
        self.block = None
        kept = layout.structs
        if shown is not None:
            flat = _Flat(hashable(shown), layout)
            like = jax.ShapeDtypeStruct((layout.size,), layout.dtype)
            kept = jax.eval_shape(flat, like)
            self.block = of_block(known_once(flat, flat, like))
        _must_have_names(names_of(kept))

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
        whole = parts[0]
        if len(parts) > 1:
            whole = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
        return named(jax.tree.map(lambda x: x.reshape(chains, draws, *x.shape[1:]), whole))


def _must_have_names(names: Collection[str]) -> None:
    """Raise for names that ArviZ's data cannot have: better before a run than after."""
    if not names:
        raise OptionError("Model.shown gives no quantity: nothing would be kept.")
    for axis in SAMPLE_DIMS:
        if axis in names:
            raise OptionError(
                f"a quantity is named {axis!r}, as an axis of ArviZ's data is: give it another name."
            )


@dataclass(frozen=True)
class _Flat:
    """The quantities of a vector; equal for equal functions and layouts."""

    shown: Callable[..., Any]
    layout: Layout

    def __call__(self, vector: Any) -> Any:
        return self.shown(self.layout.position(vector))


@functools.lru_cache(KEPT)
def of_block(shown: Callable[..., Any]) -> Any:
    """The quantities of a block of vectors."""
    return jax.jit(jax.vmap(shown))
