"""`sample`: many chains of a density, none of which waits for another.

A chain is one example of a program (`chain.py`), and the machine runs as many as there are lanes, one more whenever one
has ended. Only where chains share what they have learnt, at the ends of the windows of a pooled warm-up, do they meet.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.given import on_device, typed_key
from lanewise.mcmc.inference import inference_data, must_have_library
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.run import Run, Settings
from lanewise.mcmc.samplers import Ensemble, Sampler, must_be_count
from lanewise.mcmc.saved import Saved, opened
from lanewise.mcmc.start import Starts, starts
from lanewise.mcmc.trouble import warn_of
from lanewise.place.cluster.cluster import Cluster
from lanewise.watch.report import add_sampling

DEFAULT_SAMPLER = NUTS()


def sample(
    logdensity: Callable[[Position], Array] | Model,
    key: Key[Array, ""],
    *,
    chains: int,
    draws: int,
    warmup: int,
    init: Any = None,
    lanes: int | None = None,
    progress: bool = True,
    device: Any = None,
    sampler: Sampler | Ensemble = DEFAULT_SAMPLER,
    mass_matrix: str = "diagonal",
    adaptation: str = "pooled",
    step_size: float | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_every: int = 100,
    carrier: str = "auto",
    cluster: str | Cluster | None = None,
) -> Any:
    """Draw from a density with many chains; gives an ArviZ `InferenceData`.

    * `logdensity`: takes a position, any pytree of float arrays, and gives its log density up to a constant; or a
      `Model` (`from_numpyro`, `from_pymc`).
    * `init`: positions with an axis of chains in front, or a function that makes one position of a key. Starts with no
      finite density are drawn anew; a model has its own.
    * `progress`: show how many chains have ended each stretch.
    * `lanes`: run so many chains at once; a lane that has ended one takes the next.
    * `device`: a JAX device, or "cpu" or "gpu".
    * `sampler`: `NUTS(...)`, `HMC(...)` or `MCLMC(...)`; or `ChEES(...)`, whose chains learn from each
      other at every draw of the warm-up.
    * `mass_matrix`: "diagonal", "dense" or "unit".
    * `adaptation`: "pooled", scales and step sizes from the draws of all chains, who meet at the ends of the windows of
      the warm-up; or "chain", each by itself.
    * `step_size`: where adaptation begins, or with `warmup=0` the step size.
    * `resume`: a directory in which the state is saved after each stretch of the warm-up and every `save_every` draws,
      where chains then meet. The same call goes on from there, with the draws it would have had.
    * `carrier`: as in `lanewise.vmap`.
    * `cluster`: as in `lanewise.stream`: chains run on its workers, and `lanes` is how many a worker has in flight.

    A chain has the same draws whatever the lanes, the carrier and the number of other chains that sample with the same
    step size and scale. Chains that fail or never move, and divergences, are reported by a `SamplingWarning`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from lanewise import mcmc
    >>> data = mcmc.sample(
    ...     lambda x: -0.5 * jnp.sum(x**2), jax.random.key(0), chains=20, draws=50, warmup=50,
    ...     init=lambda key: jax.random.normal(key, (2,)), progress=False,
    ... )
    >>> dict(data.posterior.sizes)
    {'chain': 20, 'draw': 50, 'x_dim_0': 2}
    >>> bool(abs(data.posterior["x"].mean()) < 0.2)
    True
    """
    model = logdensity if isinstance(logdensity, Model) else Model(logdensity)
    if not callable(model.logdensity):
        raise OptionError(f"logdensity must be a function or a Model; got {model.logdensity!r}.")
    must_be_count("draws", draws, 1)
    if isinstance(sampler, Ensemble):
        given = {
            "mass_matrix": mass_matrix,
            "step_size": step_size,
            "resume": resume,
            "cluster": cluster,
        }
        run_by = {"lanes": lanes, "carrier": carrier, "progress": progress, "device": device}
        counts = {"chains": chains, "draws": draws, "warmup": warmup}
        return sampler.sample(model, typed_key(key), init=init, **counts, **given, **run_by)
    must_be_count("save_every", save_every, 1)
    settings = Settings(chains, warmup, sampler, mass_matrix, adaptation, step_size)
    if cluster is not None and device is not None:
        raise OptionError(
            "device= is for one process: leave it out with cluster=, whose workers use their own."
        )
    key = typed_key(key)
    must_have_library()  # better missed before a run of an hour than after
    with on_device(device):
        begin = starts(model, init, chains, key)
        saved = Saved(None)
        if resume is not None:
            if not isinstance(resume, str | os.PathLike):
                raise OptionError(f"resume={resume!r} must be the path of a directory.")
            saved = opened(resume, _described(settings, key, begin, save_every))
        options = {"lanes": lanes, "carrier": carrier, "progress": progress, "throw": False}
        capacity = draws if resume is None else save_every
        run = Run(settings, begin, capacity, options, saved, cluster)
        with contextlib.closing(run):
            drawn, step = run.draw(run.warm_up(run.started()), draws)
    warn_of(begin, drawn, run.failed)
    attributes = {"inference_library": "lanewise", "sampler": repr(sampler)}
    data = inference_data(model, begin.density.layout, drawn, step, attributes)
    add_sampling(data, title=f"{chains} chains by {sampler}")
    return data


def _described(settings: Settings, key: Any, begin: Starts, save_every: int) -> dict[str, Any]:
    """What tells a run from another."""
    described = asdict(settings) | {"sampler": repr(settings.sampler)}
    positions = begin.positions
    value = jax.jit(begin.density)(positions[0])
    return described | {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "positions": [str(begin.density.layout.shapes), str(positions.dtype)],
        "starts": hashlib.sha256(positions.tobytes()).hexdigest(),
        "logdensity at the first start": float(value).hex(),
        "save_every": save_every,
    }
