"""What a caller may choose about how a program runs; never what it computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from lanewise.errors import OptionError

SCHEDULES = ("auto", "lowest", "most", "sweep", "meet", "local", "plain")
Checkpointing = str | int  # "auto", "all", "sqrt", or how many states
CARRIERS = ("auto", "ticks", "native", "kernel")

CHECKPOINTS = ("auto", "all", "sqrt")

# Inside `jit` a stack cannot grow; unless told otherwise it holds as many frames as Python's own.
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
    # Not the caller's to set: what runs inside `lanewise.report` and `lanewise.trace` is recorded.
    recorded: bool = False

    def __post_init__(self) -> None:
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("carrier", self.carrier, CARRIERS)
        _positive("max_steps", self.max_steps)
        _positive("max_depth", self.max_depth)
        _positive("lanes", self.lanes)
        _positive("tape", self.tape)
        if not isinstance(self.progress, bool):
            raise OptionError(f"progress={self.progress!r} must be True or False.")
        if self.offload is not None:
            _one_of("offload", self.offload, ("host",))
        if self.checkpoints not in CHECKPOINTS and not _is_positive(self.checkpoints):
            known = ", ".join(map(repr, CHECKPOINTS))
            raise OptionError(
                f"checkpoints={self.checkpoints!r} is not known; choose one of {known}, or a number of states, a"
                " positive int."
            )
        if self.lanes is not None and self.schedule in ("local", "plain"):
            raise OptionError(
                f"lanes={self.lanes} refills the lanes of a machine, and schedule={self.schedule!r} has none;"
                ' use schedule="auto", "sweep", "meet", "most" or "lowest", or leave lanes out.'
            )

    def updated(self, **changes: Any) -> Options:
        """A copy with `changes`.

        >>> Options().updated(schedule="most").schedule
        'most'
        """
        refuse_unknown(changes)
        return replace(self, **changes)

    @property
    def watched(self) -> bool:
        """Whether a run is to be told of."""
        return self.progress or self.recorded

    def unwatched(self) -> Options:
        """The same for a run that nobody is told of: what is decided does not depend on it."""
        return replace(self, progress=False, recorded=False) if self.watched else self

    def of_kernel(self) -> Options:
        """What a kernel's text depends on: one that is recorded counts the steps of its lanes."""
        return replace(self.unwatched(), stats=self.stats or self.recorded)

    def as_recorded(self) -> Options:
        """The same for a run that is recorded."""
        return replace(self, recorded=True)


NAMES = tuple(field.name for field in fields(Options) if field.name != "recorded")


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise if one of these is no option that a caller can set."""
    for name in names:
        if name not in NAMES:
            raise OptionError(
                f"{name!r} is not an option of a program; options are {', '.join(NAMES)}."
            )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(
            f"{name}={value!r} is not known; choose one of {', '.join(map(repr, allowed))}."
        )


def _positive(name: str, value: object) -> None:
    if value is not None and not _is_positive(value):
        raise OptionError(f"{name}={value!r} must be a positive int, or None for no bound.")


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
