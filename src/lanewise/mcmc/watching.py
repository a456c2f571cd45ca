"""The progress line of a run: one for all of it, warm-up and draws."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from lanewise.mcmc.mixing import Mixing
from lanewise.mcmc.stretches import Stretched
from lanewise.watch.progress import Bar

# The minimum ESS takes at most this share of the time.
SHARE = 0.01


class Watching:
    """Shows how far a run is, if `shows`."""

    def __init__(self, chains: int, dimensions: int, warmup: int, shows: bool) -> None:
        self.chains, self.warmup, self.shows = chains, warmup, shows
        self.mixing = Mixing(chains, dimensions)
        self.bar: Bar | None = None
        self.divergences, self.tuned = 0, None
        self.began, self.spent = time.perf_counter(), 0.0

    @contextlib.contextmanager
    def open(self, number: int, last: int) -> Iterator[None]:
        """Show the line from the draw with this number to the last one."""
        if not self.shows:
            yield
            return
        self.began = time.perf_counter()
        with Bar(last * self.chains, "", "draws") as self.bar:
            self._phase(number < self.warmup, number)
            yield

    def add(self, number: int, ran: Stretched, tunes: bool, steps: np.ndarray) -> None:
        """A stretch has ended, after this many draws of each chain, with these step sizes."""
        bar, chains = self.bar, self.chains
        if bar is None:
            return
        figures: dict[str, Any] = {}
        rows = ran.rows[:chains]
        if not tunes:
            there = np.arange(ran.kept.logdensity.shape[1])[: rows.max(initial=0)] < rows[:, None]
            diverging = np.asarray(ran.kept.info.diverging)[:chains, : there.shape[1]]
            self.divergences += int((diverging & there).sum())
            figures["divergences"] = self.divergences
        figures["step_size"] = float(np.median(np.asarray(steps)[:chains]))
        if not tunes and rows.any():
            figures |= self._ess(np.asarray(ran.kept.positions)[:chains, : rows.max()])
        if tunes != self.tuned:
            self._phase(tunes, bar.done // chains)
        bar.update(number * chains, **figures)
        if tunes and number >= self.warmup:
            self._phase(False, number)

    def _phase(self, tunes: bool, number: int) -> None:
        assert self.bar is not None
        if tunes != self.tuned:
            self.tuned = tunes
            self.bar.restart("warm-up" if tunes else "sampling", number * self.chains)

    def _ess(self, positions: np.ndarray) -> dict[str, Any]:
        """The minimum ESS so far. While it is too expensive, draws are left out of it and it is not shown again."""
        began = time.perf_counter()
        if self.spent > SHARE * (began - self.began) + 0.001:
            return {}
        self.mixing.add(positions)
        found = self.mixing.minimum_ess()
        self.spent += time.perf_counter() - began
        return {} if found is None else {"minimum_ESS": round(found)}
