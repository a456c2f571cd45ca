"""Tables run level by level give what one call at a time gives, forwards and in reverse."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from by_hand import (
    INNER,
    INT,
    LEAF,
    ROW,
    SCALAR,
    chain_tree,
    compare,
    complete_tree,
    forest,
    made,
    one_at_a_time,
    random_tree,
    wanted,
    weights,
)
from lanewise.dynamic.envelope import Store
from lanewise.dynamic.layout import layout
from lanewise.dynamic.run import prepare, run
from lanewise.dynamic.table import Table, TableError, Type, check, piece

UNROLLED = Store()
LOOPED = Store(unrolled=0)
STORES = pytest.mark.parametrize("store", [UNROLLED, LOOPED], ids=["unrolled", "looped"])


def compare_roots(table: Table, roots: np.ndarray, store: Store, order: str = "depth") -> None:
    check(table)
    want = wanted(table, roots)

    def ours(shared: Any) -> Any:
        return run(table, shared, want, order=order, store=store).of(ROW)[: len(roots)]

    def theirs(shared: Any) -> Any:
        values = one_at_a_time(table, shared)
        return jnp.stack([values[int(r)] for r in roots])

    compare(ours, jax.jit(theirs), weights())


@STORES
def test_trees(store: Store) -> None:
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, n) for n in (1, 7, 2, 12, 1, 5)]
    compare_roots(*forest(trees), store)


@STORES
@pytest.mark.parametrize("trees", [[3], [(1, 2)], [complete_tree(3)], [chain_tree(9), 4]])
def test_small_forests(trees: Any, store: Store) -> None:
    compare_roots(*forest(trees), store)


@STORES
def test_one_subtree_that_many_trees_hold(store: Store) -> None:
    """A value with many users: they are added up."""
    table, _ = forest([(1, 2), 5])
    shared, other = 2, 0
    calls, operands = table.piece.tolist(), table.operands.tolist()
    for _ in range(20):
        calls.append(1)
        operands += [2 * shared, 2 * shared + 1, 2 * other, 2 * other + 1]
        shared = len(calls) - 1 if len(calls) % 3 else shared
    dag = made(table.pieces, table.shared, calls, operands, table.payload)
    # The same value is wanted twice, and one that others read.
    compare_roots(dag, np.array([2 * (len(calls) - 1), 4, 4, 10]), store)


def test_no_calls() -> None:
    table, roots = forest([])
    assert run(table, weights(), wanted(table, roots)).of(ROW).shape[1:] == ROW.shape


@STORES
def test_all_values_are_answers(store: Store) -> None:
    table, _ = forest([((1, 2), (3, 4)), (5, 6), 7])

    def ours(shared: Any) -> Any:
        answer = run(table, shared, store=store)
        assert answer.position is not None
        return answer.of(ROW)[answer.position]

    compare(ours, lambda shared: jnp.stack(one_at_a_time(table, shared)), weights())


@STORES
def test_carried_rows_have_gradients(store: Store) -> None:
    """Rows that come from elsewhere, beside payload of their type, each read once, twice or never."""
    rows = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    # Inputs of the type are two rows of payload, then three carried ones.
    calls = [1, 1, 1]
    operands = [~0, ~1, ~2, ~2, 0, 1, ~3, ~1, 2, 3, 2, ~2]
    table = made(
        (LEAF, INNER),
        ((0, 1), (2, 3)),
        calls,
        operands,
        {ROW: rows[:2] + 1},
        carried={ROW: 3},
    )
    check(table)

    def ours(given: Any) -> Any:
        want = wanted(table, np.array([4, 5]))
        return run(table, given[0], want, carried={ROW: given[1]}, store=store).of(ROW)[:2]

    def theirs(given: Any) -> Any:
        return jnp.stack(one_at_a_time(table, given[0], {ROW: given[1]})[4:])

    compare(ours, theirs, (weights(), jnp.asarray(rows)))


def test_deep_chains_run_in_the_loop() -> None:
    """Ten thousand levels: values of a recurrence that is known."""
    step = piece(lambda a, x: a * x + 1.0, [np.float32(0)], [np.float32(0)])
    n = 10_000
    operands = [~0, *range(n - 1)]
    table = made((step,), ((0,),), [0] * n, operands, {SCALAR: [2.0]})

    def last(a: Any) -> Any:
        return run(table, [a], [np.array([n - 1])]).of(SCALAR)[0]

    def scanned(a: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, x: a * x + 1.0, jnp.float32(2.0))

    np.testing.assert_allclose(last(jnp.float32(0.9)), scanned(jnp.float32(0.9)), rtol=1e-5)
    slope = jax.jvp(scanned, (jnp.float32(0.9),), (jnp.float32(1.0),))[1]
    np.testing.assert_allclose(jax.grad(last)(jnp.float32(0.9)), slope, rtol=1e-4)


def test_wide_forests_take_all_tile_widths() -> None:
    trees = [(i % 5, (i % 7, i % 3)) for i in range(350)]
    table, roots = forest(trees)

    def ours(store: Store) -> Any:
        def loss(shared: Any) -> Any:
            return jnp.sum(run(table, shared, wanted(table, roots), store=store).of(ROW)[:350] ** 2)

        return jax.value_and_grad(loss)(weights())

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), ours(LOOPED), ours(UNROLLED)
    )


def test_rows_that_are_not_there_add_nothing() -> None:
    """A piece that is not finite at zero: padding must not reach the weight's gradient."""
    log = piece(lambda w, x: jnp.log(x) * w + w / x, [np.float32(0)], [np.float32(0)])
    exp = piece(jnp.exp, [], [np.float32(0)])
    table = made(
        (log, exp),
        ((0,), ()),
        [1, 1, 0, 1, 0],
        [~0, ~1, 0, 2, 3],
        {SCALAR: [1, 2]},
    )
    for store in (Store(), Store(unrolled=0)):

        def ours(w: Any, store: Store = store) -> Any:
            return run(table, [w], [np.array([4, 1])], store=store).of(SCALAR)[:2]

        compare(
            ours,
            lambda w: jnp.stack([one_at_a_time(table, [w])[i] for i in (4, 1)]),
            jnp.float32(0.3),
        )


def test_pieces_with_results_of_several_types() -> None:
    """Vectors, scalars and integers; a result that is an operand; one that is a constant."""

    def split(w: Any, x: Any, n: Any) -> Any:
        return x @ w, jnp.sum(x) * n, n + 1, x, jnp.float32(3.0)

    def join(x: Any, a: Any, n: Any, b: Any) -> Any:
        return jnp.sin(x) * a + n * b

    row, one, number = np.zeros(4, np.float32), np.float32(0), np.int32(0)
    parts = (
        piece(split, [np.zeros((4, 4), np.float32)], [row, number]),
        piece(join, [], [row, one, number, one]),
    )
    values = {ROW: [[1, 2, 3, 4], [0, 1, 0, 1]], INT: [5, 2]}
    calls = [0, 0, 1, 0, 1, 1]
    operands = [~0, ~0, ~1, ~1, 0, 1, 2, 4, 10, 7, 3, 6, 13, 9, 14, 12, 7, 1]
    table = made(parts, ((0,), ()), calls, operands, values)
    check(table)
    at = {ROW: [16, 17], SCALAR: [12]}
    want = [np.array(at.get(t, []), np.int64) for t in table.types]
    for store in (Store(), Store(unrolled=0)):

        def ours(w: Any, store: Store = store) -> Any:
            answer = run(table, [w], want, store=store)
            return answer.of(ROW)[:2], answer.of(SCALAR)[:1]

        def theirs(w: Any) -> Any:
            all_of = one_at_a_time(table, [w])
            return jnp.stack([all_of[i] for i in at[ROW]]), jnp.stack([all_of[12]])

        compare(ours, theirs, jnp.eye(4) * 0.3 + 0.1)


def test_pieces_with_loops_and_products_inside() -> None:
    """What JAX differentiates in a piece, the table does: scans, branches, products of matrices."""

    def body(w: Any, x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return jnp.tanh(c @ w), jnp.sum(c)

        c, sums = jax.lax.scan(step, x, None, length=3)
        outer = jnp.outer(c, x) @ w
        return jax.lax.cond(sums[0] > 0, jnp.sin, jnp.cos, outer[0] + jnp.linalg.norm(x))

    node = piece(body, [np.zeros((4, 4), np.float32)], [np.zeros(4, np.float32)])
    rows = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    table = made((node,), ((0,),), [0] * 5, [~0, ~1, 0, 2, ~2], {ROW: rows})

    def ours(w: Any) -> Any:
        return run(table, [w], [np.array([3, 4, 1])]).of(ROW)[:3]

    def theirs(w: Any) -> Any:
        values = one_at_a_time(table, [w])
        return jnp.stack([values[i] for i in (3, 4, 1)])

    compare(ours, theirs, jnp.asarray(rows[:1].T @ rows[:1] * 0.2))


def test_under_jit_and_vmap() -> None:
    table, roots = forest([((1, 2), 3), (4, 5)])

    def loss(shared: Any) -> Any:
        return jnp.sum(run(table, shared, wanted(table, roots)).of(ROW)[:2] ** 2)

    plain = jax.value_and_grad(loss)(weights())
    jitted = jax.jit(jax.value_and_grad(loss))(weights())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), plain, jitted)
    two = jax.tree.map(lambda a, b: jnp.stack([a, b]), weights(0), weights(1))
    both = jax.vmap(jax.grad(loss))(two)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5), both, plain[1]
    )


def test_forwards_and_forwards_over_backwards() -> None:
    """Tangents, and Hessian-vector products, through the head and through the loop of deep tables."""
    for trees in ([((1, 2), 3), 4], [chain_tree(40), (1, 2)]):
        table, roots = forest(trees)

        def ours(shared: Any, table: Any = table, roots: Any = roots) -> Any:
            return jnp.sum(jnp.sin(run(table, shared, wanted(table, roots)).of(ROW)))

        def theirs(shared: Any, table: Any = table, roots: Any = roots) -> Any:
            values = one_at_a_time(table, shared)
            return jnp.sum(jnp.sin(jnp.stack([values[r] for r in roots])))

        moved = weights(3)
        for derivative in (lambda f: f, jax.grad):
            pairs = [jax.jvp(derivative(f), (weights(),), (moved,)) for f in (ours, theirs)]
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *pairs
            )


def test_payload_among_the_tables() -> None:
    """Numbers as large as an index go to the device in one array with the tables; others are arrays of their own."""
    names = ("f4", "i4", "u4", "f2", "?", "i1")
    rows = {name: np.array([[0, 1, 1], [3, 1, 0]], name) for name in names}
    rows["f4"][1, 0], rows["u4"][0, 2] = -0.25, 4_000_000_000
    types = {name: Type((3,), np.dtype(name)) for name in names}

    def together(*parts: Any) -> Any:
        return sum(x.astype(np.float32) for x in parts)

    for own, leaves in ((names[:3], 1), (names, 4)):
        node = piece(together, rows=[rows[name][0] for name in own])
        payload = {types[name]: rows[name] for name in own}
        table = made((node,), ((),), [0, 0], [~1] * len(own) + [~0] * len(own), payload)
        want = [np.arange(2) if t == types["f4"] else np.zeros(0, int) for t in table.types]
        ready = prepare(check(table), want, gradient=False, store=Store())
        assert len(jax.tree.leaves(ready)) == leaves
        expected = together(*(rows[name][::-1] for name in own))
        np.testing.assert_array_equal(ready([]).of(types["f4"])[:2], expected)


def test_a_step_is_compiled_once_for_prepared_tables() -> None:
    """A prepared table is an argument of `jit`: its index tables are data."""
    store = Store()
    traces = []

    @jax.jit
    def step(shared: Any, prepared: Any) -> Any:
        traces.append(1)
        return jax.value_and_grad(lambda s: jnp.sum(prepared(s).of(ROW)[:2] ** 2))(shared)

    for trees in ([((1, 2), 3), (4, 5)], [(1, (2, 3)), 7], [(1, 2), (3, 4)]):
        table, roots = forest(trees)

        def loss(shared: Any, table: Any = table, roots: Any = roots) -> Any:
            return jnp.sum(run(table, shared, wanted(table, roots)).of(ROW) ** 2)

        ours = step(weights(), prepare(table, wanted(table, roots), store=store))
        theirs = jax.value_and_grad(loss)(weights())
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs
        )
    assert len(traces) == store.made == 1


def test_only_what_is_asked_for_is_differentiated() -> None:
    """The gradient by one of the arrays: integers and the others have none."""
    table, roots = forest([((1, 2), 3)])

    def loss(bias: Any) -> Any:
        shared = [weights()[0], bias, *weights()[2:]]
        return jnp.sum(run(table, shared, wanted(table, roots)).of(ROW)[:1])

    all_of = jax.grad(lambda s: jnp.sum(run(table, s, wanted(table, roots)).of(ROW)[:1]))(weights())
    np.testing.assert_allclose(jax.grad(loss)(weights()[1]), all_of[1], rtol=1e-5)


@pytest.mark.parametrize("order", ["agenda", "lookahead"])
@STORES
def test_other_orders_give_the_same(store: Store, order: str) -> None:
    rng = np.random.default_rng(3)
    trees = [random_tree(rng, n) for n in (4, 9, 1)]
    compare_roots(*forest(trees), store, order)


# Random tables of three pieces, with sharing.
_MIX = (
    piece(lambda w, x, y: jnp.tanh(x * w + y), [np.float32(0)], [np.float32(0)] * 2),
    piece(lambda x: (jnp.sin(x), x * x * 0.1), [], [np.float32(0)]),
    piece(lambda v, x, y, z: x * y * v + z, [np.float32(0)], [np.float32(0)] * 3),
)
_MIX_STORES = {name: Store(unrolled=u) for name, u in (("unrolled", 32), ("looped", 0))}


@settings(max_examples=40 if needs.FULL else 20, deadline=None, derandomize=True)
@given(st.data())
def test_random_tables(data: Any) -> None:
    n = data.draw(st.integers(1, 16))
    inputs = data.draw(st.integers(1, 3))
    calls, operands, values = [], [], 0
    for _ in range(n):
        p = data.draw(st.integers(0, 2))
        calls.append(p)
        for _ in _MIX[p].rows:
            operands.append(data.draw(st.integers(-inputs, values - 1)))
        values += len(_MIX[p].results)
    payload = {SCALAR: np.linspace(0.2, 0.9, inputs, dtype=np.float32)}
    table = made(_MIX, ((0,), (), (1,)), calls, operands, payload)
    check(table)
    roots = data.draw(st.lists(st.integers(0, values - 1), min_size=1, max_size=4))
    order = data.draw(st.sampled_from(["depth", "agenda", "lookahead"]))
    shared = [jnp.float32(0.7), jnp.float32(-0.4)]

    def theirs(shared: Any) -> Any:
        return jnp.stack([one_at_a_time(table, shared)[r] for r in roots])

    store = _MIX_STORES[data.draw(st.sampled_from(["unrolled", "looped"]))]

    def ours(shared: Any) -> Any:
        answer = run(table, shared, [np.array(roots)], order=order, store=store)
        return answer.of(SCALAR)[: len(roots)]

    compare(ours, theirs, shared)


def test_tables_that_do_not_hold_together_are_refused() -> None:
    table, _ = forest([(1, 2)])
    wrong = table.operands.copy()
    wrong[2:] = [0, 1, 4, 5]
    with pytest.raises(TableError, match="made after it is read"):
        check(made(table.pieces, table.shared, table.piece, wrong, table.payload))
    with pytest.raises(TableError, match="names an input beyond the 0"):
        check(made(table.pieces, table.shared, table.piece, table.operands))
    with pytest.raises(TableError, match="operands are needed"):
        check(made(table.pieces, table.shared, table.piece, table.operands[:-1], table.payload))
    given = jnp.arange(3.0)
    with pytest.raises(TableError, match="reads 1 arrays from outside"):
        piece(lambda x: x + given, rows=[np.zeros(3, np.float32)])
    assert Type.of(np.float32(0)) == SCALAR


def sums_and_products(weight: Any, total: Any, kept: Any, row: Any, beside: Any) -> Any:
    """Results of which the first does not read all rows, and the second one is a row and little more."""
    return jnp.tanh(total @ weight) + total, kept + row, jnp.tanh(beside) + total


@STORES
def test_arenas_are_written_in_place(store: Store) -> None:
    """Forwards and in reverse: XLA copies no arena, whatever results read of the rows."""
    width, lanes, long = 7, 40, 5
    rows = [np.zeros(width, np.float32)] * 4
    step = piece(sums_and_products, [np.zeros((width, width), np.float32)], rows)
    row = step.rows[0]
    calls = [0] * (lanes * long)
    # Each step of a lane reads what the step before it gave, and one row of payload.
    before = [[3 * (i - 1) + j for j in range(3)] for i in range(len(calls))]
    operands = [
        x
        for i, made in enumerate(before)
        for x in ([~0, ~1, ~2, ~3] if i % long == 0 else [*made[:2], ~(i % 4), made[2]])
    ]
    given = {row: np.random.default_rng(0).normal(size=(4, width)).astype(np.float32)}
    table = made((step,), ((0,),), calls, operands, given)
    ends = np.array([3 * (i * long + long - 1) + 1 for i in range(lanes)])
    shared = [jnp.asarray(np.random.default_rng(1).normal(size=(width, width)), jnp.float32)]

    def ours(shared: Any, ready: Any) -> Any:
        return jnp.sum(ready(shared).of(row)[:lanes] ** 2)

    ready = prepare(table, [ends], gradient=True, store=store)
    lay = layout(ready.envelope)
    compiled = jax.jit(jax.value_and_grad(ours)).lower(shared, ready).compile()
    copied = re.findall(rf"f32\[(\d+),{width}\]\S* copy\(", compiled.as_text() or "")
    assert all(int(n) < min(lay.arena[0], lay.adjoints[0]) for n in copied)
    values = one_at_a_time(table, shared)
    expected = sum(jnp.sum(values[int(r)] ** 2) for r in ends)
    np.testing.assert_allclose(compiled(shared, ready)[0], expected, rtol=1e-5)
