"""Associative operators with elements to combine, for the tests of the array operators, and what they mean in loops."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Sample:
    """An operator, its neutral element, and `(rng, n)` to a sequence."""

    name: str
    operator: Callable[[Any, Any], Any]
    neutral: Any
    make: Callable[[np.random.Generator, int], Any]
    smooth: bool = True

    def __repr__(self) -> str:
        return self.name


def affine(f: Any, g: Any) -> Any:
    return g[0] * f[0], g[0] * f[1] + g[1]


def larger_with_index(a: Any, b: Any) -> Any:
    take = b["value"] > a["value"]
    return jax.tree.map(lambda x, y: jnp.where(take, y, x), a, b)


def with_products(a: Any, b: Any) -> Any:
    return a + b + a * b


def _normal(*shape: int, scale: float = 1.0, offset: float = 0.0) -> Callable[..., Any]:
    return lambda rng, n: offset + scale * rng.normal(size=(n, *shape))


def _complex(rng: np.random.Generator, n: int) -> Any:
    return np.exp(1j * rng.uniform(0, 6, n)) * rng.uniform(0.9, 1.1, n)


KNOWN = (
    Sample("add", operator.add, 0.0, _normal()),
    Sample("add_vectors", lambda a, b: b + a, 0.0, _normal(3)),
    Sample("multiply", jnp.multiply, 1.0, _normal(scale=0.1, offset=1.0)),
    Sample("multiply_rows", lambda a, b: a * b, 1.0, _normal(2, scale=0.1, offset=-1.0)),
    Sample("multiply_complex", jnp.multiply, 1.0 + 0.0j, _complex),
    Sample("maximum", jnp.maximum, -np.inf, _normal()),
    Sample("minimum_rows", jnp.minimum, np.inf, _normal(2)),
    Sample("logaddexp", jnp.logaddexp, -np.inf, _normal()),
    Sample(
        "sum_and_largest",
        lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])),
        (0.0, -np.inf),
        lambda rng, n: (rng.normal(size=n), rng.normal(size=(n, 2))),
    ),
    Sample("add_integers", jnp.add, 0, lambda rng, n: rng.integers(-9, 9, n), smooth=False),
    Sample("xor_like_or", jnp.bitwise_or, 0, lambda rng, n: rng.integers(0, 99, n), smooth=False),
    Sample("and", operator.and_, -1, lambda rng, n: rng.integers(-9, -1, n), smooth=False),
    Sample("any", jnp.logical_or, False, lambda rng, n: rng.random(n) < 0.1, smooth=False),
    Sample("all", operator.and_, True, lambda rng, n: rng.random(n) < 0.9, smooth=False),
    Sample(
        "largest_integer", jnp.maximum, -100, lambda rng, n: rng.integers(-9, 9, n), smooth=False
    ),
)

GENERAL = (
    Sample("with_products", with_products, 0.0, _normal(scale=0.1)),
    Sample(
        "affine",
        affine,
        (1.0, 0.0),
        lambda rng, n: (rng.uniform(0.5, 1.2, n), rng.normal(size=n)),
    ),
    Sample(
        "affine_rows",
        affine,
        (np.ones(2), np.zeros(2)),
        lambda rng, n: (rng.uniform(0.5, 1.2, (n, 2)), rng.normal(size=(n, 2))),
    ),
    Sample(
        "matrices",
        jnp.matmul,
        np.eye(2),
        lambda rng, n: np.eye(2) + 0.1 * rng.normal(size=(n, 2, 2)),
    ),
    Sample(
        "larger_with_index",
        larger_with_index,
        {"value": -np.inf, "index": -1},
        lambda rng, n: {"value": rng.normal(size=n), "index": np.arange(n)},
    ),
    Sample(
        "latest_nonzero",
        lambda a, b: jnp.where(b == 0, a, b),
        0,
        lambda rng, n: rng.integers(0, 3, n),
        smooth=False,
    ),
)

EVERY = (*KNOWN, *GENERAL)
SMOOTH = tuple(sample for sample in EVERY if sample.smooth)


def row(xs: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: x[i], xs)


def in_loop(sample: Sample, xs: Any) -> Any:
    """All prefixes, one after the other."""

    def step(before: Any, x: Any) -> Any:
        after = sample.operator(before, x)
        return after, after

    _, rest = lax.scan(step, row(xs, 0), jax.tree.map(lambda x: x[1:], xs))
    return jax.tree.map(lambda x, r: jnp.concatenate([x[:1], r]), xs, rest)


def neutral_of(sample: Sample, xs: Any) -> Any:
    """The neutral element in the types of an element."""
    return jax.tree.map(
        lambda e, x: jnp.broadcast_to(jnp.asarray(e, x.dtype), x.shape[1:]), sample.neutral, xs
    )


def sequence(sample: Sample, n: int, seed: int = 0) -> Any:
    return jax.tree.map(jnp.asarray, sample.make(np.random.default_rng(seed), n))
