"""The loops over two places: numbers for both sides, and ours.

* `round`: a value goes to the second place and back in every iteration, so nothing can overlap. What is measured is a
  message, with a body of a number or of 64×64 products.
* `pipeline`: the first place makes values, the second takes them. Both do the same work, so the slower stage alone is
  the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from place.numbers import numbers

PLACES = {"first": 0, "second": 1}


@dataclass(frozen=True)
class Loop:
    """A loop over two places; `size` 0 is a body of a number, otherwise that of square matrices."""

    kind: str
    size: int

    @property
    def key(self) -> str:
        return f"{self.kind} {self.size}"


def times(a: Any, b: Any) -> Any:
    return a @ b if a.ndim else a * b


def make(z: Any, w: Any) -> Any:
    return jnp.tanh(times(z, w))


def take(state: Any, y: Any, w: Any) -> Any:
    return jnp.tanh(times(state, w) + y)


def round_trips(steps: Any, z: Any, w0: Any, w1: Any) -> Any:
    first, second = lw.placed(make, "first"), lw.placed(times, "second")

    def turn(carry: Any) -> Any:
        i, z = carry
        return i + 1, second(first(z, w0), w1)

    _, z = lax.while_loop(lambda carry: carry[0] < steps, turn, (jnp.int32(0), z))
    return lw.placed(jnp.sum, "second")(z)


def pipeline(steps: Any, z: Any, w0: Any, w1: Any) -> Any:
    first, second = lw.placed(make, "first"), lw.placed(take, "second")

    def turn(carry: Any) -> Any:
        i, x, s = carry
        y = first(x, w0)
        return i + 1, y, second(s, y, w1)

    start = (jnp.int32(0), z, z)
    *_, s = lax.while_loop(lambda carry: carry[0] < steps, turn, start)
    return lw.placed(jnp.sum, "second")(s)


def first_alone(steps: Any, z: Any, w0: Any, w1: Any) -> Any:
    del w1
    return jnp.sum(lax.fori_loop(0, steps, lambda _, x: make(x, w0), z))


def second_alone(steps: Any, z: Any, w0: Any, w1: Any) -> Any:
    del w0
    return jnp.sum(lax.fori_loop(0, steps, lambda _, s: take(s, z, w1), z))


# By kind: what is placed, and the stages that can run alone.
KINDS: dict[str, Callable[..., Any]] = {"round": round_trips, "pipeline": pipeline}
ALONE: tuple[Callable[..., Any], ...] = (first_alone, second_alone)


def placed(loop: Loop, places: Any, in_flight: int = 8) -> Callable[[int], Any]:
    """The loop over two places, of the number of its iterations."""
    run = lw.run(KINDS[loop.kind], places, in_flight=in_flight)
    args = list(map(jnp.asarray, numbers(loop.size)))
    return lambda steps: run(np.int32(steps), *args)


def stage_alone(loop: Loop, stage: int) -> Callable[[int], Any]:
    """What one of the places has to do, with no partner and no message."""
    run = jax.jit(ALONE[stage])
    args = list(map(jnp.asarray, numbers(loop.size)))
    return lambda steps: run(np.int32(steps), *args)
