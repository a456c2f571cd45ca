"""What a run keeps: its draws, in memory or on disk, and with them the state from which a killed run is resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lanewise.mcmc.drawn import Kept
from lanewise.mcmc.kept import GROUPS, Keeper, Memory, stats
from lanewise.mcmc.saved import Saved
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.shown import Shown
from lanewise.mcmc.store import Store
from lanewise.mcmc.stretches import Stretched


@dataclass(eq=False)
class Keeping:
    """The draws of a run; for each chain `draws` are kept after the warm-up."""

    settings: Settings
    draws: int
    shown: Shown
    saved: Saved
    keeper: Keeper = field(init=False)

    def opened(self, like: Any) -> Any | None:
        """The state in which the run was saved, or None; from here on draws can be added."""
        room = {
            group: rows
            for phase, rows in zip(GROUPS.values(), self.settings.kept(self.draws).values())
            for group in phase
        }
        if self.saved.directory is None:
            self.keeper = Memory(room)
            return None
        found = self.saved.load(like)
        state, tails = (None, {}) if found is None else found
        done: dict[str, int] = {}
        if state is not None:
            self.saved.number = int(state.number)
            made = self.rows(int(state.number), cut=False)
            done = {group: made[w] for w, phase in GROUPS.items() for group in phase}
        room = {group: max(rows, done.get(group, 0)) for group, rows in room.items()}
        self.keeper = Store(self.saved.directory, room, done, tails)
        return state

    def rows(self, number: int, cut: bool = True) -> dict[bool, int]:
        """How many draws are kept after this many were made: after the warm-up, and of the warm-up (True)."""
        settings = self.settings
        tuned, made = min(number, settings.warmup), max(number - settings.warmup, 0)
        drawn = made // settings.thin
        warm = tuned // settings.thin if settings.keep_warmup else 0
        return {False: min(drawn, self.draws) if cut else drawn, True: warm}

    def left(self, number: int) -> int | None:
        """How many draws may be made before the state must be saved."""
        return self.saved.left(number)

    def is_due(self, number: int) -> bool:
        return self.saved.is_due(number)

    def save(self, number: int, state: Any) -> None:
        beside = self.keeper.tails() if isinstance(self.keeper, Store) else {}
        self.saved.save(number, state, beside)

    def add(self, number: int, draws: int, ran: Stretched, chains: int) -> None:
        """Keep a stretch of draws, the first of which has this number."""
        tunes = number < self.settings.warmup
        before, after = (self.rows(n, cut=False)[tunes] for n in (number, number + draws))
        if after == before:
            return
        kept: Kept = jax.tree.map(lambda leaf: leaf[:chains, : after - before], ran.kept)
        gone = np.arange(after - before) >= ran.rows[:chains, None]
        if gone.any():
            kept = jax.tree.map(lambda leaf: _lost(leaf, gone), kept)
        posterior, reported = GROUPS[tunes]
        shown = self.shown(np.asarray(kept.positions))
        self.keeper.write(posterior, before, shown)
        self.keeper.write(reported, before, stats(kept))

    def groups(self, number: int) -> dict[str, dict[str, Any]]:
        """What was kept, by group and name; groups without draws are left out."""
        rows = self.rows(number)
        return {
            group: self.keeper.read(group, rows[tunes])
            for tunes, phase in GROUPS.items()
            for group in phase
            if rows[tunes]
        }


def _lost(leaf: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """Draws, where those that a failing chain did not make are NaN, or zero."""
    empty = np.nan if np.issubdtype(leaf.dtype, np.floating) else 0
    return np.where(gone.reshape(*gone.shape, *(1,) * (leaf.ndim - 2)), empty, leaf).astype(
        leaf.dtype
    )
