"""A run whose chains adapt on their own in the windows of a warm-up, and share what they found at their ends.

The `Task` (`chain.py`) of a stretch says what it does; `windows.py` has what the host does at the ends of windows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from lanewise.mcmc.adapt import windows
from lanewise.mcmc.chain import carried, chain_of, task
from lanewise.mcmc.loop import Loop, Plan, State
from lanewise.mcmc.samplers import Ensemble, Sampler
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.space import Density, Place
from lanewise.mcmc.stretches import MOST_DRAWS, Stretched
from lanewise.mcmc.windows import ended
from lanewise.tracing.decorator import ProgramFunction


class Run(Loop):
    """One call of `sample` with NUTS, HMC, MCLMC or a user's sampler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.windows = windows(self.settings.warmup)

    def first(self, positions: np.ndarray) -> State:
        settings, (lanes, dimensions), dtype = self.settings, positions.shape, positions.dtype
        space: Any = None
        if settings.mass_matrix != "unit":
            one = np.eye(dimensions, dtype=dtype) if settings.dense else np.ones(dimensions, dtype)
            space = np.broadcast_to(one, (lanes, *one.shape)) if settings.alone else one
        arrays: Any = positions, np.zeros(lanes, dtype), np.zeros_like(positions)
        chains = carried(Place(*arrays), settings.step_size or 1.0, settings.dense)
        no, yes = np.zeros(lanes, bool), np.ones(lanes, bool)
        return State(np.array(0), chains, np.array(True), space, no, yes, no)

    def asked(self, state: State) -> Stretched:
        none = np.zeros(len(state.failed), np.int32)
        return self.stretches(state.carried, none, state.space, task(fresh=True, thin=0))

    def planned(self, state: State) -> Plan:
        settings, number = self.settings, int(state.number)
        tunes, ends, begin, which = number < settings.warmup, self.last, settings.warmup, None
        if tunes:
            limits = np.cumsum([window.draws for window in self.windows])
            which = int(np.searchsorted(limits, number, side="right"))
            ends = int(limits[which])
            begin = ends - self.windows[which].draws
        origin = 0 if tunes else settings.warmup
        thin = settings.thin if not tunes or settings.keep_warmup else 0
        draws = self.left(number, origin, ends, thin)
        what = task(
            number,
            origin=origin,
            fresh=bool(state.fresh),
            tunes=tunes,
            begins=tunes and number == begin,
            thin=thin,
        )
        return Plan(draws, what, which if number + draws == ends else None)

    def learn(self, state: State, ran: Stretched, plan: Plan) -> State:
        settings = self.settings
        if plan.window is None:
            return state
        well = ~state.failed & state.finite & (np.arange(len(state.failed)) < settings.chains)
        shares = settings.adaptation == "pooled"
        window = self.windows[plan.window]
        chains, space, fresh = ended(
            window, state.carried, state.space, well, shares, settings.alone
        )
        return state._replace(carried=chains, space=space, fresh=np.array(fresh))

    def step_sizes(self, state: State, tunes: bool) -> np.ndarray:
        chains = state.carried
        return np.exp(chains.adapting.log_step) if tunes else np.asarray(chains.step)


def way_of(
    settings: Settings, density: Density
) -> tuple[type[Loop], Callable[[int], ProgramFunction], int]:
    """The loop of a call, the program of its stretches by their room, and the largest room."""
    sampler = settings.sampler
    if isinstance(sampler, Ensemble):
        return sampler.loop(), functools.partial(sampler.program, density), sampler.most_draws
    one: Sampler = sampler
    return Run, lambda capacity: chain_of(one, density, capacity, settings.dense), MOST_DRAWS
