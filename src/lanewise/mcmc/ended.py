"""What a run gives once it has ended. Nothing that comes after the last draw loses any."""

from __future__ import annotations

from typing import Any

import numpy as np

from lanewise.mcmc.diagnosis import Course, attempted, diagnosed, warn
from lanewise.mcmc.inference import sampled, variable
from lanewise.mcmc.interrupts import held
from lanewise.mcmc.loop import Loop, State
from lanewise.mcmc.models import Model


def result(model: Model, run: Loop, state: State, attributes: dict[str, Any]) -> Any:
    """ArviZ data of what was drawn, with warnings of what is wrong with it, also in the reports that are open.

    Draws are never lost here: what fails, or is interrupted, is a warning. Where it is ArviZ data that cannot be made,
    plain arrays by group and name come back.
    """
    groups, chains = run.keeping.groups(int(state.number)), run.settings.chains
    if run.interrupted:
        warn(_interrupted(run, state))
    data: Any = None
    try:
        with held():  # a library that is imported in half stays so
            data = attempted("Making ArviZ data", lambda: _data(model, run, state, attributes))
        if data is not None and "posterior" in groups:
            course = Course.of(run.settings, state.moved[:chains], state.failed[:chains])
            diagnosed(data, course, lambda: run.findings(state))
    except KeyboardInterrupt:
        warn(f"{_interrupted(run, state)} Their diagnosis is not complete.")
    return groups if data is None else data


def _interrupted(run: Loop, state: State) -> str:
    rows = run.keeping.rows(int(state.number))
    what = f"{rows[False]:,} of {run.draws:,} draws"
    if not rows[False]:
        what = f"{rows[True]:,} draws of the warm-up and no others"
    return f"The run was interrupted: it has {what} of each chain."


def _data(model: Model, run: Loop, state: State, attributes: dict[str, Any]) -> Any:
    groups = run.keeping.groups(int(state.number))
    data = sampled(model, groups, attributes | run.attributes(state))
    if "posterior" in groups:
        _add_scale(data["sample_stats"], run, state)
    return data


def _add_scale(stats: Any, run: Loop, state: State) -> None:
    """The inverse mass matrix, of all chains or of each; `coordinate` is that of the unconstrained position."""
    if run.scale(state) is None:
        return
    scale = np.asarray(run.scale(state))
    if run.settings.alone:
        scale = scale[: run.settings.chains]
    inverse = scale @ np.swapaxes(scale, -1, -2) if run.settings.dense else scale**2
    axes = ("coordinate", "other_coordinate") if run.settings.dense else ("coordinate",)
    axes = ("chain", *axes) if run.settings.alone else axes
    stats["inverse_mass_matrix"] = variable(axes, inverse)
