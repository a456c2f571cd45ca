"""What comes back beside the answers: how each lane ended, and what the machine did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.errors import InternalError, LaneError, Location, Outcome

MOST_LANES_NAMED = 8


@dataclass(frozen=True)
class Site:
    """A place in a program where a lane can end badly."""

    message: str
    location: Location

    def __str__(self) -> str:
        return f"{self.message} ({self.location})" if self.message else str(self.location)


# Where a gradient's forward sweep asks for room on its tape (`diff/tape.py`). To a program a full tape is a check
# that fails like any other; a host that can make room lets the lane go on from there.
FULL_TAPE = Site("the tape of a gradient is full", Location("lanewise", 0))


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
        """The failed lanes in words, a line a way of failing."""
        return describe(_jax.to_host(self.code), _jax.to_host(self.site), self.sites, name)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stats:
    """What the machine did, as scalars.

    `ticks`: turns of the machine. `runs`: blocks run, over all ticks. `advanced`: lanes advanced, summed over those
    runs; `offered`: lanes there were room for. `dear_advanced`, `dear_offered`: the part of these that the dear blocks
    of a sweep have. `work`, `work_offered`: lanes advanced and lanes offered, each times the operations of its block.
    `busy`: lanes with an example that runs, summed over ticks; `room`: lanes in use, summed likewise. Where lanes run
    by themselves, `busy` and `room` are summed over time instead, in seconds. `steps`: loop iterations and calls of
    all lanes together. `deepest`: the most frames any lane had pending.
    """

    ticks: Any
    runs: Any
    advanced: Any
    offered: Any
    dear_advanced: Any
    dear_offered: Any
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
    def dear_occupancy(self) -> Any:
        """The same over the dear blocks alone: how full the work that costs is done. 0 if there were none."""
        return self.dear_advanced / jax.numpy.maximum(self.dear_offered, 1)

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
    """What `Stats` is made of, for what runs no dear blocks."""
    floats = (runs, advanced, offered, 0, 0, advanced, offered, busy, room, steps)
    whole = jax.numpy.int32
    return [whole(ticks), *(jax.numpy.float32(count) for count in floats), whole(deepest)]


@dataclass(frozen=True)
class Failure:
    """What an example of a stream that failed has in place of an answer.

    >>> print(Failure(Outcome.STEPS_EXHAUSTED))
    steps exhausted
    """

    outcome: Outcome
    site: Site | None = None

    def __str__(self) -> str:
        phrase = self.outcome.phrase
        return phrase if self.site is None else f"{phrase}: {self.site}"


def describe(code: np.ndarray, site: np.ndarray, sites: Sequence[Site], name: str) -> str:
    """Failed lanes by way of failing.

    >>> describe(np.array([0, 1, 1]), np.array([-1, -1, -1]), (), "f")
    'f: steps exhausted in 2 of 3 lanes: 1, 2. Raise max_steps, or pass throw=False for the other answers.'
    """
    lines = []
    for outcome in Outcome:
        if outcome is Outcome.DONE:
            continue
        places = sorted(set(site[code == outcome].ravel().tolist())) if code.ndim else [int(site)]
        for place in places if outcome is Outcome.ASSERTION_FAILED else [None]:
            failed = (code == outcome) if place is None else (code == outcome) & (site == place)
            if not np.any(failed):
                continue
            what = outcome.phrase if place is None else f"{outcome.phrase}: {sites[place]}"
            lines.append(f"{name}: {what} in {_which(failed)}. {_ADVICE[outcome]}")
    return "\n".join(lines)


_ADVICE = {
    Outcome.STEPS_EXHAUSTED: "Raise max_steps, or pass throw=False for the other answers.",
    Outcome.STACK_OVERFLOW: "Raise max_depth, or pass throw=False for the other answers.",
    Outcome.ASSERTION_FAILED: "Pass throw=False for the other answers.",
    Outcome.TAPE_FULL: "Raise tape, or pass throw=False for the other answers.",
    Outcome.LOST: "This is a bug in Lanewise: please report it with the text of the program.",
}


def _which(failed: np.ndarray) -> str:
    if failed.ndim == 0:
        return "the call"
    lanes = [
        index[0] if len(index) == 1 else index for index in map(tuple, np.argwhere(failed).tolist())
    ]
    named = ", ".join(map(str, lanes[:MOST_LANES_NAMED]))
    more = f" and {len(lanes) - MOST_LANES_NAMED} more" if len(lanes) > MOST_LANES_NAMED else ""
    return f"{len(lanes)} of {failed.size} lanes: {named}{more}"


def raise_if_failed(code: Any, site: Any, sites: Sequence[Site], name: str) -> None:
    """Raise `LaneError` naming the lanes, if any lane did not end well."""
    code = _jax.to_host(code)
    if code.any():  # done is 0
        site = _jax.to_host(site)
        if (code == int(Outcome.LOST)).any():
            raise InternalError(describe(code, site, sites, name))
        raise LaneError(describe(code, site, sites, name), Outcomes(code, site, tuple(sites)))
