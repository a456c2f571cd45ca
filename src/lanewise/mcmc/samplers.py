"""What a sampler is: one draw of one chain, as a program, and what is reported of it."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.space import Density, Place, Space

# An energy that is off by more than this tells that the integrator has left the level set.
DIVERGED = 1000.0


class Info(NamedTuple):
    """What is reported of a draw beside its place."""

    acceptance: Float[Array, ""]
    energy: Float[Array, ""]
    tree_depth: Int[Array, ""]
    leapfrogs: Int[Array, ""]
    diverging: Bool[Array, ""]


class Sampler(Protocol):
    """A way to draw: hashable, since programs are kept for each. Steps are adapted to `target_accept`."""

    @property
    def target_accept(self) -> float: ...

    def draw(
        self, density: Density, space: Space, key: Key[Array, ""], place: Place, step: Array
    ) -> tuple[Place, Info]:
        """The next place of a chain, and what is reported of how it was found."""
        ...


@runtime_checkable
class Ensemble(Protocol):
    """A sampler whose chains learn from each other at every step: `sample` hands the whole call over to it."""

    def sample(self, model: Any, key: Any, **asked: Any) -> Any:
        """What `lanewise.mcmc.sample` gives, of the same arguments."""
        ...


def must_be_share(name: str, value: float) -> None:
    if not isinstance(value, numbers.Real) or not 0.0 < value < 1.0:
        raise OptionError(f"{name}={value!r} must be a number between 0 and 1.")


def must_be_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise OptionError(f"{name}={value!r} must be an int, {least} or more.")


def must_not_be_given(options: dict[str, Any]) -> None:
    """Raise for an option of `sample` that an ensemble does not take; None is one that was left out."""
    for name, value in options.items():
        if value is not None:
            raise OptionError(
                f"{name}= is for NUTS, HMC and MCLMC: samplers whose chains meet at every draw do not take it."
            )
