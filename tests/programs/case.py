"""What one program of the corpus is, and short ways to say what inputs it takes.

A spec is a function `(rng, n) -> batch` for one argument; `inputs` puts specs together:

>>> example = inputs(ints(1, 9), floats(0.0, 1.0, 3))
>>> [a.shape for a in example(np.random.default_rng(0), 5)]
[(5,), (5, 3)]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import lanewise as lw

Spec = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True)
class Case:
    """A program, how to make inputs for it, and what may be asked of it.

    Fields:
      name: unique in the corpus.
      program: written for one example, in plain Python control flow.
      examples: `(rng, n)` to the positional arguments of a batch of `n`, stacked on axis 0 where
        `in_axes` says so. Lanes are cheap (at most about 2,000 iterations and calls) and uneven.
      in_axes: as `jax.vmap` takes it; `None` where an argument is shared by all lanes.
      lax_form: the same function by hand in `jax.lax` control flow, where JAX can express it.
      rtol: tolerance of inexact results, relative and absolute; 0 means bit for bit. Integers and
        bools are always exact.
      differentiable: positions of arguments by which a derivative makes sense.
      recursive: the program calls itself, directly or not.
      heavy: slow to compile or run; tests try fewer combinations.
      ticks_only: it holds an operation that kernels have no rule for.
    """

    name: str
    program: lw.ProgramFunction
    examples: Callable[[np.random.Generator, int], tuple[Any, ...]]
    in_axes: Any = 0
    lax_form: Callable[..., Any] | None = None
    rtol: float = 1e-5
    differentiable: tuple[int, ...] = ()
    recursive: bool = False
    heavy: bool = False
    ticks_only: bool = False

    def __repr__(self) -> str:
        return f"Case({self.name})"


def inputs(*specs: Spec) -> Callable[[np.random.Generator, int], tuple[Any, ...]]:
    """One spec for each positional argument."""
    return lambda rng, n: tuple(spec(rng, n) for spec in specs)


def ints(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Spec:
    """Integers from `low` to `high`, both included."""
    return lambda rng, n: rng.integers(low, high, (n, *shape), endpoint=True).astype(dtype)


def floats(low: float, high: float, *shape: int, dtype: Any = np.float32) -> Spec:
    """Uniform numbers."""
    return lambda rng, n: rng.uniform(low, high, (n, *shape)).astype(dtype)


def normals(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Spec:
    """Normal numbers."""
    return lambda rng, n: (scale * rng.normal(size=(n, *shape))).astype(dtype)


def flags(*shape: int, p: float = 0.5) -> Spec:
    """Bools, true with probability `p`."""
    return lambda rng, n: rng.random((n, *shape)) < p


def sorted_ints(low: int, high: int, length: int) -> Spec:
    """Rows of integers in ascending order."""
    return lambda rng, n: np.sort(ints(low, high, length)(rng, n), axis=-1)


def constant(value: Any) -> Spec:
    """The same argument for every batch, to be shared by all lanes."""
    return lambda rng, n: value


def keys(impl: str | None = None) -> Spec:
    """A typed random key for each lane."""
    seed = 2**31
    return lambda rng, n: jax.random.split(jax.random.key(int(rng.integers(seed)), impl=impl), n)
