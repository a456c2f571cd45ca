"""What derivatives take to compile: rows of `compile.py`.

Loops of known length against JAX's own gradient of the same `lax` form; orders of a recursion, which JAX has not,
against each other. Each is a first call in a process of its own with an empty folder for the compilers' caches, and
what counts is CPU time, that of the C++ compiler included: seconds on the clock depend on what else runs.
"""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from _harness import Claim, in_turns

AGAINST_JAX = "<= 2.0"
AGAINST_FIRST_ORDER = "<= 4.0"


def scanned(x: jax.Array) -> jax.Array:
    """A scan with a branch in it."""

    def step(state: Any, i: Any) -> Any:
        y = jnp.sin(state * x) + i
        return lax.cond(y > 1.0, lambda: y * 0.5, lambda: y + 0.1), y

    last, ys = lax.scan(step, x, jnp.arange(20.0))
    return last + ys.sum()


def nested(x: jax.Array) -> jax.Array:
    """Loops in loops around a product."""

    def layers(weights: jax.Array) -> jax.Array:
        def inner(j: Any, state: Any) -> Any:
            return jnp.tanh(weights @ state) + 0.1 * state

        def outer(i: Any, state: Any) -> Any:
            return lax.fori_loop(0, 3, inner, state)

        return lax.fori_loop(0, 5, outer, jnp.ones(8)).sum()

    return layers(jnp.ones((8, 8)) * x) + layers(jnp.eye(8) * x * 0.1)


@lw.program
def quadrature(a, b, tolerance):
    """Adaptive Simpson: a recursion with two calls."""
    middle = 0.5 * (a + b)
    left, right = 0.5 * (a + middle), 0.5 * (middle + b)
    ends = jnp.sin(a * a), jnp.sin(b * b)
    half, one, two = jnp.sin(middle * middle), jnp.sin(left * left), jnp.sin(right * right)
    whole = (b - a) / 6 * (ends[0] + 4 * half + ends[1])
    first = (middle - a) / 6 * (ends[0] + 4 * one + half)
    second = (b - middle) / 6 * (half + 4 * two + ends[1])
    if jnp.abs(first + second - whole) <= tolerance:
        return first + second
    return quadrature(a, middle, tolerance / 2) + quadrature(middle, b, tolerance / 2)


def derivative(fun: Callable[..., Any], order: int) -> Callable[..., Any]:
    for _ in range(order):
        fun = jax.grad(fun)
    return fun


def _one() -> tuple[Any, ...]:
    return (jnp.float32(1.2),)


def _interval(lanes: int | None) -> tuple[Any, ...]:
    start = np.float32(0.1) if lanes is None else np.linspace(0.05, 0.1, lanes, dtype=np.float32)
    return jnp.asarray(start), jnp.float32(2.0), jnp.float32(1e-3)


def _text(ours: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from ad import dlstm

    case = dlstm.entry(2, 1024).make(False)
    return jax.jit((case.ours if ours else case.jax).gradient), case.arguments


def _over_lanes(order: int) -> Callable[..., Any]:
    return jax.vmap(derivative(quadrature, order), in_axes=(0, None, None))


# What is called for the first time, and with what, by the name it has in a claim.
CALLS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "scan, ours": lambda: (jax.jit(jax.grad(lw.lift(scanned))), _one()),
    "scan, JAX": lambda: (jax.jit(jax.grad(scanned)), _one()),
    "scan twice, ours": lambda: (jax.jit(derivative(lw.lift(scanned), 2)), _one()),
    "scan twice, JAX": lambda: (jax.jit(derivative(scanned, 2)), _one()),
    "nest, ours": lambda: (jax.jit(jax.grad(lw.lift(nested))), _one()),
    "nest, JAX": lambda: (jax.jit(jax.grad(nested)), _one()),
    "D-LSTM, ours": lambda: _text(ours=True),
    "D-LSTM, JAX": lambda: _text(ours=False),
    "recursion once": lambda: (derivative(quadrature, 1), _interval(None)),
    "recursion twice": lambda: (derivative(quadrature, 2), _interval(None)),
    "recursion once, batched": lambda: (_over_lanes(1), _interval(8)),
    "recursion twice, batched": lambda: (_over_lanes(2), _interval(8)),
}
ROWS = (
    ("gradient of a scan", "scan, ours", "scan, JAX", AGAINST_JAX),
    ("second derivative of a scan", "scan twice, ours", "scan twice, JAX", AGAINST_JAX),
    ("gradient of a nest", "nest, ours", "nest, JAX", AGAINST_JAX),
    ("gradient of D-LSTM", "D-LSTM, ours", "D-LSTM, JAX", AGAINST_JAX),
    (
        "second derivative of a recursion over the first",
        "recursion twice",
        "recursion once",
        AGAINST_FIRST_ORDER,
    ),
    (
        "the same of a batch",
        "recursion twice, batched",
        "recursion once, batched",
        AGAINST_FIRST_ORDER,
    ),
)


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + spent.ru_utime + spent.ru_stime


def measure(name: str) -> float:
    """CPU seconds of a first call in this process, after that of another: what is imported late is there."""
    halved = lw.lift(lambda x: lax.while_loop(lambda y: y > 1.0, lambda y: y / 2.0, x))
    jax.block_until_ready(jax.vmap(jax.grad(halved))(jnp.ones(4) * 3.0))
    fun, arguments = CALLS[name]()
    arguments = jax.device_put(arguments)
    start = _cpu_seconds()
    jax.block_until_ready(fun(*arguments))
    return _cpu_seconds() - start


def _measured_apart(name: str) -> float:
    with tempfile.TemporaryDirectory() as empty:
        kept_nowhere = {**os.environ, "TMPDIR": empty, "XDG_CACHE_HOME": empty}
        if name.startswith("D-LSTM"):
            kept_nowhere["JAX_ENABLE_X64"] = "1"
        done = subprocess.run(
            [sys.executable, __file__, name],
            env=kept_nowhere,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout.split()[-1])


def claims(repeats: int, rows: Sequence[tuple[str, str, str, str]] = ROWS) -> list[Claim]:
    """The rows, each printed as it is measured."""
    return [
        in_turns(
            f"compile, CPU seconds: {title}",
            target,
            (ours, functools.partial(_measured_apart, ours)),
            (peer, functools.partial(_measured_apart, peer)),
            repeats,
        )
        for title, ours, peer, target in rows
    ]


if __name__ == "__main__":
    print(measure(sys.argv[1]))
