"""Pieces are cut where results wait for different rows, and sums come last; and only where that gains levels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from by_hand import compilations
from lanewise.dynamic.levels import by_levels
from lanewise.dynamic.order import counts, launches, levels
from lanewise.dynamic.run import STORE
from lanewise.dynamic.table import Table, check

WIDTH = 12


@lw.record
class Item:
    word: int
    rest: Item | None = None


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Node:
    word: int
    children: list[Node]


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {
        "words": (9, WIDTH),
        "down": (WIDTH, WIDTH),
        "up": (WIDTH, WIDTH),
        "out": (2 * WIDTH, 3),
    }
    return {k: jnp.asarray(rng.normal(size=s) / 4, jnp.float32) for k, s in shapes.items()}


def items(length: int, seed: int = 0) -> Item | None:
    found = None
    for word in np.random.default_rng(seed).integers(0, 9, length).tolist():
        found = Item(word, found)
    return found


def sentences(seed: int, count: int = 8, most: int = 12) -> list[Item | None]:
    lengths = np.random.default_rng(seed).integers(0, most, count).tolist()
    return [items(n, seed + i) for i, n in enumerate([most, *lengths])]


def tree(size: int) -> Tree:
    return Tree(size % 9) if size < 2 else Tree(size % 9, tree(size // 2), tree(size // 3))


def table_of(program: Any, some: list[Any]) -> Table:
    w, data = weights(), lw.pack(some)
    job = lw.inspect(program.with_options(schedule="levels"), data, w, in_axes=(0, None)).plan.job
    own = by_levels(job.program, job.varying, None)
    return check(own.decide(jax.tree.leaves((data.roots, w)), job.examples).recorded.table)


def same(program: Any, some: list[Any]) -> None:
    data = lw.pack(some)

    def loss(w: Any, **options: Any) -> Any:
        found = lw.vmap(program, in_axes=(0, None), **options)(data, w)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(found))

    pairs = [
        jax.value_and_grad(loss)(weights(), **options)
        for options in ({"schedule": "levels"}, {"carrier": "native"})
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *pairs)


@lw.program
def both_ways(item, w):
    return _both_ways(item, w["words"][0], w)


@lw.program
def _both_ways(item, h, w):
    """A state that is handed down, one that comes up, and a sum over both: a BiLSTM tagger in short."""
    if item is None:
        return jnp.zeros(WIDTH), jnp.zeros(3)
    x = w["words"][item.word]
    h = jnp.tanh(x + h @ w["down"])
    back, total = _both_ways(item.rest, h, w)
    back = jnp.tanh(x + back @ w["up"])
    return back, total + jnp.tanh(jnp.concatenate([h, back]) @ w["out"])


def test_both_directions_run_at_once() -> None:
    table = table_of(both_ways, [items(20), items(5), None])
    height = len(counts(table, levels(table)))
    # A level for each word, the first zeros, one for all terms, and pairs of pairs of the 20 terms and a zero.
    assert height <= 1 + 20 + 1 + 5
    assert launches(table, levels(table)) <= 2 * 20 + 4 + 6
    same(both_ways, [items(20), items(5), None])


@lw.program
def encoded(item, w):
    return _encoded(item, w["words"][0], w)


@lw.program
def _encoded(item, h, w):
    """What comes up begins with what was handed down: nothing would start earlier."""
    if item is None:
        return 2 * h, jnp.sum(h)
    h = jnp.tanh(w["words"][item.word] + h @ w["down"])
    back, other = _encoded(item.rest, h, w)
    return jnp.tanh(back @ w["up"]), jnp.tanh(other * jnp.sum(h @ w["up"]))


@lw.program
def with_losses(tree, w):
    """A total that comes with the state it is made from."""
    x = w["words"][tree.word]
    if tree.left is None:
        return x, x[:3]
    (a, one), (b, two) = with_losses(tree.left, w), with_losses(tree.right, w)
    h = jnp.tanh(a @ w["up"] + b @ w["down"])
    return h, one + two + jnp.concatenate([h, x]) @ w["out"]


def test_nothing_is_cut_where_nothing_would_start_earlier() -> None:
    for program, some in ((encoded, [items(9)]), (with_losses, [tree(40), tree(3)])):
        table = table_of(program, some)
        found = counts(table, levels(table))
        # One piece at each level but those of the way down, and of the lowest one.
        assert np.all((found[1:] > 0).sum(1) == 1), program
        same(program, some)


@lw.program
def terms_alone(item, w):
    """The terms wait for nothing: one launch for all, and pairs."""
    if item is None:
        return jnp.zeros(3)
    x = w["words"][item.word]
    return terms_alone(item.rest, w) + jnp.concatenate([x, jnp.tanh(x @ w["up"])]) @ w["out"]


@lw.program
def in_a_loop(item, w):
    """A state and a total that are carried, and a total of the totals of other lists."""
    h, total, seen = w["words"][0], jnp.zeros(3), 0
    while item is not None:
        total = total + jnp.concatenate([h, w["words"][item.word]]) @ w["out"]
        if item.word > 4:
            total = total + terms_alone(item.rest, w)
        h, seen, item = jnp.tanh(h @ w["up"]), seen + item.word, item.rest
    return total, seen, jnp.sum(h)


@lw.program
def read_on(item, w):
    """A total that is read: no term of it may be put off."""
    if item is None:
        return jnp.zeros(WIDTH)
    return read_on(item.rest, w) + jnp.tanh(read_twice(item.rest, w) @ w["up"])


@lw.program
def read_twice(item, w):
    if item is None:
        return w["words"][1]
    total = terms_alone(item.rest, w)
    return w["words"][item.word] + jnp.sum(total)


@lw.program
def doubled(item, w):
    """A total that is added twice, and answers that are terms of others."""
    if item is None:
        return jnp.zeros(3), jnp.zeros(3)
    x = w["words"][item.word]
    one, other = doubled(item.rest, w)
    one = one + jnp.concatenate([x, x @ w["up"]]) @ w["out"]
    return one, other + one + one


@pytest.mark.parametrize("program", [terms_alone, in_a_loop, read_on, doubled])
def test_sums_of_all_kinds(program: Any) -> None:
    some = [None, items(1), items(2), items(9), items(6)]
    table_of(program, some)
    same(program, some)


@lw.program
def child_sum(tree, w):
    total = jnp.zeros(WIDTH)
    for child in tree.children:
        total = total + child_sum(child, w)
    return jnp.tanh(w["words"][tree.word] + total @ w["up"])


def test_a_node_of_many_children_takes_few_levels() -> None:
    some = [Node(1, [Node(i % 9, []) for i in range(1000)]), Node(2, [Node(3, [Node(4, [])])])]
    table = table_of(child_sum, some)
    # Zeros, nodes at levels 1, 2, 3 and 12, ten of pairs; where there is one child, there is nothing to add.
    assert launches(table, levels(table)) <= 1 + 4 + 10
    same(child_sum, [*some[1:], Node(1, [some[1], Node(5, []), Node(6, [Node(7, [])])])])


def test_a_long_sum_takes_few_levels() -> None:
    table = table_of(terms_alone, [items(1000), items(3)])
    assert launches(table, levels(table)) <= 3 + 10


def test_a_lane_has_the_same_sum_whatever_the_others_do() -> None:
    some = [items(n, n) for n in (11, 4, 7)]
    run = lw.vmap(terms_alone, in_axes=(0, None), schedule="levels")

    def rounded(some: list[Any]) -> Any:
        # Terms without rounding, so that only the order of the sum is compared.
        w = jax.tree.map(lambda x: jnp.round(x * 8) * 4099.0, weights()) | {
            "up": jnp.zeros((WIDTH, WIDTH))
        }
        return np.asarray(run(lw.pack(some), w))

    together = rounded(some)
    for i, each in enumerate(some):
        np.testing.assert_array_equal(rounded([each])[0], together[i])


def test_minibatches_of_other_lengths_need_few_envelopes() -> None:
    w, large = weights(), lw.pack([items(12)] * 13)
    step = jax.value_and_grad(
        lambda w, data: jnp.sum(
            lw.vmap(both_ways, in_axes=(0, None), schedule="levels")(data, w)[1]
        )
    )

    def batch(seed: int) -> Any:
        return lw.pack(sentences(seed, 12, 10 + seed % 3), like=large)

    before = STORE.made
    for seed in range(30):
        step(w, batch(seed))
    assert STORE.made - before <= 4
    with compilations() as found:
        for seed in range(100, 120):
            step(w, batch(seed))
    assert not found
