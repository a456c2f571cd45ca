"""One compilation serves many tables: what fits is not compiled again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from by_hand import ROW, chain_tree, compilations, forest, random_tree, wanted, weights
from lanewise.dynamic.envelope import Store, bucket
from lanewise.dynamic.layout import layout
from lanewise.dynamic.run import prepare, run


def minibatch(seed: int, size: int = 16) -> Any:
    rng = np.random.default_rng(seed)
    return forest([random_tree(rng, int(n)) for n in rng.integers(5, 15, size)])


def test_fresh_minibatches_are_not_compiled_again() -> None:
    """At most four envelopes in the first epoch, and nothing at all after it."""
    store = Store()

    def loss(shared: Any, table: Any, roots: Any) -> Any:
        return jnp.sum(run(table, shared, wanted(table, roots), store=store).of(ROW)[:16] ** 2)

    shared = weights()
    for seed in range(100):
        jax.value_and_grad(loss)(shared, *minibatch(seed))
    assert store.made <= 4
    with compilations() as found:
        for seed in range(100, 200):
            jax.value_and_grad(loss)(shared, *minibatch(seed))
    assert not found


def test_arenas_are_not_much_larger_than_what_lives_in_them() -> None:
    store, shares = Store(), []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        table, roots = forest([random_tree(rng, int(n)) for n in rng.integers(20, 41, 64)])
        ready = prepare(table, wanted(table, roots), store=store)
        # Each call gives two rows.
        shares.append(sum(layout(ready.envelope).arena) / (2 * len(table)))
    assert store.made <= 4
    assert max(shares) <= 1.3


def test_an_envelope_that_is_too_small_is_grown() -> None:
    store = Store()
    sizes = []
    for leaves in (2, 3, 2):
        table, roots = forest([random_tree(np.random.default_rng(0), leaves)] * 20)
        run(table, weights(), wanted(table, roots), store=store)
        sizes.append(store.made)
    assert sizes == [1, 2, 2]
    assert len(next(iter(store.envelopes.values()))) == 1


def test_small_tables_do_not_take_a_large_envelope() -> None:
    store = Store()
    for trees in ([(1, 2)] * 3_000, [(1, 2)] * 3, [(1, 2)] * 2_900):
        table, roots = forest(trees)
        run(table, weights(), wanted(table, roots), store=store)
    assert sorted(e.rows for e in next(iter(store.envelopes.values())))[0] < 100
    assert store.made == 2


def test_odd_tables_end_up_in_the_loop() -> None:
    """Tables that grow for ever in another way: after some growths only the loop does."""
    store = Store()
    for n in range(1, 19):
        table, roots = forest([chain_tree(2 * n)] * (40 - 2 * n))
        run(table, weights(), wanted(table, roots), store=store)
    assert any(e.tail_levels for e in next(iter(store.envelopes.values())))
    assert store.made <= 12


def test_buckets_are_few_and_tight() -> None:
    capacities = {bucket(n, 16) for n in range(10_000)}
    assert len(capacities) < 128 and all(c % 16 == 0 for c in capacities)
    assert all(n <= bucket(n, 16) <= max(n + 15, 1.0625 * n) for n in range(10_000))
    assert len({bucket(n, 2) for n in range(10_000)}) < 24
