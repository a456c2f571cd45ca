"""The runs of ensembles (`ensemble.py`) as ArviZ data, with what went wrong in warnings."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

import numpy as np

from lanewise.mcmc.chain import Kept
from lanewise.mcmc.diagnosis import Course, diagnosed
from lanewise.mcmc.ensemble import Asked, Drawn
from lanewise.mcmc.given import on_device
from lanewise.mcmc.inference import must_have_library, sampled
from lanewise.mcmc.kept import stats
from lanewise.mcmc.shown import Shown
from lanewise.mcmc.start import Starts


class Result(NamedTuple):
    """What a run gives: draws, the step size of each chain, and what else is to be said of the run."""

    begin: Starts
    drawn: Drawn
    step: np.ndarray
    failed: np.ndarray
    attributes: dict[str, Any]


class Runs(Protocol):
    """A sampler that makes a `Result` of a call."""

    def run(self, asked: Asked) -> Result: ...


def data_of(sampler: Runs, asked: Asked) -> Any:
    """The ArviZ data of a run."""
    must_have_library()
    began = time.perf_counter()
    with on_device(asked.device):
        begin, drawn, step, failed, more = sampler.run(asked)
        shown = Shown(asked.model.shown, begin.density.layout)(drawn.positions)
    steps = np.broadcast_to(step[:, None], drawn.logdensity.shape)
    kept: Any = Kept(drawn.positions, drawn.logdensity, steps, drawn.info)  # type: ignore[arg-type]
    moved = (drawn.positions != begin.positions[: asked.chains, None]).any(axis=(1, 2))
    attributes = {
        "sampler": repr(sampler),
        "sampling_time": time.perf_counter() - began,
        "tuning_steps": asked.warmup,
    }
    data = sampled(
        asked.model, {"posterior": shown, "sample_stats": stats(kept)}, attributes | more
    )
    diagnosed(data, Course(sampler, asked.warmup, moved, failed))
    return data
