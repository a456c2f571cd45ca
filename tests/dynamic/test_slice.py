"""Programs run by levels give what they give one instance at a time: values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from by_hand import compilations
from lanewise.dynamic.levels import FIRST_ROOM, by_levels
from lanewise.dynamic.order import launches, levels
from lanewise.dynamic.run import STORE
from lanewise.dynamic.table import check
from lanewise.errors import OptionError

WIDTH, WORDS = 5, 11


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.record
class Node:
    word: int
    children: list[Node]


@lw.record
class Item:
    word: int
    rest: Item | None = None


def weights(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        "words": (WORDS, WIDTH),
        "leaf": (WIDTH, 3 * WIDTH),
        "inner": (2 * WIDTH, 5 * WIDTH),
        "square": (WIDTH, WIDTH),
        "first": (WIDTH,),
    }
    return {k: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for k, s in shapes.items()}


@lw.program
def tree_lstm(tree, w):
    """h of the root (Tai et al. 2015)."""
    return node(tree, w)[0]


@lw.program
def node(tree, w):
    if tree.left is None:
        i, o, u = jnp.split(w["words"][tree.word] @ w["leaf"], 3)
        c = jax.nn.sigmoid(i) * jnp.tanh(u)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c
    h0, c0 = node(tree.left, w)
    h1, c1 = node(tree.right, w)
    gates = jnp.split(jnp.concatenate([h0, h1]) @ w["inner"], 5)
    i, f0, f1, o = map(jax.nn.sigmoid, gates[:4])
    c = i * jnp.tanh(gates[4]) + f0 * c0 + f1 * c1
    return o * jnp.tanh(c), c


@lw.program
def child_sum(tree, w):
    total = jnp.zeros(WIDTH)
    for child in tree.children:
        total = total + child_sum(child, w)
    return jnp.tanh(w["words"][tree.word] + total @ w["square"])


@lw.program
def sentence(item, w):
    """An RNN: a loop over a list."""
    h = w["first"]
    while item is not None:
        h = jnp.tanh(w["words"][item.word] + h @ w["square"])
        item = item.rest
    return h


@lw.program
def even(item, w):
    if item is None:
        return w["first"]
    return jnp.tanh(odd(item.rest, w) @ w["square"] + w["words"][item.word])


@lw.program
def odd(item, w):
    if item is None:
        return jnp.ones(WIDTH)
    return jnp.sin(even(item.rest, w) * w["words"][item.word])


@lw.program
def downwards(tree, state, w):
    """A state that is handed down, and depends on the way."""
    state = jnp.tanh(state @ w["square"] + w["words"][tree.word])
    if tree.left is None:
        return jnp.sum(state**2)
    return downwards(tree.left, state, w) + 2 * downwards(tree.right, -state, w)


@lw.program
def from_root(tree, w):
    return downwards(tree, w["first"], w)


def random_tree(rng: np.random.Generator, leaves: int) -> Tree:
    word = int(rng.integers(WORDS))
    if leaves <= 1:
        return Tree(word)
    first = int(rng.integers(1, leaves))
    return Tree(word, random_tree(rng, first), random_tree(rng, leaves - first))


def trees(seed: int, count: int = 4, most: int = 6) -> list[Tree]:
    rng = np.random.default_rng(seed)
    return [random_tree(rng, int(n)) for n in rng.integers(1, most, count)]


def plants(seed: int) -> list[Node]:
    rng = np.random.default_rng(seed)

    def grow(depth: int) -> Node:
        many = int(rng.integers(0, 4)) if depth else 0
        return Node(int(rng.integers(WORDS)), [grow(depth - 1) for _ in range(many)])

    return [grow(3) for _ in range(4)] + [Node(1, [])]


def a_list(words: Sequence[int]) -> Item | None:
    found = None
    for word in reversed(words):
        found = Item(int(word), found)
    return found


def one_by_one(program: Any, instances: Sequence[Any], w: Any) -> Any:
    """Plain Python, an instance after the other."""
    with jax.disable_jit():
        return jnp.stack([program(x, w) for x in instances])


def compare(program: Any, instances: Sequence[Any], **pack: Any) -> None:
    w = weights()
    forest = lw.pack(list(instances), **pack)
    run = lw.vmap(program, in_axes=(0, None), schedule="levels")
    expected = one_by_one(program, instances, w)
    np.testing.assert_allclose(run(forest, w), expected, rtol=1e-4, atol=1e-5)
    shown = jnp.asarray(np.random.default_rng(9).normal(size=expected.shape), jnp.float32)
    found, grads = jax.value_and_grad(lambda w: jnp.sum(run(forest, w) * shown))(w)

    def plainly(w: Any) -> Any:
        return jnp.sum(one_by_one(program, instances, w) * shown)

    value, by_hand = jax.value_and_grad(plainly)(w)
    np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    for name, expected in by_hand.items():
        np.testing.assert_allclose(grads[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)


def test_trees_of_all_sizes() -> None:
    compare(tree_lstm, trees(0))
    compare(tree_lstm, [Tree(3)])


def test_many_children() -> None:
    compare(child_sum, plants(0))


def test_lists_and_none() -> None:
    compare(sentence, [a_list([1, 2, 3]), None, a_list([4]), a_list(range(9))])


def test_functions_that_call_each_other() -> None:
    compare(even, [a_list([1, 2, 3]), None, a_list([4]), a_list([5, 6])])


def test_what_is_handed_down() -> None:
    compare(from_root, trees(1))


def test_a_graph_with_sharing() -> None:
    leaf = Tree(2)
    pair = Tree(3, leaf, leaf)
    top = Tree(4, pair, Tree(5, pair, leaf))
    compare(tree_lstm, [top, pair, leaf])


def test_a_long_chain_beside_a_leaf() -> None:
    """The record of the slice grows, and so do its stacks."""
    w, deep = weights(), 10_000
    forest = lw.pack([Node(3, []), _chain(deep)])
    found = lw.vmap(child_sum, in_axes=(0, None), schedule="levels")(forest, w)
    row = jnp.tanh(w["words"][3])
    np.testing.assert_allclose(found[0], row, rtol=1e-5, atol=1e-6)

    def above(h: Any, _: Any) -> Any:
        return jnp.tanh(w["words"][1] + h @ w["square"]), None

    bottom = jnp.tanh(w["words"][1])
    expected, _ = jax.lax.scan(above, bottom, None, length=deep - 1)
    np.testing.assert_allclose(found[1], expected, rtol=1e-3, atol=1e-4)


def test_a_long_sentence_trains() -> None:
    w = weights()
    words = np.random.default_rng(1).integers(0, WORDS, 10_000)
    forest = lw.pack([a_list(words.tolist()), None, a_list(words[:5].tolist())])
    run = lw.vmap(sentence, in_axes=(0, None), schedule="levels")

    def by_scan(w: Any) -> Any:
        def one(some: Any) -> Any:
            return jax.lax.scan(
                lambda h, x: (jnp.tanh(w["words"][x] + h @ w["square"]), None), w["first"], some
            )[0]

        return jnp.stack([one(words), w["first"], one(words[:5])])

    pairs = [
        jax.value_and_grad(lambda w, f=f: jnp.sum(jnp.sin(f(w))))(w)
        for f in (lambda w: run(forest, w), by_scan)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *pairs)


def _chain(length: int) -> Node:
    found = Node(1, [])
    for _ in range(length - 1):
        found = Node(1, [found])
    return found


def test_a_thousand_children() -> None:
    rng = np.random.default_rng(3)
    many = Node(0, [Node(int(word), []) for word in rng.integers(0, WORDS, 1000)])
    w = weights()
    forest = lw.pack([many, Node(1, [])])

    def loss(w: Any, **options: Any) -> Any:
        return jnp.sum(lw.vmap(child_sum, in_axes=(0, None), **options)(forest, w)[0])

    words = jnp.array([child.word for child in many.children])

    def by_hand(w: Any) -> Any:
        return jnp.sum(
            jnp.tanh(w["words"][0] + jnp.sum(jnp.tanh(w["words"][words]), 0) @ w["square"])
        )

    found, grads = jax.value_and_grad(lambda w: loss(w, schedule="levels"))(w)
    value, expected = jax.value_and_grad(by_hand)(w)
    np.testing.assert_allclose(found, value, rtol=1e-4)
    np.testing.assert_allclose(grads["words"], expected["words"], rtol=1e-3, atol=1e-3)


def test_answers_at_every_node() -> None:
    w, forest = weights(), lw.pack(trees(2, 3))
    run = lw.vmap(node, in_axes=(0, None), schedule="levels")
    found = run(forest.nodes, w)[0][: len(forest.objects)]
    with jax.disable_jit():
        expected = jnp.stack([node(tree, w)[0] for tree in forest.objects])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_equal_calls_are_made_once() -> None:
    """Answers at every node visit each as often as it has nodes above; a graph is visited by each way through it."""
    w = weights()
    leaf = Tree(2)
    shared = Tree(3, Tree(4, leaf, leaf), Tree(5, Tree(4, leaf, leaf), leaf))
    program = tree_lstm.with_options(schedule="levels")
    for forest, trees_of in (
        (lw.pack(trees(2, 3)), None),
        (lw.pack([shared, shared, leaf]), [shared, shared, leaf]),
    ):
        given = forest.nodes if trees_of is None else forest.roots
        job = lw.inspect(program, given, w, in_axes=(forest.axes, None)).plan.job
        own = by_levels(job.program, job.varying, None)
        table = check(own.decide(jax.tree.leaves((given, w)), job.examples).recorded.table)
        # A call for each node, and one for what is beyond the last.
        assert len(table) <= len(forest.objects) + 1

        def loss(w: Any, given: Any = given, forest: Any = forest, **options: Any) -> Any:
            run = lw.vmap(tree_lstm, in_axes=(forest.axes, None), **options)
            return jnp.sum(jnp.sin(3 * run(given, w)))

        pairs = [
            jax.value_and_grad(loss)(w, **options)
            for options in ({"schedule": "levels"}, {"carrier": "native"})
        ]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *pairs)


def test_fresh_minibatches_compile_nothing() -> None:
    """Neither the slice nor the levels nor their reverse, over many minibatches of other trees."""
    # Arrays of the forest with room for all of them.
    w, forest = weights(), lw.pack(trees(99, 40, 14))
    run = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")
    step = jax.value_and_grad(lambda w, forest: _loss(run(forest, w)))
    before = STORE.made
    for seed in range(60):
        forest = lw.pack(trees(seed, 24, 12), like=forest)
        step(w, forest)
    assert STORE.made - before <= 4
    with compilations() as found:
        for seed in range(100, 200):
            forest = lw.pack(trees(seed, 24, 12), like=forest)
            step(w, forest)
    assert not found


def test_launches_are_as_many_as_the_highest_tree_has_levels() -> None:
    w, some = weights(), trees(3, 20, 30)
    forest = lw.pack(some)
    program = tree_lstm.with_options(schedule="levels")
    job = lw.inspect(program, forest, w, in_axes=(0, None)).plan.job
    own = by_levels(job.program, job.varying, None)
    table = own.decide(jax.tree.leaves((forest.roots, w)), job.examples).recorded.table
    assert launches(table, levels(table)) == max(map(_height, some))


def _height(tree: Tree | None) -> int:
    return 0 if tree is None else 1 + max(_height(tree.left), _height(tree.right))


@jax.jit
def _loss(rows: Any) -> Any:
    return jnp.sum(rows**2)


def test_the_record_grows_once() -> None:
    w, forest = weights(), lw.pack([_chain(FIRST_ROOM + 10), Node(1, [])])
    program = child_sum.with_options(schedule="levels")
    job = lw.inspect(program, forest, w, in_axes=(0, None)).plan.job
    own = by_levels(job.program, job.varying, None)
    assert own.room == FIRST_ROOM
    lw.vmap(program, in_axes=(0, None))(forest, w)
    assert own.room == 4 * FIRST_ROOM
    operands = jax.tree.leaves((forest.roots, w))
    table = check(own.decide(operands, 2).recorded.table)
    # A node makes zeros and its own row. What its parent adds to zeros is that row.
    assert len(table) == 2 * (FIRST_ROOM + 10) + 2
    assert table.level is not None
    assert table.level.max() == FIRST_ROOM + 10


def test_lanes_that_differ_in_values() -> None:
    """Operands of a lane that do not decide are rows, with gradients; some come back as they are."""
    w = weights()
    forest = lw.pack([a_list([1, 2]), None, a_list([3])])
    starts = jnp.asarray(np.random.default_rng(5).normal(size=(3, WIDTH)), jnp.float32)

    def loss(starts: Any, w: Any, **options: Any) -> Any:
        found, kept, count = lw.vmap(run_on, in_axes=(0, 0, None), **options)(forest, starts, w)
        return jnp.sum(found**2) + jnp.sum(kept * jnp.arange(3.0)[:, None]), count

    found, counts = loss(starts, w, schedule="levels")
    expected, expected_counts = loss(starts, w, carrier="native")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(counts, expected_counts)
    pairs = [
        jax.grad(loss, argnums=(0, 1), has_aux=True)(starts, w, **options)[0]
        for options in ({"schedule": "levels"}, {"carrier": "native"})
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *pairs)


@lw.program
def run_on(item, start, w):
    h, count = start, 0
    while item is not None:
        h = jnp.tanh(w["words"][item.word] + h @ w["square"])
        item = item.rest
        count += 1
    return h, start, count


def test_lanes_in_two_axes_and_a_lone_call() -> None:
    w, forest = weights(), lw.pack(trees(4, 6))
    flat = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")(forest, w)
    at = jnp.arange(6).reshape(2, 3)
    program = tree_lstm.with_options(schedule="levels")
    nested = jax.vmap(jax.vmap(lambda i: program(forest[i], w)))(at)
    np.testing.assert_allclose(nested.reshape(6, WIDTH), flat, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(program(forest[3], w), flat[3], rtol=1e-5, atol=1e-6)


def test_grad_of_the_program_itself() -> None:
    w, forest = weights(), lw.pack(trees(4, 1))
    found = lw.grad(scored, argnums=1, schedule="levels")(forest[0], w)
    expected = lw.grad(scored, argnums=1, carrier="native")(forest[0], w)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected
    )
    with pytest.raises(OptionError, match="outside other programs"):
        run = lw.vmap(scored, in_axes=(0, None), schedule="levels")
        lw.grad(lambda w: jnp.sum(run(forest, w)))(w)


@lw.program
def scored(tree, w):
    return jnp.sum(tree_lstm(tree, w) ** 2)


def test_weights_for_each_lane() -> None:
    """Weights that differ by lane are rows: right, if not fast."""
    many = jax.tree.map(lambda a, b: jnp.stack([a, b]), weights(0), weights(1))
    forest = lw.pack(trees(6, 2))
    found = lw.vmap(tree_lstm, schedule="levels")(forest, many)
    expected = lw.vmap(tree_lstm, carrier="native")(forest, many)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@lw.program
def halve(x, limit, w):
    """A float that decides, and has a derivative."""
    total = w["first"] * 0
    while x > limit:
        total = jnp.tanh(total + x * w["first"])
        x = x * 0.5
    return jnp.sum(total) * x


def test_a_float_that_decides_has_a_derivative() -> None:
    w, xs = weights(), jnp.array([0.1, 3.0, 10.0])

    def loss(xs: Any, limit: Any, w: Any, **options: Any) -> Any:
        return jnp.sum(lw.vmap(halve, in_axes=(0, None, None), **options)(xs, limit, w))

    pairs = [
        jax.grad(loss, argnums=(0, 1, 2))(xs, 0.4, w, **options)
        for options in ({"schedule": "levels"}, {"carrier": "native"})
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *pairs)
    assert float(jnp.abs(pairs[0][0]).max()) > 0


def test_tangents_and_the_linear_map() -> None:
    w, forest = weights(), lw.pack(trees(7, 4))
    run = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")
    other = lw.vmap(tree_lstm, in_axes=(0, None), carrier="native")
    moved = weights(3)
    for found, expected in zip(
        jax.jvp(lambda w: run(forest, w), (w,), (moved,)),
        jax.jvp(lambda w: other(forest, w), (w,), (moved,)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    _, linear = jax.linearize(lambda w: run(forest, w), w)
    np.testing.assert_allclose(linear(moved), expected, rtol=1e-4, atol=1e-5)
    rows = jax.jacrev(lambda first: run(forest, {**w, "leaf": first})[1, :2])(w["leaf"])
    by_other = jax.jacrev(lambda first: other(forest, {**w, "leaf": first})[1, :2])(w["leaf"])
    np.testing.assert_allclose(rows, by_other, rtol=1e-3, atol=1e-5)


@lw.program
def with_dropout(tree, key, w):
    """A key of each node's own, which also decides: some subtrees are left out."""
    key, own = jax.random.split(key)
    if tree.left is None or jax.random.uniform(own) < 0.2:
        return w["words"][tree.word], key
    h, key = with_dropout(tree.left, key, w)
    g, key = with_dropout(tree.right, key, w)
    kept = jax.random.bernoulli(own, 0.7, (WIDTH,))
    return jnp.tanh((h - g) @ w["square"]) * kept, key


def test_typed_keys_are_rows_and_decide() -> None:
    w, some = weights(), trees(5, 4)
    forest, keys = lw.pack(some), jax.random.split(jax.random.key(3), 4)

    def loss(w: Any, **options: Any) -> Any:
        run = lw.vmap(with_dropout, in_axes=(0, 0, None), **options)
        found, last = run(forest, keys, w)
        return jnp.sum(jnp.sin(found)), (found, jax.random.key_data(last))

    pairs = [
        jax.value_and_grad(loss, has_aux=True)(w, **options)
        for options in ({"schedule": "levels"}, {"carrier": "native"})
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *pairs)


@lw.program
def bounded(tree, w):
    assert tree.word < 9, "a word beyond the table"
    if tree.left is None:
        return w["words"][tree.word]
    return bounded(tree.left, w) * bounded(tree.right, w)


def test_assertions_and_depth_fail_by_lane() -> None:
    w = weights()
    good, bad = Tree(1, Tree(2), Tree(3)), Tree(1, Tree(2), Tree(10))
    run = lw.vmap(bounded, in_axes=(0, None), schedule="levels", throw=False)
    found, outcomes = run(lw.pack([good, bad, good]), w)
    assert outcomes.ok().tolist() == [True, False, True]
    np.testing.assert_allclose(found[2], w["words"][2] * w["words"][3], rtol=1e-5)
    assert bool(jnp.isnan(found[1]).all())
    with pytest.raises(lw.errors.LaneError, match="a word beyond the table"):
        lw.vmap(bounded, in_axes=(0, None), schedule="levels")(lw.pack([good, bad]), w)
    deep = lw.vmap(child_sum, in_axes=(0, None), schedule="levels", max_depth=4, throw=False)
    _, outcomes = deep(lw.pack([_chain(3), _chain(9)]), w)
    assert outcomes.ok().tolist() == [True, False]


def test_nothing_is_moved_on_the_sly() -> None:
    w, forest = jax.device_put(weights()), lw.pack(trees(0, 3))
    run = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")
    expected = run(forest, w)
    with jax.transfer_guard("disallow"):
        found, pull = jax.vjp(lambda w: run(forest, w), w)
        (grads,) = pull(expected)
    # The forward half of a gradient is other code, and may round otherwise.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(grads["leaf"]).max()) > 0


def test_a_report_and_progress(tmp_path: Any, capsys: Any) -> None:
    w, forest = weights(), lw.pack(trees(0, 3))
    run = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")
    expected = run(forest, w)
    with lw.report(tmp_path / "report.html"):
        found = run(forest, w)
    np.testing.assert_array_equal(found, expected)
    assert "ticks, levels" in (tmp_path / "report.html").read_text()
    shown = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels", progress=True)(forest, w)
    np.testing.assert_array_equal(shown, expected)


def test_an_empty_batch() -> None:
    w, forest = weights(), lw.pack(trees(0, 3))
    none = jax.vmap(lambda i: tree_lstm.with_options(schedule="levels")(forest[i], w), axis_size=0)(
        jnp.zeros(0, int)
    )
    assert none.shape == (0, WIDTH)


def test_inside_jit_is_an_error_that_says_so() -> None:
    w, forest = weights(), lw.pack(trees(0, 3))
    run = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")
    with pytest.raises(OptionError, match="outside jit"):
        jax.jit(run)(forest, w)
    with pytest.raises(OptionError, match="outside jit"):
        jax.jit(jax.grad(lambda w, forest: jnp.sum(run(forest, w))))(w, forest)
    with pytest.raises(OptionError, match="max_steps"):
        lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels", max_steps=9)(forest, w)
    with pytest.raises(OptionError, match="lanes=2"):
        lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels", lanes=2)
