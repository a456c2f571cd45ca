"""Programs in which nothing diverges: there is nothing to win, and nothing may be lost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from control.case import Case, entry
from control.networks import weights


@lw.program
def horner(x, coefficients):
    total = jnp.zeros_like(x)
    for i in range(coefficients.shape[0]):
        total = total * x + coefficients[i]
    return total


def horner_lax(x: jax.Array, coefficients: jax.Array) -> jax.Array:
    return lax.fori_loop(
        0, coefficients.shape[0], lambda i, total: total * x + coefficients[i], jnp.zeros_like(x)
    )


def horner_case(lanes: int, small: bool) -> Case:
    """Many points a lane, so that there is something to time."""
    points, terms = (4, 4) if small else (256, 64)
    rng = np.random.default_rng(60)
    x = rng.uniform(-1.0, 1.0, (lanes, points)).astype(np.float32)
    coefficients = rng.standard_normal(terms).astype(np.float32)
    return Case(horner, horner_lax, (x, coefficients), (0, None))


@lw.program
def chain(x, matrices):
    for i in range(matrices.shape[0]):
        x = jnp.tanh(x @ matrices[i])
    return x


def chain_lax(x: jax.Array, matrices: jax.Array) -> jax.Array:
    return lax.scan(lambda x, matrix: (jnp.tanh(x @ matrix), None), x, matrices)[0]


def chain_case(lanes: int, small: bool) -> Case:
    width, depth = (8, 3) if small else (256, 16)
    rng = np.random.default_rng(61)
    x = rng.standard_normal((lanes, width)).astype(np.float32)
    return Case(chain, chain_lax, (x, weights(rng, depth, width, width)), (0, None), rtol=1e-3)


@lw.program
def attention(query, keys, values):
    return jax.nn.softmax(keys @ query) @ values


def attention_lax(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    return jax.nn.softmax(keys @ query) @ values


def attention_case(lanes: int, small: bool) -> Case:
    width, length = (4, 6) if small else (64, 512)
    rng = np.random.default_rng(62)
    query = rng.standard_normal((lanes, width)).astype(np.float32)
    keys, values = (rng.standard_normal((2, length, width)) / np.sqrt(width)).astype(np.float32)
    return Case(attention, attention_lax, (query, keys, values), (0, None, None))


ENTRIES = (
    entry("Horner, fixed", horner_case, "steady", "small"),
    entry("matrix chain, fixed", chain_case, "steady", "matrix"),
    entry("softmax, straight", attention_case, "steady", "matrix"),
)
