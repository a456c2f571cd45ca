"""Setting up a run, and making its result."""

from __future__ import annotations

from typing import Any

import numpy as np

from lanewise.mcmc.diagnosis import Course, diagnosed, warn
from lanewise.mcmc.inference import sampled
from lanewise.mcmc.keeping import Keeping
from lanewise.mcmc.loop import Loop, State
from lanewise.mcmc.models import Model
from lanewise.mcmc.run import way_of
from lanewise.mcmc.saved import Saved
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.shown import Shown
from lanewise.mcmc.start import Starts
from lanewise.mcmc.stretches import Stretches
from lanewise.mcmc.watching import Watching


def prepared(
    model: Model,
    settings: Settings,
    begin: Starts,
    draws: int,
    *,
    saved: Saved,
    progress: bool,
    cluster: Any,
    **options: Any,
) -> Loop:
    """The run of a model, ready to go."""
    kind, program_of, most = way_of(settings, begin.density)
    stretches = Stretches(
        program_of,
        begin.keys,
        begin.positions,
        alone=settings.alone,
        cluster=cluster,
        most=most,
        **options,
    )
    keeping = Keeping(settings, draws, Shown(model.shown, begin.density.layout), saved)
    dimensions = begin.positions.shape[1]
    watching = Watching(settings.chains, dimensions, settings.warmup, progress)
    return kind(settings, begin, draws, stretches, keeping, watching)


def result(model: Model, run: Loop, state: State, attributes: dict[str, Any]) -> Any:
    """ArviZ data of the draws, with warnings of what is wrong with them, which open reports show, too."""
    settings, number = run.settings, int(state.number)
    chains = settings.chains
    groups = run.keeping.groups(number)
    rows = run.keeping.rows(number)
    if run.interrupted:
        what = f"{rows[False]:,} of {run.draws:,} draws"
        if not rows[False]:
            what = f"{rows[True]:,} draws of the warm-up and no others"
        warn(f"The run was interrupted: it has {what} of each chain.")
    data = sampled(model, groups, attributes | run.attributes(state))
    if rows[False]:
        _add_scale(data["sample_stats"], run, state)
        course = Course.of(settings, state.moved[:chains], state.failed[:chains])
        diagnosed(data, course, run.findings(state))
    return data


def _add_scale(stats: Any, run: Loop, state: State) -> None:
    """The inverse mass matrix, of all chains or of each; `coordinate` is one of the unconstrained position."""
    if run.scale(state) is None:
        return
    scale = np.asarray(run.scale(state))
    if run.settings.alone:
        scale = scale[: run.settings.chains]
    inverse = scale @ np.swapaxes(scale, -1, -2) if run.settings.dense else scale**2
    axes = ("coordinate", "other_coordinate") if run.settings.dense else ("coordinate",)
    axes = ("chain", *axes) if run.settings.alone else axes
    stats["inverse_mass_matrix"] = (axes, inverse)
