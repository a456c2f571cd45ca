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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from lanewise import _jax
from lanewise.api.vmap import vmap
from lanewise.core.errors import LaneError, OptionError, Outcome
from lanewise.core.events import labelled
from lanewise.core.outcomes import Outcomes
from lanewise.mcmc.adapt import Window, pooled, scale_from, windows
from lanewise.mcmc.chain import Ran, Stretches, chain_of, keeping, tuning
from lanewise.mcmc.inference import Drawn, inference_data, must_have_library
from lanewise.mcmc.models import Model, Position
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.samplers import Sampler, Told, must_be_count
from lanewise.mcmc.saved import Saved, opened
from lanewise.mcmc.space import Place, rewhitened
from lanewise.mcmc.start import Starts, starts
from lanewise.watch.report import add_sampling

MASS_MATRICES = ("diagonal", "dense", "unit")
ADAPTATIONS = ("pooled", "chain")
DEFAULT_SAMPLER = NUTS()
# The structure of draws on disk.
_DRAWN = Drawn(0, 0, Told(0, 0, 0, 0, 0))  # type: ignore[arg-type]
# How often a start with no finite density is drawn anew.
TRIES = 100
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
        if isinstance(self.sampler, type) or not callable(getattr(self.sampler, "draw", None)):
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
        if self.step_size is not None and not _is_positive(self.step_size):
            raise OptionError(f"step_size={self.step_size!r} must be a positive number.")
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
    must_have_library()  # better missed before a run of an hour than after
    with _on(device):
        begin = starts(model, init, chains, key)
        saved = Saved(None)
        if resume is not None:
            if not isinstance(resume, str | os.PathLike):
                raise OptionError(f"resume={resume!r} must be the path of a directory.")
            saved = opened(resume, _described(settings, key, begin, save_every))
        options = {"lanes": lanes, "carrier": carrier, "progress": progress, "throw": False}
        capacity = draws if resume is None else save_every
        run = _Run(settings, begin, capacity, options, saved)
        drawn, step = run.draw(run.warm_up(run.started()), draws)
    _tell(begin, drawn, run.failed)
    attributes = {"inference_library": "lanewise", "sampler": repr(sampler)}
    data = inference_data(model, begin.density.layout, drawn, step, attributes)
    add_sampling(data, title=f"{chains} chains by {sampler}")
    return data


class State(NamedTuple):
    """Where chains are between stretches, the scale of their coordinates (of each if alone) and their step sizes.

    `fresh`: the density at their places is not known.
    """

    place: Place
    fresh: np.ndarray
    space: Any
    step: np.ndarray


@dataclass(eq=False)
class _Run:
    """One call of `sample`."""

    settings: Settings
    begin: Starts
    capacity: int
    options: dict[str, Any]
    saved: Saved

    def __post_init__(self) -> None:
        settings = self.settings
        self.failed = np.zeros(settings.chains, bool)
        self.finite = np.ones(settings.chains, bool)
        self.windows = windows(settings.warmup)
        # Chains that adapt alone go through all windows at once.
        self.room = max(len(self.windows), 1) if settings.alone else 1
        self.alone = settings.alone and settings.mass_matrix != "unit"
        self.program = chain_of(
            settings.sampler, self.begin.density, self.capacity, settings.dense, self.alone
        )
        space_axis = 0 if self.alone else None
        axes = (0, 0, None, space_axis, 0, None, None)
        self.vmapped = vmap(self.program, in_axes=axes, **self.options)

    def started(self) -> State:
        """Chains at their starts; those with no finite density are drawn anew, where they are drawn."""
        again, chains = self.begin.again, self.settings.chains
        state = self._first(self.begin.positions)
        last = TRIES if again is not None else 0
        for attempt in range(last + 1):
            ran, outcomes = self._run("starts", state, 0, keeping(0, self.room))
            place = jax.tree.map(np.asarray, ran.place)
            self.finite = np.asarray(outcomes.code) == int(Outcome.DONE)
            self.finite &= np.isfinite(place.logdensity) & np.isfinite(place.gradient).all(axis=1)
            if again is None or attempt == last or self.finite.all():
                break
            renewed = np.where(self.finite[:, None], state.place.position, again(attempt))
            state = self._first(renewed)
        if self.finite.any():
            return state
        tried = f" in {TRIES} tries each" if again is not None else ""
        raise OptionError(
            f"logdensity or its gradient is not a finite number at the start of any of the {chains} chains{tried}:"
            " check the density, or start elsewhere with init=."
        )

    def _first(self, positions: np.ndarray) -> State:
        settings, (chains, dimensions), dtype = self.settings, positions.shape, positions.dtype
        space: Any = None
        if settings.mass_matrix != "unit":
            one = np.eye(dimensions, dtype=dtype) if settings.dense else np.ones(dimensions, dtype)
            space = np.broadcast_to(one, (chains, *one.shape)) if self.alone else one
        arrays: Any = positions, np.zeros(chains, dtype), np.zeros_like(positions)
        step = np.full(chains, settings.step_size or 1.0, dtype)
        return State(Place(*arrays), np.array(True), space, step)

    def _run(
        self, label: str, state: State, number: int, stretches: Stretches
    ) -> tuple[Ran, Outcomes]:
        """One call of the program, the same one for everything."""
        with labelled(label):
            return self.vmapped(self.begin.keys, *state, np.int32(number), stretches)

    def warm_up(self, state: State) -> State:
        """Chains after the warm-up."""
        parts = (self.windows,) if self.settings.alone and self.windows else ()
        parts = parts or tuple((window,) for window in self.windows)
        number = 0
        for count, part in enumerate(parts):
            name = f"warmup-{count:02}"
            found = self.saved.load(name, (state, self.failed))
            if found is None:
                label = f"warm-up {count + 1}/{len(parts)}"
                found = self._stretch(label, state, number, part), self.failed
                self.saved.save(name, found)
            state, self.failed = found
            number += sum(window.draws for window in part)
        return state

    def _stretch(self, label: str, state: State, number: int, part: tuple[Window, ...]) -> State:
        ran, outcomes = self._run(label, state, number, tuning(part, self.room))
        self._note(outcomes)
        fine = ~self.failed
        taken = (ran.place, ran.space, ran.step) if self.alone else (ran.place, None, ran.step)
        before = (state.place, state.space if self.alone else None, state.step)
        place, space, step = jax.tree.map(lambda new, old: _where(fine, new, old), taken, before)
        if self.settings.alone:
            return State(place, np.array(False), space, step)
        well = fine & self.finite
        step = np.full_like(step, np.exp(np.log(step[well]).mean()))
        if state.space is None or not part[-1].renews:
            return State(place, np.array(False), state.space, step)
        moments = jax.tree.map(lambda leaf: np.asarray(leaf)[well], ran.moments)
        space = np.asarray(scale_from(pooled(moments), np))
        moved = rewhitened(np.asarray(state.space), space, place.position)
        return State(place._replace(position=moved), np.array(True), space, step)

    def draw(self, state: State, draws: int) -> tuple[Drawn, np.ndarray]:
        """All draws, in calls of at most `capacity`; a chain that failed has NaN from that call on."""
        parts: list[Drawn] = []
        done = 0
        while done < draws:
            name = f"draws-{done:08}"
            found = self.saved.load(name, (_DRAWN, state.place, self.failed))
            if found is None:
                count = min(self.capacity, draws - done)
                number = self.settings.warmup + done
                ran, outcomes = self._run("draws", state, number, keeping(count, self.room))
                self._note(outcomes)
                kept = Drawn(*jax.tree.map(np.asarray, (ran.positions, ran.logdensity, ran.told)))
                place = jax.tree.map(np.asarray, ran.place)
                found = _first(count, kept), place, self.failed
                self.saved.save(name, found)
            part, place, self.failed = found
            state = state._replace(place=place, fresh=np.array(False))
            positions = np.where(self.failed[:, None, None], np.nan, part.positions)
            parts.append(_first(draws - done, part._replace(positions=positions)))
            done += part.positions.shape[1]
        drawn = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        return drawn, state.step

    def _note(self, outcomes: Any) -> None:
        self.failed = self.failed | (np.asarray(outcomes.code) != int(Outcome.DONE))
        if self.failed.all():
            raise LaneError(outcomes.describe("every chain failed"), outcomes)


def _where(fine: np.ndarray, new: Any, old: Any) -> np.ndarray:
    """The new values of chains that are fine, on the host."""
    new = np.asarray(new)
    return np.where(fine.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


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
    positions = begin.positions
    value = jax.jit(begin.density)(positions[0])
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
    starts = begin.positions[:, None]
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


def _is_positive(value: Any) -> bool:
    """Whether a value is one number above zero; one of JAX's counts."""
    try:
        return not isinstance(value, str) and float(value) > 0.0
    except (TypeError, ValueError):
        return False
