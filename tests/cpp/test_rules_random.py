"""Rules of random bits: the same as JAX's, bit for bit, in both layouts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpp.cases import EXAMPLES, Case, check

SHAPES = ((), (7, 3))


def _keys(*shape: int) -> jax.Array:
    return jax.random.split(jax.random.key(42), (EXAMPLES, *shape))


def _bits(keys: jax.Array) -> list[Case]:
    cases = []
    for width in (8, 16, 32, 64):
        for shape in SHAPES:

            def bits(key: Any, width: int = width, shape: tuple[int, ...] = shape) -> Any:
                return jax.random.bits(key, shape, f"uint{width}")

            cases.append(Case(f"{width} {shape}", bits, (keys[:, 0],)))
        cases.append(Case(f"{width} of several keys", jax.vmap(bits), (keys,)))
    return cases


def _made(key: Any, other: Any, seed: Any) -> Any:
    raw = jax.random.key_data(key)
    return (
        jax.random.split(key),
        jax.random.split(key, 5),
        jax.random.split(key, (2, 3)),
        jax.random.fold_in(key, seed),
        jax.random.clone(key),
        jax.vmap(lambda k: jax.random.split(k, 3))(other),
        jax.vmap(jax.random.fold_in)(other, jnp.arange(2)),
        jax.random.split(raw, 3),
        jax.random.wrap_key_data(raw[::-1]),
        jax.random.key(seed),
        jax.random.PRNGKey(seed),
    )


def _drawn(key: Any) -> Any:
    return (
        jax.random.uniform(key, (9,)),
        jax.random.randint(key, (5,), -3, 100),
        jax.random.bernoulli(key, 0.3, (7,)),
        jax.random.permutation(key, 9),
    )


@pytest.mark.parametrize("partitionable", [True, False])
def test_bits_keys_and_draws(partitionable: bool) -> None:
    with jax.threefry_partitionable(partitionable), jax.enable_x64(True):
        keys = _keys(2)
        seeds = {
            kind: np.array([0, 7, -5 if kind[0] == "i" else 200]).astype(kind)
            for kind in ("uint8", "int64")
        }
        seeds["int64"][1] = 2**40 + 9
        cases = _bits(keys)
        cases += [
            Case(f"keys {kind}", _made, (keys[:, 0], keys, seed)) for kind, seed in seeds.items()
        ]
        cases.append(Case("draws", _drawn, (keys[:, 0],), ulps=0))
        check(cases)


def test_distributions() -> None:
    """These go through functions whose last digits differ; what they reject and accept does not, at these keys."""

    def smooth(key: Any) -> Any:
        return (
            jax.random.normal(key, (50,)),
            jax.random.exponential(key, (5,)),
            jax.random.gumbel(key, (5,)),
            jax.random.truncated_normal(key, -1.0, 1.0, (5,)),
            jax.random.laplace(key, (5,)),
            jax.random.multivariate_normal(key, jnp.zeros(3), jnp.eye(3) + 0.3),
        )

    def rejecting(key: Any) -> Any:
        return (
            jax.random.gamma(key, jnp.array([0.3, 2.0, 9.0])),
            jax.random.beta(key, 2.0, 3.0),
            jax.random.dirichlet(key, jnp.ones(3)),
            jax.random.poisson(key, 3.5),
            jax.random.poisson(key, 30.0),
            jax.random.binomial(key, 20.0, 0.4),
            jax.random.categorical(key, jnp.arange(5.0)),
        )

    keys = _keys()
    narrow = lambda key: (  # noqa: E731
        jax.random.normal(key, (20,), jnp.float16),
        jax.random.normal(key, (20,), jnp.bfloat16),
    )
    check(
        [
            Case("smooth", smooth, (keys,), 64, True),
            Case("rejecting", rejecting, (keys,), 256, True),
            Case("narrow", narrow, (keys,), 4),
        ]
    )
