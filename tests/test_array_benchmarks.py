"""The benchmarks of array operators compute what they claim: ours and the peer have the same gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ad import gathers, product, recurrences, scan_compile
from comparing import assert_same


def test_products() -> None:
    x = product.numbers(1000)
    assert_same(jax.grad(product.product)(x), jax.grad(jnp.prod)(x), 1e-4)


def test_scans() -> None:
    maps = scan_compile.maps(300)
    ours = jax.jit(jax.grad(scan_compile.loss(scan_compile.ours)))(maps)
    plain = jax.jit(jax.grad(scan_compile.loss(one_after_the_other)))(maps)
    assert_same(ours, plain, 1e-3)
    assert_same(jax.jit(scan_compile.peer)(maps), one_after_the_other(maps), 1e-3)


@pytest.mark.parametrize(
    "ours, peer, xs",
    [
        (recurrences.states, recurrences.states_jax, recurrences.coefficients(300)),
        (recurrences.products, recurrences.products_jax, recurrences.matrices(300)),
    ],
    ids=["affine", "matrices"],
)
def test_recurrences(ours, peer, xs) -> None:
    mine, theirs = (jax.jit(recurrences.gradient(scan))(xs) for scan in (ours, peer))
    assert_same(mine, theirs, 1e-3)


def one_after_the_other(maps: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    def step(f: tuple[jax.Array, ...], g: tuple[jax.Array, ...]):
        found = scan_compile.then(f, g)
        return found, found

    start = tuple(map(jnp.float32, scan_compile.NEUTRAL))
    return jax.lax.scan(step, start, maps)[1]


@pytest.mark.parametrize(
    "ours, peer",
    [
        (gathers.ours, gathers.in_loops),
        (gathers.ours_following, gathers.following_in_loops),
    ],
    ids=["independent", "following"],
)
def test_gathers(ours, peer) -> None:
    table = jnp.asarray(np.random.default_rng(0).normal(size=gathers.SIZE), jnp.float32)
    assert_same(jax.jit(jax.grad(ours))(table), jax.jit(jax.grad(peer))(table), 1e-4)
