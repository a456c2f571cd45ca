"""What a caller may choose about how a program runs; never what it computes."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lanewise.core.errors import OptionError

SCHEDULES = ("auto", "lowest", "most", "sweep", "meet", "fork", "local", "plain", "levels")
Checkpointing = str | int  # "auto", "all", "sqrt", or how many states
CARRIERS = ("auto", "ticks", "native", "kernel")

CHECKPOINTS = ("auto", "all", "sqrt")

# Inside `jit` a stack cannot grow; unless set otherwise it holds as many frames as Python's own.
DEPTH_INSIDE_JIT = 1024


@dataclass(frozen=True)
class Options:
    """Options of one run: see `lanewise.vmap` for what each one means."""

    schedule: str = "auto"
    carrier: str = "auto"
    max_steps: int | None = None
    max_depth: int | None = None
    throw: bool = True
    stats: bool = False
    lanes: int | None = None
    checkpoints: Checkpointing = "auto"
    tape: int | None = None
    offload: str | None = None
    progress: bool = False
    # Not the caller's to set: what runs inside `lanewise.report` and `lanewise.timeline` is recorded.
    recorded: bool = False
    # Nor this: the tape is part of one that a host may make longer.
    tape_grows: bool = False
    # Nor this: how many devices here each run a part of the batch, which share a progress bar.
    devices: int = 1

    def __post_init__(self) -> None:
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("carrier", self.carrier, CARRIERS)
        for name in ("max_steps", "max_depth", "lanes", "tape"):
            self._set(name, positive_or_none(name, getattr(self, name)))
        for name in ("throw", "stats", "progress"):
            self._set(name, flag(name, getattr(self, name)))
        if self.offload is not None:
            _one_of("offload", self.offload, ("host",), or_none=True)
        if not (isinstance(self.checkpoints, str) and self.checkpoints in CHECKPOINTS):
            number = _as_positive(self.checkpoints)
            if number is None:
                known = ", ".join(map(repr, CHECKPOINTS))
                raise OptionError(
                    f"checkpoints={self.checkpoints!r} is not known; choose one of {known}, or a number of states, a"
                    " positive int."
                )
            self._set("checkpoints", number)
        if self.lanes is not None and self.schedule in ("local", "plain", "levels"):
            raise OptionError(
                f"lanes={self.lanes} refills the lanes of a machine, and schedule={self.schedule!r} has none;"
                ' use schedule="auto", "sweep", "meet", "most" or "lowest", or leave lanes out.'
            )

    def __hash__(self) -> int:
        # Read at every call outside `jit`, where what runs is looked up.
        return self._hashed

    @functools.cached_property
    def _hashed(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        # Another process hashes strings otherwise.
        return {name: value for name, value in vars(self).items() if name != "_hashed"}

    def _set(self, name: str, value: Any) -> None:
        """Keep the plain Python value of a NumPy one: options are looked up by what they equal."""
        object.__setattr__(self, name, value)

    def updated(self, **changes: Any) -> Options:
        """A copy with `changes`.

        >>> Options().updated(schedule="most").schedule
        'most'
        """
        refuse_unknown(changes)
        return replace(self, **changes)

    def inside(self, inner: Options, machine: bool) -> Options:
        """Options of a program called inside one with these: a part of it, or for a batch a `machine` of its own.

        What is set here holds there; a machine of its own keeps what it sets itself. A carrier that runs each lane by
        itself runs all that is inside the lane, so it is not passed on; nor are "local" and "levels", which are for the
        host alone.
        What a gradient saves is passed on where it is taken (`diff/sweep.py`). What decides what a program gives beside
        its answers (`throw`, `stats`, `max_steps`) is counted and reported for the whole.

        >>> outer = Options(carrier="ticks", schedule="most")
        >>> inner = outer.inside(Options(schedule="sweep"), machine=True)
        >>> inner.carrier, inner.schedule
        ('ticks', 'sweep')
        """
        changes: dict[str, Any] = {}
        for name in ("schedule", "carrier", "max_depth"):
            value, own = getattr(self, name), getattr(inner, name)
            kept = machine and own != getattr(_DEFAULT, name)
            if (
                value not in (getattr(_DEFAULT, name), own, "local", "levels", "native", "kernel")
                and not kept
            ):
                changes[name] = value
        if inner.lanes is not None and changes.get("schedule") == "plain":
            del changes["schedule"]
        return replace(inner, **changes) if changes else inner

    @property
    def watched(self) -> bool:
        """Whether a run is to be reported."""
        return self.progress or self.recorded

    def unwatched(self) -> Options:
        """The same for a run that is not reported: what is decided does not depend on it."""
        return replace(self, progress=False, recorded=False, devices=1) if self.watched else self

    def of_kernel(self) -> Options:
        """What a kernel's text depends on: one that is recorded counts the steps of its lanes."""
        return Options(max_steps=self.max_steps, stats=self.stats or self.recorded)

    def with_tape_of(self, checkpoints: Checkpointing, records: int, grows: bool) -> Options:
        """The same for a program inside another whose gradient saves like this."""
        return replace(self, checkpoints=checkpoints, tape=records, tape_grows=grows)

    def as_recorded(self) -> Options:
        """The same for a run that is recorded."""
        return replace(self, recorded=True)


def on_each_of(options: Options, devices: int) -> Options:
    """The options of runs on several devices, whose progress is shown together."""
    return replace(options, devices=devices) if options.progress else options


_NOT_THE_CALLERS = ("recorded", "tape_grows", "devices")
NAMES = tuple(field.name for field in fields(Options) if field.name not in _NOT_THE_CALLERS)


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise if one of these is no option that a caller can set."""
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise OptionError(
                f"{name!r} is not an option of a program; options are {', '.join(NAMES)}{meant}"
            )


def _one_of(name: str, value: object, allowed: tuple[str, ...], or_none: bool = False) -> None:
    if not (isinstance(value, str) and value in allowed):
        known = ", ".join([*map(repr, allowed), *(["None"] if or_none else [])])
        raise OptionError(f"{name}={value!r} is not known; choose one of {known}.")


def flag(name: str, value: object) -> bool:
    """A setting that is on or off; NumPy's bools count.

    >>> flag("throw", np.bool_(False))
    False
    """
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name}={value!r} must be True or False.")
    return bool(value)


def positive_or_none(name: str, value: object) -> int | None:
    number = _as_positive(value)
    if value is not None and number is None:
        raise OptionError(f"{name}={value!r} must be a positive int, or None for no bound.")
    return number


def _as_positive(value: object) -> int | None:
    """A positive whole number as an int, NumPy's among them; None for anything else."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if whole and value >= 1 else None  # type: ignore[operator,arg-type]


_DEFAULT = Options()
