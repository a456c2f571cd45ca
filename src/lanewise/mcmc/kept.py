"""Where draws are kept: arrays in memory, made once for all of a run's draws and filled a stretch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from lanewise.mcmc.drawn import Kept

# Groups as ArviZ names them, for the draws and for those of the warm-up.
GROUPS = {
    False: ("posterior", "sample_stats"),
    True: ("warmup_posterior", "warmup_sample_stats"),
}
Arrays = Mapping[str, Any]


class Keeper(Protocol):
    """What takes draws; arrays have axes of chains and draws in front."""

    def write(self, group: str, row: int, arrays: Arrays) -> None:
        """Draws from this row on."""
        ...

    def read(self, group: str, rows: int) -> dict[str, Any]:
        """The first draws; what is on disk stays there until it is asked for."""
        ...


class Memory:
    """Draws in memory; `rows` says how many each group will have."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self.rows = rows
        self.groups: dict[str, dict[str, np.ndarray]] = {}

    def write(self, group: str, row: int, arrays: Arrays) -> None:
        whole = self.groups.setdefault(group, {})
        for name, part in arrays.items():
            chains, draws, *shape = part.shape
            if name not in whole:
                whole[name] = np.empty((chains, self.rows[group], *shape), part.dtype)
            whole[name][:, row : row + draws] = part

    def read(self, group: str, rows: int) -> dict[str, Any]:
        return {name: array[:, :rows] for name, array in self.groups.get(group, {}).items()}


def stats(kept: Kept) -> dict[str, np.ndarray]:
    """The statistics of draws, by ArviZ's names."""
    info = kept.info
    found: Any = {
        "lp": kept.logdensity,
        "acceptance_rate": info.acceptance,
        "step_size": kept.step,
        "tree_depth": info.tree_depth,
        "n_steps": info.leapfrogs,
        "diverging": info.diverging,
        "energy": info.energy,
    }
    return found
