"""`sample`: many chains of a density, none of which waits for another.

A chain is one example of a program (`chain.py`), and the machine runs as many as there are lanes, one more whenever one
has ended. Only where chains share what they have learnt, at the ends of the windows of a pooled warm-up, do they meet.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from lanewise import _jax
from lanewise.errors import LaneError, OptionError
from lanewise.mcmc.adapt import Window, pooled, scale_from, windows
from lanewise.mcmc.chain import Drawn, Warmed, drawing, warming
from lanewise.mcmc.inference import inference_data, the_library
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.samplers import Sampler, Told, must_be_count
from lanewise.mcmc.saved import Saved, opened
from lanewise.mcmc.space import Place, Space, place_at, whitened
from lanewise.mcmc.start import Starts, starts
from lanewise.transform import vmap
from lanewise.watch.report import add_sampling

MASS_MATRICES = ("diagonal", "dense", "unit")
ADAPTATIONS = ("pooled", "chain")
DEFAULT_SAMPLER = NUTS()
# The structure of draws on disk.
_DRAWN = Drawn(Place(0, 0, 0), 0, 0, Told(0, 0, 0, 0, 0))  # type: ignore[arg-type]
# At most this many chains are named in a warning.
NAMED = 8


class SamplingWarning(UserWarning):
    """Chains that failed, never moved or diverged."""


@dataclass(frozen=True)
class Settings:
    """What decides the draws, beside the density and the key."""

    chains: int
    warmup: int
    sampler: Sampler
    mass_matrix: str
    adaptation: str
    step_size: float | None

    def __post_init__(self) -> None:
        must_be_count("chains", self.chains, 1)
        must_be_count("warmup", self.warmup, 0)
        if not callable(getattr(self.sampler, "draw", None)):
            raise OptionError(
                f"sampler={self.sampler!r} must be NUTS(...), HMC(...), MCLMC(...) or a Sampler."
            )
        for name, value, allowed in (
            ("mass_matrix", self.mass_matrix, MASS_MATRICES),
            ("adaptation", self.adaptation, ADAPTATIONS),
        ):
            if value not in allowed:
                known = ", ".join(map(repr, allowed))
                raise OptionError(f"{name}={value!r} is not known; choose one of {known}.")
        if self.step_size is not None and not self.step_size > 0.0:
            raise OptionError(f"step_size={self.step_size} must be a positive number.")
        if self.warmup == 0 and self.step_size is None:
            raise OptionError("warmup=0 adapts nothing: give step_size= as well.")

    @property
    def dense(self) -> bool:
        return self.mass_matrix == "dense"

    @property
    def alone(self) -> bool:
        return self.adaptation == "chain"


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
    sampler: Sampler = DEFAULT_SAMPLER,
    mass_matrix: str = "diagonal",
    adaptation: str = "pooled",
    step_size: float | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_every: int = 100,
    carrier: str = "auto",
) -> Any:
    """Draw from a density with many chains; gives an ArviZ `InferenceData`.

    * `logdensity`: takes a position, any pytree of float arrays, and gives its log density up to a constant; or a
      `Model` (`from_numpyro`, `from_pymc`).
    * `init`: positions with an axis of chains in front, or a function that makes one position of a key. Starts with no
      finite density are drawn anew; a model has its own.
    * `progress`: show how many chains have ended each stretch.
    * `lanes`: run so many chains at once; a lane that has ended one takes the next.
    * `device`: a JAX device, or "cpu" or "gpu".
    * `sampler`: `NUTS(...)`, `HMC(...)` or `MCLMC(...)`.
    * `mass_matrix`: "diagonal", "dense" or "unit".
    * `adaptation`: "pooled", scales and step sizes from the draws of all chains, who meet at the ends of the windows of
      the warm-up; or "chain", each by itself.
    * `step_size`: where adaptation begins, or with `warmup=0` the step size.
    * `resume`: a directory in which the state is saved after each stretch of the warm-up and every `save_every` draws,
      where chains then meet. The same call goes on from there, with the draws it would have had.
    * `carrier`: as in `lanewise.vmap`.

    A chain has the same draws whatever the lanes, the carrier and the number of other chains that sample with the same
    step size and scale. Chains that fail or never move, and divergences, are told by a `SamplingWarning`.

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
    must_be_count("save_every", save_every, 1)
    settings = Settings(chains, warmup, sampler, mass_matrix, adaptation, step_size)
    key = _typed(key)
    the_library()  # better missed before a run of an hour than after
    with _on(device):
        start_key, chain_key = jax.random.split(key)
        begin = starts(model, init, chains, start_key)
        saved = opened(resume, _described(settings, key, begin, save_every))
        options = {"lanes": lanes, "carrier": carrier, "progress": progress, "throw": False}
        run = _Run(settings, begin, jax.random.split(chain_key, chains), options, saved)
        warmed = run.warm_up()
        drawn, step = run.draw(warmed, draws, draws if resume is None else save_every)
    _tell(begin, drawn, run.failed)
    attributes = {"inference_library": "lanewise", "sampler": repr(sampler)}
    data = inference_data(model, begin.density.layout, drawn, np.asarray(step), attributes)
    add_sampling(data, title=f"{chains} chains by {sampler}")
    return data


@dataclass(eq=False)
class _Run:
    """One call of `sample`."""

    settings: Settings
    begin: Starts
    keys: Key[Array, " chains"]
    options: dict[str, Any]
    saved: Saved

    def __post_init__(self) -> None:
        self.failed = np.zeros(self.settings.chains, bool)

    def warm_up(self) -> tuple[Array, Space, Array]:
        """Where chains are after the warm-up, the scale of their coordinates (of each if alone) and step sizes."""
        settings, positions = self.settings, self.begin.positions
        chains, dimensions = positions.shape
        dtype = positions.dtype
        step = jnp.full(chains, settings.step_size or 1.0, dtype)
        space: Space = None
        if settings.mass_matrix != "unit":
            one = (
                jnp.eye(dimensions, dtype=dtype) if settings.dense else jnp.ones(dimensions, dtype)
            )
            space = jnp.broadcast_to(one, (chains, *one.shape)) if settings.alone else one
        state = (positions, space, step)
        every = windows(settings.warmup)
        stretches = (every,) if settings.alone and every else tuple((window,) for window in every)
        number = 0
        for count, stretch in enumerate(stretches):
            name = f"warmup-{count:02}"
            found = self.saved.load(name, (state, self.failed))
            if found is None:
                found = self._stretch(state, number, stretch), self.failed
                self.saved.save(name, found)
            state, self.failed = jax.tree.map(jnp.asarray, found[0]), found[1]
            number += sum(window.draws for window in stretch)
        return state

    def _stretch(self, state: Any, number: int, stretch: tuple[Window, ...]) -> Any:
        settings = self.settings
        positions, space, step = state
        alone = settings.alone and space is not None
        program = warming(settings.sampler, self.begin.density, settings.dense, alone)
        space_axis = 0 if alone else None
        run = vmap(program, in_axes=(0, 0, space_axis, 0, None, None, None), **self.options)
        lengths = jnp.array([window.draws for window in stretch], jnp.int32)
        renews = jnp.array([window.renews for window in stretch])
        warmed: Warmed
        warmed, outcomes = run(
            self.keys, positions, space, step, jnp.int32(number), lengths, renews
        )
        self._note(outcomes)
        fine = jnp.asarray(~self.failed)
        position = jnp.where(fine[:, None], warmed.position, positions)
        step = jnp.where(fine, warmed.step, step)
        if settings.alone:
            return position, warmed.space if alone else None, step
        well = fine & jnp.asarray(self.begin.finite)
        step = jnp.exp(jnp.sum(jnp.where(well, jnp.log(step), 0.0)) / jnp.sum(well))
        if space is not None and stretch[-1].renews:
            moments = jax.tree.map(lambda leaf: leaf[well], warmed.moments)
            space = scale_from(pooled(moments))
        return position, space, jnp.full_like(warmed.step, step)

    def draw(self, warmed: Any, draws: int, capacity: int) -> tuple[Drawn, Array]:
        """All draws, in calls of at most `capacity`; a chain that failed has NaN from that call on."""
        positions, space, step = warmed
        settings, density = self.settings, self.begin.density
        space_axis = 0 if settings.alone and space is not None else None

        def placed(space: Space, position: Array) -> Place:
            return place_at(density, space, whitened(space, position))

        place = jax.jit(jax.vmap(placed, in_axes=(space_axis, 0)))(space, positions)
        program = drawing(settings.sampler, density, capacity)
        run = vmap(program, in_axes=(0, 0, space_axis, 0, None, None), **self.options)
        parts: list[Drawn] = []
        done = 0
        while done < draws:
            name = f"draws-{done:08}"
            found = self.saved.load(name, (_DRAWN, self.failed))
            if found is None:
                count = min(capacity, draws - done)
                numbers = (jnp.int32(settings.warmup + done), jnp.int32(count))
                part, outcomes = run(self.keys, place, space, step, *numbers)
                self._note(outcomes)
                part = jax.tree.map(np.asarray, part)
                histories = _first(count, part._replace(place=()))
                found = histories._replace(place=part.place), self.failed
                self.saved.save(name, found)
            part, self.failed = found
            place = jax.tree.map(jnp.asarray, part.place)
            positions = np.where(self.failed[:, None, None], np.nan, part.positions)
            parts.append(_first(draws - done, part._replace(place=(), positions=positions)))
            done += part.positions.shape[1]
        drawn = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        return drawn, step

    def _note(self, outcomes: Any) -> None:
        self.failed = self.failed | ~np.asarray(outcomes.ok())
        if self.failed.all():
            raise LaneError(outcomes.describe("every chain failed"), outcomes)


def _first(count: int, histories: Drawn) -> Drawn:
    """The first draws of each chain."""
    return jax.tree.map(lambda leaf: leaf[:, :count], histories)


def _typed(key: Any) -> Key[Array, ""]:
    """One typed key; old ones, two numbers, are taken too."""
    try:
        typed = isinstance(key, jax.Array) and _jax.is_key(jax.typeof(key))
        key = key if typed else jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))
        if key.shape == ():
            return key
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionError(f"key={key!r} is not one random key; make one with jax.random.key(0).")


@contextlib.contextmanager
def _on(device: Any) -> Iterator[None]:
    if device is None:
        yield
        return
    if isinstance(device, str):
        try:
            device = jax.local_devices(backend=device)[0]
        except RuntimeError as error:
            known = ", ".join(sorted({d.platform for d in jax.devices()}))
            raise OptionError(
                f"device={device!r} is not there: {error}. Here are: {known}."
            ) from None
    if not isinstance(device, jax.Device):
        raise OptionError(f'device={device!r} must be a JAX device, or "cpu" or "gpu".')
    with jax.default_device(device):
        yield


def _described(settings: Settings, key: Any, begin: Starts, save_every: int) -> dict[str, Any]:
    """What tells a run from another."""
    described = asdict(settings) | {"sampler": repr(settings.sampler)}
    value = begin.density(begin.positions[0])
    positions = np.asarray(begin.positions)
    return described | {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "positions": [str(begin.density.layout.shapes), str(positions.dtype)],
        "starts": hashlib.sha256(positions.tobytes()).hexdigest(),
        "logdensity at the first start": float(value).hex(),
        "save_every": save_every,
    }


def _tell(begin: Starts, drawn: Drawn, failed: np.ndarray) -> None:
    """Warn of what went wrong in which chains."""
    positions, diverging = np.asarray(drawn.positions), np.asarray(drawn.told.diverging)
    starts = np.asarray(begin.positions)[:, None]
    stays = (positions == positions[:, :1]) if positions.shape[1] > 1 else (positions == starts)
    stuck = (stays | np.isnan(positions)).all(axis=(1, 2)) & ~failed
    told = [
        (failed, "failed: their draws are NaN from there on"),
        (stuck, "never moved (see init= and the density at their starts)"),
    ]
    for which, what in told:
        if which.any():
            warnings.warn(f"{_chains(which)} {what}.", SamplingWarning, stacklevel=3)
    if diverging.any():
        warnings.warn(
            f"{int(diverging.sum())} of {diverging.size} draws diverged, in {int(diverging.any(axis=1).sum())} chains;"
            " a higher acceptance (NUTS(wanted=0.95)) or other coordinates may help.",
            SamplingWarning,
            stacklevel=3,
        )


def _chains(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    named = ", ".join(map(str, numbers[:NAMED])) + (", ..." if numbers.size > NAMED else "")
    return f"{numbers.size} of {which.size} chains ({named})"
