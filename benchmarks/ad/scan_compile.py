"""How long the gradient of a scan with a user's operator takes to compile, beside `jax.lax.associative_scan`.

    python -m ad.scan_compile     (in benchmarks/; `python benchmarks/array_operators.py` runs it too)

The operator composes affine maps of the plane: six numbers an element. JAX's scan unrolls a level of slices for each
doubling of the length; ours is three levels of two loops at a million elements.
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

LENGTH = 10**6


def then(f: Any, g: Any) -> Any:
    """One affine map of the plane after the other."""
    a, b, c, d, x, y = f
    p, q, r, s, u, v = g
    return (
        p * a + q * c,
        p * b + q * d,
        r * a + s * c,
        r * b + s * d,
        p * x + q * y + u,
        r * x + s * y + v,
    )


NEUTRAL = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


def maps(length: int = LENGTH) -> Any:
    """Rotations, slightly shrinking, with small shifts."""
    rng = np.random.default_rng(0)
    angle, shrink = rng.uniform(-1, 1, length), 0.99
    cos, sin = shrink * np.cos(angle), shrink * np.sin(angle)
    parts = (cos, -sin, sin, cos, *(0.1 * rng.normal(size=(2, length))))
    return tuple(jnp.asarray(x, jnp.float32) for x in parts)


def ours(xs: Any) -> Any:
    return lw.arrays.scan(then, xs, neutral=NEUTRAL)


def peer(xs: Any) -> Any:
    return lax.associative_scan(then, xs)


def loss(scan: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def of_shifts(xs: Any) -> Any:
        *_, x, y = scan(xs)
        return jnp.sum(x * x + jnp.sin(y))

    return of_shifts


def measure(length: int = LENGTH, repeats: int = 5) -> list[Claim]:
    arguments = (maps(length),)
    gradients = {"ours": jax.grad(loss(ours)), "jax": jax.grad(loss(peer))}
    compiled, took_to_compile = {}, {}
    for name, gradient in gradients.items():
        compiled[name], took_to_compile[name] = compile_seconds(gradient, arguments)
        print(f"{name}: gradient compiled in {took_to_compile[name]:.2f} s", flush=True)
    for mine, theirs in zip(compiled["ours"](*arguments), compiled["jax"](*arguments), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-3)
    took = medians(compiled, arguments, repeats)
    for name, seconds in took.items():
        print(f"{name}: gradient runs in {1e3 * seconds:.1f} ms", flush=True)
    name = f"gradient of a scan of {length:,} affine maps"
    return [
        # Against five seconds, whatever JAX takes: the ratio is to that bound.
        Claim(f"{name}: compile time over 5 s", took_to_compile["ours"], 5.0, "<= 1"),
        Claim(
            f"{name}: compile time beside associative_scan",
            took_to_compile["ours"],
            took_to_compile["jax"],
            ">= 5",
        ),
        Claim(f"{name}: run time beside associative_scan", took["ours"], took["jax"], ">= 1"),
    ]


if __name__ == "__main__":
    report(measure())
