"""Levels of tables: right in every order, and as few launches as can be where that is known."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from by_hand import SCALAR, chain_tree, complete_tree, forest, made, random_tree
from lanewise.dynamic.order import ORDERS, edges, launches, levels
from lanewise.dynamic.table import Table, piece
from lanewise.errors import OptionError

ORDER = pytest.mark.parametrize("order", list(ORDERS))


def verify(table: Table, level: np.ndarray) -> None:
    """Operands are made at an earlier level, or at the same one by a piece of a lower number."""
    maker, reader = edges(table)
    earlier = level[maker] < level[reader]
    before = (level[maker] == level[reader]) & (table.piece[maker] < table.piece[reader])
    assert np.all(earlier | before)


def height(tree: object) -> int:
    return 1 + max(height(tree[0]), height(tree[1])) if isinstance(tree, tuple) else 0


@ORDER
def test_trees_need_one_launch_for_each_height(order: str) -> None:
    rng = np.random.default_rng(0)
    for trees in (
        [random_tree(rng, int(n)) for n in rng.integers(1, 30, 20)],
        [complete_tree(5)],
        [complete_tree(3), random_tree(rng, 9), 4],
        [chain_tree(12), chain_tree(7)],
    ):
        table, _ = forest(trees)
        level = levels(table, order)
        verify(table, level)
        assert launches(table, level) == 1 + max(map(height, trees))


@ORDER
def test_chains_need_their_length(order: str) -> None:
    table, _ = forest([chain_tree(200)] * 2)
    level = levels(table, order)
    verify(table, level)
    assert launches(table, level) == 201


def test_depth_of_long_and_wide_tables() -> None:
    """Both ways of finding depth: in rounds, and by the plain loop."""
    rng = np.random.default_rng(1)
    trees = [chain_tree(3_000), *(random_tree(rng, 40) for _ in range(50))]
    table, _ = forest(trees)
    found = levels(table)
    slow = np.zeros(len(table), int)
    for reader, maker in sorted(zip(*(e.tolist() for e in edges(table)[::-1]))):
        slow[reader] = max(slow[reader], slow[maker] + 1)
    np.testing.assert_array_equal(found, slow)


def mixed(rng: np.random.Generator, sentences: int) -> Table:
    """Sentences of words, of which some are spelled by a chain of letters: depth keeps these apart, an agenda not."""
    one = np.float32(0)
    pieces = (
        piece(lambda h, x: h + x, rows=[one, one], name="word"),
        piece(lambda h: h * 0.5, rows=[one], name="letter"),
        piece(lambda h: h + 1, rows=[one], name="tag"),
    )
    calls: list[int] = []
    operands: list[int] = []

    def call(p: int, *given: int) -> int:
        calls.append(p)
        operands.extend(given)
        return len(calls) - 1

    for _ in range(sentences):
        state = ~0
        for _ in range(int(rng.integers(3, 12))):
            word = ~0
            if rng.random() < 0.3:
                for _ in range(int(rng.integers(1, 9))):
                    word = call(1, word)
            state = call(0, state, word)
            call(2, state)
    return made(pieces, ((), (), ()), calls, operands, {SCALAR: [1]})


def test_an_agenda_needs_fewer_launches_than_depth_where_kinds_mix() -> None:
    table = mixed(np.random.default_rng(2), 30)
    found = {order: launches(table, levels(table, order)) for order in ORDERS}
    for order in ORDERS:
        verify(table, levels(table, order))
    assert found["agenda"] < found["depth"]
    # A launch for each word of the longest sentence, one for each letter of the longest word, and one for tags.
    assert found["lookahead"] == 11 + 8 + 1


def dynets_agenda(table: Table) -> int:
    """Batches by DyNet's agenda (Neubig et al. 2017, section 3.2), written down from the paper, a node at a time.

    Of the signatures with nodes whose inputs are done, run the one whose nodes that are left have the least mean depth.
    """
    inputs: list[set[int]] = [set() for _ in range(len(table))]
    for maker, reader in zip(*(each.tolist() for each in edges(table))):
        inputs[reader].add(maker)
    depth = [0] * len(table)
    for node in range(len(table)):
        depth[node] = max((depth[i] + 1 for i in inputs[node]), default=0)
    signature, left, batches = table.piece.tolist(), set(range(len(table))), 0
    while left:
        ready = {
            s: [n for n in left if signature[n] == s and not inputs[n] & left]
            for s in set(signature)
        }
        means = {
            s: np.mean([depth[n] for n in left if signature[n] == s]) for s in ready if ready[s]
        }
        left.difference_update(ready[min(means, key=lambda s: means[s])])
        batches += 1
    return batches


def gated(rng: np.random.Generator, trees: int) -> Table:
    """Trees whose inner nodes are of three kinds, over leaves of two."""
    one = np.float32(0)
    kinds = [piece(lambda x, k=k: x * k, rows=[one], name=f"leaf {k}") for k in (1, 2)]
    kinds += [
        piece(lambda a, b, k=k: a * k + b, rows=[one, one], name=f"inner {k}") for k in (1, 2, 3)
    ]
    calls: list[int] = []
    operands: list[int] = []

    def grow(leaves: int) -> int:
        first = int(rng.integers(1, leaves)) if leaves > 1 else 0
        given = [grow(first), grow(leaves - first)] if leaves > 1 else [~0]
        calls.append(int(rng.integers(2, 5)) if leaves > 1 else int(rng.integers(2)))
        operands.extend(given)
        return len(calls) - 1

    for _ in range(trees):
        grow(int(rng.integers(1, 9)))
    return made(kinds, ((),) * 5, calls, operands, {SCALAR: [1]})


@pytest.mark.parametrize(
    ("make", "order"),
    [(mixed, "agenda"), (mixed, "lookahead"), (gated, "agenda"), (gated, "lookahead")],
)
def test_launches_are_within_a_tenth_of_dynets(make: Any, order: str) -> None:
    for seed in range(5):
        table = make(np.random.default_rng(seed), 12)
        level = levels(table, order)
        verify(table, level)
        assert launches(table, level) <= 1.1 * dynets_agenda(table), seed


@pytest.mark.parametrize("make", [mixed, gated])
def test_looking_ahead_never_costs_launches(make: Any) -> None:
    for seed in range(8):
        table = make(np.random.default_rng(seed), 20)
        found = {order: launches(table, levels(table, order)) for order in ORDERS}
        assert found["lookahead"] <= min(found["agenda"], found["depth"]), seed


def test_an_order_of_another_name_is_refused() -> None:
    table, _ = forest([1])
    with pytest.raises(
        OptionError, match="order='breadth' is none of 'depth', 'agenda', 'lookahead'"
    ):
        levels(table, "breadth")


def test_levels_that_a_recorder_gives_are_taken() -> None:
    double = piece(lambda x: 2 * x, rows=[jnp.float32(0)])
    table = made((double,), ((),), [0, 0], [~0, ~0], {SCALAR: [1]}, level=np.array([0, 3]))
    np.testing.assert_array_equal(levels(table), [0, 3])
