"""What a sampler is: one draw of one chain, as a program, and its statistics."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.space import Density, Place, Space

# An energy that is off by more than this shows that the integrator has left the level set.
DIVERGED = 1000.0


class Info(NamedTuple):
    """The statistics of a draw."""

    acceptance: Float[Array, ""]
    energy: Float[Array, ""]
    tree_depth: Int[Array, ""]
    leapfrogs: Int[Array, ""]
    diverging: Bool[Array, ""]


class Sampler(Protocol):
    """A way to draw: hashable, since programs are cached for each. Steps are adapted to `target_accept`."""

    @property
    def target_accept(self) -> float: ...

    def draw(
        self, density: Density, space: Space, key: Key[Array, ""], place: Place, step: Array
    ) -> tuple[Place, Info]:
        """The next place of a chain, and the statistics of the draw."""
        ...


@runtime_checkable
class Ensemble(Protocol):
    """A sampler whose chains learn from each other in its own way: it has a program and a `Loop` (`loop.py`)."""

    @property
    def target_accept(self) -> float: ...

    @property
    def most_draws(self) -> int:
        """A stretch has room for no more."""
        ...

    def must_fit(self, settings: Any) -> None:
        """Raise for settings with which it cannot run."""
        ...

    def program(self, density: Density, capacity: int) -> Any:
        """The program of a stretch of a chain."""
        ...

    def loop(self) -> Any:
        """The class of its loop."""
        ...


def must_be_share(name: str, value: float) -> None:
    if not isinstance(value, numbers.Real) or not 0.0 < value < 1.0:
        raise OptionError(f"{name}={value!r} must be a number between 0 and 1.")


def must_be_count(name: str, value: Any, least: int) -> int:
    """A Python int; raise for other types, and if it is too small."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise OptionError(f"{name}={value!r} must be an int, {least} or more.")
    return int(value)


def must_be_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """
    >>> must_be_one_of("mass_matrix", "unit", ("diagonal", "unit"))
    """
    if not isinstance(value, str) or value not in allowed:
        known = ", ".join(map(repr, allowed))
        raise OptionError(f"{name}={value!r} is not known; choose one of {known}.")
