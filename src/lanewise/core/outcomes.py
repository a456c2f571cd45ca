"""What comes back beside the answers: how each lane ended, and what the machine did."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import InternalError, LaneError, Location, Outcome

MOST_LANES_NAMED = 8

# What failed assertions say, by lane, and what finds that out from codes and sites.
Messages = Mapping[tuple[int, ...], str]
Explain = Callable[[np.ndarray, np.ndarray], Messages]


@dataclass(frozen=True)
class Site:
    """A place in a program where a lane can end badly."""

    message: str
    location: Location
    # Whether the message has holes, for values that are known when a lane has failed.
    formatted: bool = False

    def __str__(self) -> str:
        return f"{self.message} ({self.location})" if self.message else str(self.location)


@partial(jax.tree_util.register_dataclass, data_fields=["code", "site"], meta_fields=["sites"])
@dataclass(frozen=True)
class Outcomes:
    """How each lane ended: `code` holds an `Outcome` for each, `site` which assertion failed (else -1)."""

    code: Any
    site: Any
    sites: tuple[Site, ...] = ()

    def ok(self) -> Any:
        """True for the lanes that are done."""
        return self.code == int(Outcome.DONE)

    def describe(self, name: str = "program") -> str:
        """The failed lanes in words, a line for each way of failing."""
        code, site = _jax.to_host(self.code), _jax.to_host(self.site)
        return describe(code, site, self.sites, name, _explained(self.code, code, site))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stats:
    """What the machine did, as scalars.

    `ticks`: turns of the machine. `runs`: blocks run, over all ticks. `advanced`: lanes advanced, summed over those
    runs; `offered`: lanes there were room for. `expensive_advanced`, `expensive_offered`: the part of these that
    the expensive blocks of a sweep have. `work`, `work_offered`: lanes advanced and lanes offered, each times the
    operations of its block. `busy`: lanes with an example that runs, summed over ticks; `room`: lanes in use,
    summed likewise. Where lanes run by themselves, `busy` and `room` are summed over time instead, in seconds.
    `steps`: loop iterations and calls of all lanes together. `deepest`: the most frames any lane had pending.
    """

    ticks: Any
    runs: Any
    advanced: Any
    offered: Any
    expensive_advanced: Any
    expensive_offered: Any
    work: Any
    work_offered: Any
    busy: Any
    room: Any
    steps: Any
    deepest: Any

    @property
    def occupancy(self) -> Any:
        """Active lanes ÷ lanes over the blocks that ran, each by its work: the share of work that was for a lane."""
        return self.work / jax.numpy.maximum(self.work_offered, 1)

    @property
    def expensive_occupancy(self) -> Any:
        """The same over the expensive blocks alone: how full the work that costs is done. 0 if there were none."""
        return self.expensive_advanced / jax.numpy.maximum(self.expensive_offered, 1)

    @property
    def lane_occupancy(self) -> Any:
        """Lanes with an example that runs ÷ lanes in use: what refill is for. A lane that waits for others counts.

        NaN where lanes are not watched: under `schedule="plain"`, and for the carrier `kernel`.
        """
        return jax.numpy.where(self.room > 0, self.busy / self.room, jax.numpy.nan)


NUM_STATS = len(fields(Stats))
# What a machine counts as it goes; the rest it knows by other means.
COUNTERS = tuple(f.name for f in fields(Stats) if f.name not in ("ticks", "steps", "deepest"))


def counts(
    ticks: Any,
    runs: Any,
    advanced: Any,
    offered: Any,
    steps: Any,
    deepest: Any,
    busy: Any = 0,
    room: Any = 0,
) -> list[Any]:
    """What `Stats` is made of, for what runs no expensive blocks."""
    floats = (runs, advanced, offered, 0, 0, advanced, offered, busy, room, steps)
    whole = jax.numpy.int32
    return [whole(ticks), *(jax.numpy.float32(count) for count in floats), whole(deepest)]


@dataclass(frozen=True)
class Failure:
    """What an example of a stream that failed has in place of an answer. `why` says what a cluster knows of it.

    >>> print(Failure(Outcome.STEPS_EXHAUSTED))
    steps exhausted
    """

    outcome: Outcome
    site: Site | None = None
    why: str = ""

    def __str__(self) -> str:
        said = self.why or self.site
        return f"{self.outcome.phrase}: {said}" if said else self.outcome.phrase


# What can say more about failed lanes, by the array of their codes; it goes when the array does.
_explanations: dict[int, tuple[Any, Explain]] = {}


def explain_with(code: Any, explain: Explain) -> None:
    """Have failures among these codes described with the values that their messages format."""
    key = id(code)
    _explanations[key] = (weakref.ref(code, lambda _: _explanations.pop(key, None)), explain)


def _explained(given: Any, code: np.ndarray, site: np.ndarray) -> Messages | None:
    found = _explanations.get(id(given))
    return found[1](code, site) if found is not None and found[0]() is given else None


def describe(
    code: np.ndarray,
    site: np.ndarray,
    sites: Sequence[Site],
    name: str,
    messages: Messages | None = None,
    advice: Advice | None = None,
) -> str:
    """Failed lanes, by how they failed.

    >>> describe(np.array([0, 1, 1]), np.array([-1, -1, -1]), (), "f")
    'f: steps exhausted in 2 of 3 lanes: 1, 2. Raise max_steps, or pass throw=False for the other answers.'
    """
    lines, advised = [], advice or ADVICE
    for outcome in Outcome:
        if outcome is Outcome.DONE:
            continue
        places = sorted(set(site[code == outcome].ravel().tolist())) if code.ndim else [int(site)]
        for place in places if outcome is Outcome.ASSERTION_FAILED else [None]:
            failed = (code == outcome) if place is None else (code == outcome) & (site == place)
            if not np.any(failed):
                continue
            where = None if place is None else sites[place]
            what, help_by = outcome.phrase, advised.by_outcome[outcome]
            said = {lane: text for lane, text in (messages or {}).items() if failed[lane]}
            if where is not None:
                if () in said:
                    where = replace(where, message=said.pop(()))
                elif where.formatted and not said:
                    why = (
                        advised.of_values
                        if messages is None
                        else "Values are not shown: running the lanes again takes too long, or does not fail."
                    )
                    help_by = f"{why} {help_by}"
                what = f"{what}: {where}"
            lines.append(f"{name}: {what} in {_which(failed, said)}. {help_by}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Advice:
    """What helps, by how a lane ended, and where the values that messages format are shown."""

    by_outcome: Mapping[Outcome, str]
    of_values: str


ADVICE = Advice(
    {
        Outcome.STEPS_EXHAUSTED: "Raise max_steps, or pass throw=False for the other answers.",
        Outcome.STACK_OVERFLOW: "Raise max_depth, or pass throw=False for the other answers.",
        Outcome.ASSERTION_FAILED: "Pass throw=False for the other answers.",
        Outcome.TAPE_FULL: "Raise tape, or pass throw=False for the other answers.",
        Outcome.LOST: "The program has no code where they are, which is a bug in Lanewise.",
        Outcome.NOT_RUN: "The workers of the cluster failed each time.",
    },
    "Values are shown by a call outside jit and without a gradient.",
)


def _which(failed: np.ndarray, said: Messages) -> str:
    if failed.ndim == 0:
        return "the call"
    lanes = list(map(tuple, np.argwhere(failed).tolist()))

    def one(lane: tuple[int, ...]) -> str:
        number = str(lane[0] if len(lane) == 1 else lane)
        return f"{number} ({said[lane]})" if lane in said else number

    named = ", ".join(map(one, lanes[:MOST_LANES_NAMED]))
    more = f" and {len(lanes) - MOST_LANES_NAMED} more" if len(lanes) > MOST_LANES_NAMED else ""
    return f"{len(lanes)} of {failed.size} lanes: {named}{more}"


def raise_if_failed(
    code: Any, site: Any, sites: Sequence[Site], name: str, advice: Advice = ADVICE
) -> None:
    """Raise `LaneError` naming the lanes, if any lane did not end well."""
    given, code = code, _jax.to_host(code)
    # Done is 0. (`any` takes five times as long to begin.)
    if np.count_nonzero(code):
        site = _jax.to_host(site)
        if (code == int(Outcome.LOST)).any():
            raise InternalError(describe(code, site, sites, name))
        text = describe(code, site, sites, name, _explained(given, code, site), advice)
        raise LaneError(text, Outcomes(code, site, tuple(sites)))


# What failed inside `jit` while a `lane_errors` was open, each by its identity: empty lists are equal.
_open: dict[int, list[LaneError]] = {}


def raise_inside_jit(
    code: Any,
    site: Any,
    device: Any = 0,
    *,
    sites: Sequence[Site],
    name: str,
    devices: int = 1,
) -> None:
    """The same from a callback, whose exception JAX replaces by one of its own: `lane_errors` has the original.

    `device`: which of the `devices` that share a batch calls. It knows nothing of lanes on others.
    """
    if devices > 1:
        place = int(device)
        code, site = (
            _of_batch(_jax.to_host(x), place, devices, rest) for x, rest in ((code, 0), (site, -1))
        )
    try:
        raise_if_failed(code, site, sites, name)
    except LaneError as error:
        for found in list(_open.values()):
            found.append(error)
        raise


def _of_batch(own: np.ndarray, device: int, devices: int, rest: int) -> np.ndarray:
    """What one device has of its lanes, at their places in the batch.

    >>> _of_batch(np.array([3, 0]), 1, 3, rest=-1)
    array([-1, -1,  3,  0, -1, -1])
    """
    whole = np.full((devices * own.shape[0], *own.shape[1:]), rest, own.dtype)
    whole[device * own.shape[0] : (device + 1) * own.shape[0]] = own
    return whole


@contextlib.contextmanager
def lane_errors() -> Iterator[None]:
    """Raise `LaneError` for lanes that fail inside `jax.jit`.

    Inside `jit` a failure is raised by a callback, and what comes out of JAX is a `jax.errors.JaxRuntimeError` with our
    message in its text, when the result is waited for. Around the call, this waits for what was started inside and
    raises the `LaneError` instead, outcomes included.

    >>> import jax
    >>> import lanewise as lw
    >>> @lw.program
    ... def root(x):
    ...     assert x >= 0, "no root"
    ...     return x**0.5
    >>> try:
    ...     with lw.lane_errors():
    ...         jax.jit(jax.vmap(root))(jax.numpy.array([4.0, -1.0]))
    ... except lw.LaneError as error:
    ...     print(error.outcomes.ok().tolist())
    [True, False]
    """
    found: list[LaneError] = []
    _open[id(found)] = found
    try:
        yield
        jax.effects_barrier()
    except Exception as error:
        # A `JaxRuntimeError`, or a `ValueError`, by how it was called.
        if not found or isinstance(error, LaneError):
            raise
        raise found[0] from error
    finally:
        del _open[id(found)]
    if found:
        raise found[0]


def blank(dtype: Any) -> Any:
    """What a failed lane answers."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0
