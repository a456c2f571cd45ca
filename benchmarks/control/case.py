"""What a program of the suite is: both forms, a batch of arguments, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# What a lane's state is, and whether lanes part ways: the rows of the targets are chosen by these.
Tag = Literal["diverges", "steady", "scalar", "small", "matrix", "recursive"]


@dataclass(frozen=True)
class Case:
    """A program at one size.

    `ours` is the plain-Python program, or a library's function as it is; `twin` what a JAX user writes
    for `jax.vmap`. `agreement` is the least share of lanes that must be equal to `rtol` and `atol`: below
    one where a rounding difference may send a lane another way for good.
    """

    ours: Callable[..., Any]
    twin: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_axes: tuple[int | None, ...]
    rtol: float = 1e-4
    atol: float = 1e-4
    agreement: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A program of the suite: `make(lanes, small)` gives it at the size of a benchmark or of a test."""

    name: str
    make: Callable[[int, bool], Case]
    tags: frozenset[Tag]
    needs: str | None = None  # the library it is made of, where it is another's

    @property
    def key(self) -> str:
        """The name on the command line, and of the hand-written limits.

        >>> Entry("escape time", lambda lanes, small: None, frozenset()).key
        'escape_time'
        """
        return self.name.replace(" ", "_").replace(",", "").replace("-", "_").lower()


def entry(
    name: str, make: Callable[[int, bool], Case], *tags: Tag, needs: str | None = None
) -> Entry:
    return Entry(name, make, frozenset(tags), needs)
