"""Setting up a run."""

from __future__ import annotations

from typing import Any

from lanewise.mcmc.keeping import Keeping
from lanewise.mcmc.loop import Loop
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
