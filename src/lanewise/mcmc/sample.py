"""`sample`: many chains of a density, none of which waits for another.

A chain is one example of a program (`chain.py`), and the machine runs as many as there are lanes, one more whenever one
has ended. Chains meet only where they share what they have learned, at the ends of the windows of a pooled warm-up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.described import saved_in
from lanewise.mcmc.ended import result
from lanewise.mcmc.given import accepting, model_of, on_device, typed_key
from lanewise.mcmc.inference import must_have_library
from lanewise.mcmc.initial import begun
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.running import prepared
from lanewise.mcmc.samplers import Ensemble, Sampler, must_be_count
from lanewise.mcmc.settings import Settings
from lanewise.place.cluster.cluster import Cluster

DEFAULT_SAMPLER = NUTS()


def sample(
    logdensity: Callable[[Position], Array] | Model,
    key: int | Key[Array, ""],
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
    save_every: int | None = None,
    thin: int = 1,
    keep_warmup: bool = False,
    target_accept: float | None = None,
    initial_values: Mapping[str, Any] | None = None,
    carrier: str = "auto",
    cluster: str | Cluster | None = None,
) -> Any:
    """Draw from a density with many chains; returns ArviZ data: an `InferenceData`, or with ArviZ 1.x a `DataTree`.

    * `logdensity`: takes a position, any pytree of float arrays, and gives its log density up to a constant; or a
      `Model` (`from_numpyro`, `from_pymc`), or a PyMC model.
    * `init`: positions with an axis of chains in front, or a function that makes one position from a key. Starts with
      no finite density are drawn anew; a model has its own.
    * `key`: a random key, or a seed.
    * `initial_values`: values of quantities by name, as the posterior has them (constrained), for all chains or with an
      axis of chains in front; the others start as `init` makes them.
    * `progress`: show one line with draws, rate, divergences, step size, minimum ESS and time left.
    * `lanes`: run this many chains at once; a lane that has ended one takes the next.
    * `device`: a JAX device, or "cpu" or "gpu".
    * `sampler`: `NUTS(...)`, `HMC(...)` or `MCLMC(...)`; or `ChEES(...)`, whose chains learn from each
      other at every draw of the warm-up.
    * `mass_matrix`: "diagonal", "dense" or "unit".
    * `adaptation`: "pooled", scales and step sizes from the draws of all chains, which meet at the ends of the windows
      of the warm-up; or "chain", each on its own.
    * `step_size`: where adaptation begins, or with `warmup=0` the step size.
    * `resume`: a directory to which draws are written, as Zarr arrays, and the state of the run about once a second and
      with `save_every` also after that many draws. The same call goes on from there, with the draws it would have had.
      Memory is bounded, and the returned data are read from there when they are needed.
    * `thin`: keep one draw in this many; `draws` are kept, so `thin * draws` are made.
    * `keep_warmup`: keep the draws of the warm-up too, in groups of their own.
    * `target_accept`: the acceptance that step sizes are adapted to, in place of the sampler's.
    * `carrier`: as in `lanewise.vmap`.
    * `cluster`: as in `lanewise.stream`: chains run on its workers, and `lanes` is how many a worker has in flight.

    A chain has the same draws whatever the lanes, the carrier and the number of other chains that sample with the same
    step size and scale. Each problem is reported by a `SamplingWarning`: chains that failed or never moved, R-hat
    (nested R-hat for many chains), minimum ESS, divergences, draws at the depth limit, E-BFMI.

    Ctrl-C ends the run: the draws so far are returned, with a `SamplingWarning`. `KeyboardInterrupt` is raised if there
    are none.

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
    model = model_of(logdensity)
    if not callable(model.logdensity):
        raise OptionError(f"logdensity must be a function or a Model; got {model.logdensity!r}.")
    draws = must_be_count("draws", draws, 1)
    if not isinstance(progress, bool):
        raise OptionError(f"progress={progress!r} must be True or False.")
    if save_every is not None:
        save_every = must_be_count("save_every", save_every, 1)
    settings = Settings.of(
        chains=chains,
        warmup=warmup,
        sampler=accepting(sampler, target_accept),
        mass_matrix=mass_matrix,
        adaptation=adaptation,
        step_size=step_size,
        thin=thin,
        keep_warmup=keep_warmup,
    )
    if cluster is not None and device is not None:
        raise OptionError(
            "device= is for one process: leave it out with cluster=, whose workers use their own."
        )
    key = typed_key(key)
    began = time.perf_counter()
    must_have_library()  # better reported before a run of an hour than after
    with on_device(device):
        begin = begun(model, init, initial_values, settings.chains, key, lanes=cluster is None)
        run = prepared(
            model,
            settings,
            begin,
            draws,
            saved=saved_in(resume, save_every, settings, key, begin),
            progress=progress,
            cluster=cluster,
            lanes=lanes,
            carrier=carrier,
        )
        with contextlib.closing(run.stretches):
            state = run.go()
    taken = time.perf_counter() - began
    attributes = {
        "sampler": repr(settings.sampler),
        "sampling_time": taken,
        "tuning_steps": settings.warmup,
    }
    return result(model, run, state, attributes)
