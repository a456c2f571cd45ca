"""The minimum ESS of a run that goes on, cheaply: by batch means of some coordinates of some chains.

Draws are averaged over blocks. The spread of the means of blocks shows how many independent draws a block is worth
(batch means; Flegal, Haran and Jones 2008): ESS = draws × variance of draws / (block length × variance of block means).
Blocks of different chains count alike, so chains that disagree lower it. When a chain has `MOST_BLOCKS`, pairs of them
become one: memory is bounded, and blocks stay long compared with the autocorrelation time. It is for the progress line;
the ESS of the report and the warnings is that of ArviZ.
"""

from __future__ import annotations

import numpy as np

MOST_CHAINS, MOST_COORDINATES, MOST_BLOCKS = 64, 32, 64
# Below this many blocks in all there is no estimate.
LEAST_BLOCKS = 16


class Mixing:
    """The minimum ESS of the draws that were added."""

    def __init__(self, chains: int, dimensions: int) -> None:
        self.chains = np.unique(np.linspace(0, chains - 1, min(chains, MOST_CHAINS)).astype(int))
        most = min(dimensions, MOST_COORDINATES)
        self.coordinates = np.unique(np.linspace(0, dimensions - 1, most).astype(int))
        self.share = self.chains.size / chains
        self.length = 1
        self.blocks = np.zeros((self.chains.size, 0, self.coordinates.size))
        self.left = self.blocks
        self.count, self.total, self.squares = 0, 0.0, 0.0
        self.origin: np.ndarray | None = None

    def add(self, positions: np.ndarray) -> None:
        """Draws of all chains: axes chain, draw, coordinate."""
        some = positions[self.chains][:, :, self.coordinates].astype(float)
        if self.origin is None:
            self.origin = np.nan_to_num(some.mean(axis=(0, 1)))
        some = np.nan_to_num(some - self.origin)
        self.count += some.shape[0] * some.shape[1]
        self.total = self.total + some.sum(axis=(0, 1))
        self.squares = self.squares + (some**2).sum(axis=(0, 1))
        waiting = np.concatenate([self.left, some], axis=1)
        whole = waiting.shape[1] // self.length * self.length
        self.blocks = np.concatenate([self.blocks, _means(waiting[:, :whole], self.length)], axis=1)
        self.left = waiting[:, whole:]
        while self.blocks.shape[1] >= MOST_BLOCKS:
            even = self.blocks.shape[1] // 2 * 2
            odd = np.repeat(self.blocks[:, even:], self.length, axis=1)
            self.left = np.concatenate([odd, self.left], axis=1)
            self.blocks = _means(self.blocks[:, :even], 2)
            self.length *= 2

    def minimum_ess(self) -> float | None:
        """The minimum ESS of all chains; None while there are too few draws.

        >>> mixing = Mixing(chains=4, dimensions=2)
        >>> mixing.add(np.random.default_rng(0).normal(size=(4, 1000, 2)))
        >>> 2000 < mixing.minimum_ess() < 8000
        True
        """
        chains, blocks, _ = self.blocks.shape
        if chains * blocks < LEAST_BLOCKS or self.length < 2:
            return None
        variance = self.squares / self.count - (self.total / self.count) ** 2
        between = self.blocks.reshape(chains * blocks, -1).var(axis=0, ddof=1)
        moves = (variance > 0.0) & (between > 0.0)
        if not np.any(moves):
            return None
        ratio = variance[moves] / (self.length * between[moves])  # type: ignore[index]
        return float(ratio.min() * self.count / self.share)


def _means(draws: np.ndarray, length: int) -> np.ndarray:
    chains, count, d = draws.shape
    return draws.reshape(chains, count // length, length, d).mean(axis=2)
