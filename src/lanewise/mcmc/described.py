"""The description of the run in a directory."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from lanewise.core.errors import OptionError
from lanewise.mcmc.saved import Saved, opened
from lanewise.mcmc.settings import Settings
from lanewise.mcmc.start import Starts
from lanewise.mcmc.store import must_have_zarr


def saved_in(resume: Any, every: int | None, settings: Settings, key: Any, begin: Starts) -> Saved:
    """The directory of this run; that of another run is refused. None saves nothing."""
    if resume is None:
        return Saved(None)
    if not isinstance(resume, str | os.PathLike) or not os.fspath(resume):
        raise OptionError(f"resume={resume!r} must be the path of a directory.")
    must_have_zarr()
    return opened(resume, described(settings, key, begin), every)


def described(settings: Settings, key: Any, begin: Starts) -> dict[str, Any]:
    """What distinguishes a run from others."""
    described = asdict(settings) | {"sampler": repr(settings.sampler)}
    positions = begin.positions[: settings.chains]
    value = jax.jit(begin.density)(positions[0])
    return described | {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "positions": [str(begin.density.layout.shapes), str(positions.dtype)],
        "starts": hashlib.sha256(positions.tobytes()).hexdigest(),
        "logdensity at the first start": float(value).hex(),
    }
