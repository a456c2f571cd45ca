"""Gradients of scans by affine maps and by 2 × 2 matrices, beside those of `jax.lax.associative_scan`.

    python -m ad.recurrences     (in benchmarks/; `python benchmarks/array_operators.py` runs it too)

A linear recurrence s = a s + b of a million steps, as a scan of affine maps of which the states are wanted, and the
products of a million matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from _harness import Claim, compile_seconds, medians, report

STEPS = 10**6
MATRICES = 10**6


def then(f: Any, g: Any) -> Any:
    return g[0] * f[0], g[0] * f[1] + g[1]


def coefficients(length: int) -> Any:
    rng = np.random.default_rng(0)
    decay, push = rng.uniform(0.5, 1.0, length), rng.normal(size=length)
    return jnp.asarray(decay, jnp.float32), jnp.asarray(push, jnp.float32)


def matrices(length: int) -> Any:
    """Rotations, slightly shrinking."""
    angle = np.random.default_rng(0).uniform(-1, 1, length)
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=1)
    return jnp.asarray(0.9999 * turn.reshape(length, 2, 2), jnp.float32)


def states(xs: Any) -> Any:
    return lw.arrays.scan(then, xs)[1]


def states_jax(xs: Any) -> Any:
    return lax.associative_scan(then, xs)[1]


def products(xs: Any) -> Any:
    return lw.arrays.scan(jnp.matmul, xs)


def products_jax(xs: Any) -> Any:
    return lax.associative_scan(jnp.matmul, xs)


def gradient(scan: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda xs: jnp.sum(scan(xs) ** 2))


def measured(name: str, ours: Any, peer: Any, xs: Any, repeats: int) -> list[Claim]:
    functions = {
        "ours": ours,
        "jax": peer,
        "ours, gradient": gradient(ours),
        "jax, gradient": gradient(peer),
    }
    compiled, took = {}, {}
    for label, function in functions.items():
        compiled[label], took[label] = compile_seconds(function, (xs,))
        print(f"{name}, {label}: compiled in {took[label]:.2f} s", flush=True)
    found, expected = compiled["ours, gradient"](xs), compiled["jax, gradient"](xs)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-3 * scale)
    times = medians(compiled, (xs,), repeats)
    for label, seconds in times.items():
        print(f"{name}, {label}: {1e3 * seconds:.2f} ms", flush=True)
    what = f"gradient of a scan of {name}"
    return [
        Claim(f"{what}: over the scan", times["ours, gradient"], times["ours"], "<= 4"),
        Claim(
            f"{what}: beside associative_scan",
            times["ours, gradient"],
            times["jax, gradient"],
            ">= 1",
        ),
    ]


def measure(steps: int = STEPS, count: int = MATRICES, repeats: int = 9) -> list[Claim]:
    return [
        *measured(f"{steps:,} affine maps", states, states_jax, coefficients(steps), repeats),
        *measured(f"{count:,} 2 x 2 matrices", products, products_jax, matrices(count), repeats),
    ]


if __name__ == "__main__":
    report(measure())
