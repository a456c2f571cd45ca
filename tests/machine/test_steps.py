"""`max_steps` counts the same on every carrier and schedule: one for the call, one for each iteration and each call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw

HOWS: list[dict[str, Any]] = [
    {"carrier": "native"},
    *({"carrier": "ticks", "schedule": name} for name in ("lowest", "most", "sweep", "local")),
    {"carrier": "ticks", "lanes": 2},
]


@lw.program
def nest(n):
    """1 for the call, n outer iterations, each with n inner ones."""
    total, i = 0, n
    while i > 0:
        for j in range(n):
            if (i + j) % 2 == 0:
                total += j
        i -= 1
    return total


@lw.program
def left_early(n):
    """The iteration that leaves counts too."""
    i = n * 0
    while True:
        i += 1
        if i > n:
            break
    return i


@lw.program
def inner(n):
    while n > 2:
        n -= 1
    return n


@lw.program
def calls_another(n):
    """A program that is called is a call: 1 + 1 + its iterations."""
    return inner(n) + 1


@lw.program
def calls_itself(n):
    """A call for each frame."""
    return 0 if n <= 0 else 1 + calls_itself(n - 1)


@lw.program
def tail(n, total):
    """A call in tail position is one, though no frame is kept."""
    if n <= 0:
        return total
    return tail(n - 1, total + n)


def scanned(n):
    return jax.lax.scan(lambda c, x: (c + x * n, None), n, jnp.arange(5))[0]


# Two neighbours, one of which needs a step more than there is in most of these.
NS = np.array([0, 1, 3, 4], np.int32)
CASES: dict[str, tuple[Any, Any]] = {
    "nest": (nest, lambda n: 1 + n + n * n),
    "left_early": (left_early, lambda n: 1 + n + 1),
    "calls_another": (calls_another, lambda n: 2 + max(n - 2, 0)),
    "calls_itself": (calls_itself, lambda n: 1 + n),
    "tail": (lw.program(lambda n: tail(n, 0)), lambda n: 2 + n),
    "scanned": (lw.lift(scanned), lambda n: 6),
}


@pytest.mark.parametrize("name", CASES)
def test_every_carrier_and_schedule_counts_alike(name: str) -> None:
    program, steps = CASES[name]
    wanted = np.array([steps(int(n)) for n in NS])
    # All need the same of a scan: one step less ends them all.
    bound = int(wanted[2]) - (name == "scanned")
    for how in HOWS:
        _, outcomes = lw.vmap(program, max_steps=bound, throw=False, **how)(jnp.array(NS))
        assert np.asarray(outcomes.ok()).tolist() == (wanted <= bound).tolist(), how
