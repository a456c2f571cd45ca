"""`jax.transfer_guard("disallow")`: a program moves nothing between host and device on the sly."""

from __future__ import annotations

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
    assert np.isfinite(answers).tolist() == [True, False, True] or "steps exhausted" in failed
    assert streamed == {0: 1.0, 1: 6.0}


def test_what_the_user_moves_is_still_reported() -> None:
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="Disallowed"):
        lw.vmap(gathered)(np.array([1, 2], np.int32))


def test_looking_is_no_transfer() -> None:
    ns = jax.device_put(np.array([1, 3, 2], np.int32))
    with jax.transfer_guard("disallow"):
        assert "carrier" in str(lw.inspect(gathered, ns))
