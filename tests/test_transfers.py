"""`jax.transfer_guard("disallow")`: a program moves nothing between host and device on the sly."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw

TABLE = np.arange(10.0, dtype=np.float32)


@lw.program
def gathered(n: Any) -> Any:
    assert n < 100, "too many"
    total = 0.0
    while n > 0:
        total = total + jnp.asarray(TABLE)[n]  # a captured array of NumPy's
        n = n - 1
    return total


@lw.program
def depth(n: Any) -> Any:
    return 0 if n <= 0 else 1 + depth(n - 1)


@pytest.mark.parametrize("carrier", ["ticks", "native"])
def test_programs_run(carrier: str) -> None:
    ns, deep = (jax.device_put(np.array(x, np.int32)) for x in ([1, 3, 2], [3, 0, 70]))
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="Disallowed"):  # the guard is there
            jnp.add(ns, 1)
        first = lw.vmap(gathered, carrier=carrier)(ns)
        refilled = lw.vmap(gathered, carrier=carrier, lanes=2)(ns)
        lone = gathered.with_options(carrier=carrier)(jax.device_put(np.int32(3)))
        bare = jax.vmap(gathered.with_options(carrier=carrier))(ns)
        answers, outcomes = lw.vmap(gathered, carrier=carrier, max_steps=2, throw=False)(ns)
        failed = outcomes.describe()
        depths = lw.vmap(depth, carrier=carrier)(deep)  # its stacks grow
        streamed = dict(lw.stream(gathered, [1, 3], lanes=2, carrier=carrier))
    assert first.tolist() == refilled.tolist() == bare.tolist() == [1.0, 6.0, 3.0]
    assert float(lone) == 6.0 and depths.tolist() == [3, 0, 70]
    assert "steps exhausted in 2 of 3 lanes: 1, 2" in failed
    assert float(answers[0]) == 1.0 and np.isnan(answers[1:]).all()
    assert streamed == {0: 1.0, 1: 6.0}


def test_what_the_user_moves_is_still_reported() -> None:
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="Disallowed"):
        lw.vmap(gathered)(np.array([1, 2], np.int32))


def odd(a: Any, b: Any) -> Any:
    """Associative, and none of the operators with a fast form."""
    return a * b + a + b


def affine(f: Any, g: Any) -> Any:
    return g[0] * f[0], g[0] * f[1] + g[1]


ARRAYS = {
    "reduce": lambda x, i, n: lw.arrays.reduce(jnp.multiply, x),
    "reduce by any": lambda x, i, n: lw.arrays.reduce(odd, x),
    "scan": lambda x, i, n: lw.arrays.scan(jnp.maximum, x, exclusive=True),
    "scan by recurrences": lambda x, i, n: lw.arrays.scan(affine, (x, x), reverse=True),
    "histogram": lambda x, i, n: lw.arrays.histogram(jnp.add, i, x, 3),
    "histogram by any": lambda x, i, n: lw.arrays.histogram(odd, i, x, into=x, neutral=0.0),
    "scatter": lambda x, i, n: lw.arrays.scatter(x, i, x),
    "segmented reduce": lambda x, i, n: lw.arrays.segmented_reduce(jnp.add, x, n),
    "segmented scan": lambda x, i, n: lw.arrays.segmented_scan(
        odd, x, n, neutral=0.0, exclusive=True
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_array_operators_run(name: str) -> None:
    run = ARRAYS[name]
    on_host = np.arange(1, 7, dtype=np.float32), np.array([0, 2, 0, 1, 7, 2]), np.array([2, 0, 4])
    given = jax.device_put(on_host)
    expected = run(*given)
    with jax.transfer_guard("disallow"):
        found = run(*given)
        with pytest.raises(Exception, match="Disallowed"):
            run(*on_host)  # what the user moves
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_fixed_point_is_found() -> None:
    a = jax.device_put(np.float32(9.0))
    root = functools.partial(lw.fixed_point, lambda x: (x + a / x) / 2)
    with jax.transfer_guard("disallow"):
        found = root(a)
    assert float(found) == pytest.approx(3.0)


def test_looking_is_no_transfer() -> None:
    ns = jax.device_put(np.array([1, 3, 2], np.int32))
    with jax.transfer_guard("disallow"):
        assert "carrier" in str(lw.inspect(gathered, ns))
