"""What a benchmark of the suite is: one function in our form, in plain JAX and in PyTorch, and its gradient.

The figure of merit is *overhead*: the time of the gradient over the time of the function itself, each
system measured against its own function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Pair:
    """A function and what differentiates it; both take the case's arguments."""

    primal: Callable[..., Any]
    gradient: Callable[..., Any]


def gradient_of_sum(fun: Callable[..., Any]) -> Callable[..., Any]:
    """By the first argument, of all that a function gives."""
    return jax.grad(lambda *args: jnp.sum(fun(*args)))


@dataclass(frozen=True)
class Case:
    """A function at one size.

    `torch` is called with PyTorch's module and gives the pair on its tensors; the arguments become tensors
    of the same types. `reference`, where there is one, is the gradient by hand, in NumPy: all three are
    held to it, and to JAX's own where there is none, in all entries but for the share that `agreement` leaves: below
    one where rounding decides. `double` runs all of it in float64.
    """

    ours: Pair
    jax: Pair
    torch: Callable[[Any], Pair] | None
    arguments: tuple[Any, ...]
    double: bool = False
    reference: Callable[..., Any] | None = None
    rtol: float = 1e-4
    atol: float = 1e-5
    agreement: float = 1.0


@dataclass(frozen=True)
class Entry:
    """A benchmark: `make(small)` gives it at the size of a benchmark or of a test.

    `target` is the most that its overhead may be. `fastest` asks also that our gradient takes less time
    than JAX's and PyTorch's, and measures overhead against the fastest of the three functions, so that a
    slow one of ours cannot flatter it. `memory` is the most that our gradient may take, arguments and results
    included, over our function.
    """

    name: str
    size: str
    make: Callable[[bool], Case]
    target: str
    fastest: bool = False
    memory: str | None = None
    large: bool = False  # too large for the CPU of `make bench`: only where it is named

    @property
    def key(self) -> str:
        """The name on the command line.

        >>> Entry("HAND simple", "", lambda small: None, "<= 5").key
        'hand_simple'
        """
        return self.name.replace(" ", "_").replace("-", "_").replace(",", "").lower()


def one_lane() -> str:
    """The carrier that runs each lane by itself on this device, for who must say what a tape holds."""
    return "native" if jax.default_backend() == "cpu" else "kernel"
