"""What a benchmark of the suite is: one function in our form, in plain JAX and in PyTorch, and its gradient.

The figure of merit is *overhead*: the time of the gradient over the time of the function itself. It is given against
a system's own function, and against the fastest function among the systems, so that a slow function flatters no system.
All systems have the same algebraic form of a function, written as its users would: what is gained by a better form is
not gained by a system. Where a published form differs from the best one, it is a benchmark of its own, in all
systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Pair:
    """A function and what differentiates it; both take the case's arguments."""

    primal: Callable[..., Any]
    gradient: Callable[..., Any]


def weighted_sum(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A number made of all that a function gives: its sum with random weights, which are the cotangent."""

    def scalar(*args: Any) -> Any:
        found = fun(*args)
        return jnp.vdot(cotangent(found.shape).astype(found.dtype), found)

    return scalar


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(11).standard_normal(shape)


@dataclass(frozen=True)
class Torch:
    """PyTorch's function and its gradient, on tensors.

    `prepare` makes of the arguments what the two take, before anything is timed; `leaves` says which of that is
    differentiated by autograd; `finish` makes of a gradient what the others give, after it.
    """

    primal: Callable[..., Any]
    gradient: Callable[..., Any]
    leaves: tuple[int, ...] = ()
    prepare: Callable[..., Sequence[Any]] | None = None
    finish: Callable[[Any], Any] | None = None


def by_autograd(torch: Any, primal: Callable[..., Any], leaves: tuple[int, ...]) -> Torch:
    """A scalar function and its gradient by the leaves."""

    def gradient(*tensors: Any) -> Any:
        return torch.autograd.grad(primal(*tensors), [tensors[i] for i in leaves])

    return Torch(primal, gradient, leaves)


# Called with PyTorch's module and with what compiles a function, which leaves it as it is where that is not wanted.
MakeTorch = Callable[[Any, Callable[[Any], Any]], Torch]


@dataclass(frozen=True)
class Case:
    """A function at one size.

    The arguments become tensors, integers of 64 bits as PyTorch's indices are. `compiles`: `torch.compile` makes
    something of it in reasonable time, which it does not of a Python loop of hundreds of steps. `reference`, where
    there is one, is the gradient by hand, in NumPy: all are held to it, and to JAX's own where there is none, in all
    entries but for the share that `agreement` leaves: below one where rounding decides. `double` runs all of it in
    float64.
    """

    ours: Pair
    jax: Pair
    torch: MakeTorch | None
    arguments: tuple[Any, ...]
    compiles: bool = True
    double: bool = False
    reference: Callable[..., Any] | None = None
    rtol: float = 1e-4
    atol: float = 1e-5
    agreement: float = 1.0


@dataclass(frozen=True)
class Entry:
    """A benchmark: `make(small)` gives it at the size of a benchmark or of a test.

    `target` is the most that its overhead may be, against our own function and against the fastest. `memory` is the
    most that our gradient may take, arguments and results included, over our function.
    """

    name: str
    size: str
    make: Callable[[bool], Case]
    target: str
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
    """The carrier that runs each lane separately on this device, for callers that must say what a tape holds."""
    return "native" if jax.default_backend() == "cpu" else "kernel"
