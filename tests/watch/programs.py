"""Programs that the tests of `watch` run, and what they should come to."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import lanewise as lw


@lw.program
def decay(x, n):
    i = 0
    while i < n:
        x = x * 0.5 if x > 1.0 else x + 1.0
        i += 1
    return x


def collatz_steps(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


NUMBERS = jnp.arange(1, 41)
STEPS = np.array([collatz_steps(n) for n in range(1, 41)])
SWEPT: dict[str, Any] = {"carrier": "ticks", "schedule": "sweep"}
