"""Results made on threads, in the order of their items."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from by_hand import ROW, forest, random_tree, wanted, weights
from lanewise.dynamic.envelope import Store
from lanewise.dynamic.run import prepare
from lanewise.errors import OptionError


@pytest.mark.parametrize("threads", [1, 3])
def test_order_and_how_far_ahead(threads: int) -> None:
    begun: list[int] = []
    taken = 0
    for n, made in enumerate(
        lw.ahead(lambda n: begun.append(n) or -n, range(9), depth=2, threads=threads)
    ):
        taken += 1
        assert made == -n
        assert max(begun) <= n + 2
    assert taken == 9 and sorted(begun) == list(range(9))


def test_the_next_one_is_made_meanwhile() -> None:
    """The caller waits for the next result to be made before it takes it: without a thread it would wait for ever."""
    done = [threading.Event() for _ in range(4)]

    def make(n: int) -> int:
        done[n].set()
        return n

    for n in lw.ahead(make, range(4)):
        assert done[min(n + 1, 3)].wait(60)


def test_errors_come_in_their_turn() -> None:
    made = lw.ahead(lambda n: 1 // (2 - n), range(4), depth=3)
    assert next(made) == 0 and next(made) == 1
    with pytest.raises(ZeroDivisionError):
        next(made)
    with pytest.raises(StopIteration):
        next(made)


def test_leaving_early_ends_its_threads() -> None:
    made = lw.ahead(lambda n: n, itertools.count(), depth=4, threads=2)
    assert next(made) == 0
    made.close()  # type: ignore[attr-defined]
    assert not any(t.name.startswith("lanewise-ahead") for t in threading.enumerate())


@pytest.mark.parametrize("option", ["depth", "threads"])
def test_options(option: str) -> None:
    with pytest.raises(OptionError, match=f"{option}=0"):
        lw.ahead(abs, [1], **{option: 0})


def test_tables_prepared_ahead() -> None:
    """Tables made on several threads at once give the gradients of those made in order."""
    rng = np.random.default_rng(0)
    batches = [forest([random_tree(rng, n) for n in (3, 1, 5)]) for _ in range(6)]
    store = Store()

    def ready(batch: Any) -> Any:
        table, roots = batch
        return prepare(table, wanted(table, roots), store=store)

    @jax.jit
    def slope(shared: Any, prepared: Any) -> Any:
        return jax.grad(lambda s: jnp.sum(prepared(s).of(ROW)[:3] ** 2))(shared)

    expected = [slope(weights(), ready(batch)) for batch in batches]
    found = [slope(weights(), p) for p in lw.ahead(ready, batches, depth=3, threads=3)]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )
