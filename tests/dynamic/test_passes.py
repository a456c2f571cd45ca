"""What the host does for a minibatch, compiled, equals what NumPy does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.dynamic import pack, passes
from lanewise.dynamic.envelope import Demand, Store
from lanewise.dynamic.layout import layout
from lanewise.dynamic.levels import by_levels
from lanewise.dynamic.table import Table, Type, check, piece

pytestmark = needs.compiler

F4, I4 = (Type((), np.dtype(name)) for name in ("f4", "i4"))
ROW = Type((3,), np.dtype("f4"))
# Pieces of one and several types, with and without results that have adjoints; one is never called.
PIECES = (
    piece(lambda w, i: (w * i, i + 1), [np.float32(0)], [np.int32(0)], name="begins"),
    piece(lambda x, y: x * y, [], [np.float32(0)] * 2, name="joins"),
    piece(
        lambda x, r: (jnp.sin(r), x + r.sum()), [], [np.float32(0), np.ones(3, "f4")], name="two"
    ),
    piece(jnp.negative, [], [np.float32(0)], name="never"),
)
SHARED = ((0,), (), (), ())


def random_table(rng: np.random.Generator, calls: int) -> Table:
    payload = {
        F4: rng.normal(size=3).astype("f4"),
        I4: np.arange(4, dtype="i4"),
        ROW: np.ones((2, 3), "f4"),
    }
    carried = {F4: 2, ROW: 1}
    made: dict[Type, list[int]] = {F4: [], I4: [], ROW: []}
    pieces, operands, values = [], [], 0
    for _ in range(calls):
        p = int(rng.integers(3))
        pieces.append(p)
        for t in PIECES[p].rows:
            inputs = len(payload[t]) + carried.get(t, 0)
            number = int(rng.integers(-inputs, len(made[t])))
            operands.append(number if number < 0 else made[t][number])
        for t in PIECES[p].results:
            made[t].append(values)
            values += 1
    return check(Table(PIECES, SHARED, np.array(pieces), np.array(operands), payload, carried))


def same(ours: Demand, theirs: Demand) -> None:
    np.testing.assert_array_equal(ours.counts, theirs.counts)
    np.testing.assert_array_equal(ours.extra, theirs.extra)
    for name in ("fed", "payload", "carried", "wanted", "carried_extra"):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize("unrolled", [0, 2, 32])
@pytest.mark.parametrize("gradient", [False, True])
def test_tables(unrolled: int, gradient: bool) -> None:
    rng = np.random.default_rng(unrolled)
    for calls in (1, 2, 40, 300):
        table = random_table(rng, calls)
        types = [table.type_of(v) for v in range(table.num_values)]
        wanted: Any = [
            rng.choice(np.array([v for v, t in enumerate(types) if t == own] or [0]), 2)
            if own in types
            else np.zeros(0, int)
            for own in table.types
        ]
        for given in (wanted, None):
            ours = passes.survey(table, None, given, gradient)
            theirs = pack.survey(table, None, given, gradient)
            np.testing.assert_array_equal(ours.level, theirs.level)
            same(ours.need, theirs.need)
            lay = layout(Store(unrolled=unrolled).envelope(table, ours.need))
            found = passes.packed(table, given, ours, lay)
            expected = pack.packed(table, given, theirs, lay)
            np.testing.assert_array_equal(found.tables, expected.tables)
            if given is None:
                assert found.position is not None
                np.testing.assert_array_equal(found.position, expected.position)  # type: ignore[arg-type]


def test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lanes that make none, one and many calls, with operands of their own and shared ones, and wide integers."""

    @lw.program
    def summed(x: Any, w: Any, n: Any) -> Any:
        if n <= 0:
            return x
        left = summed(jnp.tanh(x @ w), w, n - 1)
        return jnp.sin(left @ w) * n + summed(x, w, n - 2)

    n = np.array([0, 3, 1, 5, 4], np.int32)
    x, w = jnp.ones((5, 16)), jnp.eye(16)
    job = lw.inspect(summed.with_options(schedule="levels"), x, w, n, in_axes=(0, None, 0)).plan.job
    own = by_levels(job.program, job.varying, None)
    operands = jax.tree.leaves((x, w, jnp.asarray(n)))
    ours = own.decide(operands, 5).recorded
    monkeypatch.setattr(passes, "library", lambda: None)
    theirs = own.decide(operands, 5).recorded
    check(ours.table)
    assert len(ours.table) > 20
    for name in ("piece", "operands", "level"):
        np.testing.assert_array_equal(getattr(ours.table, name), getattr(theirs.table, name))
    assert ours.table.carried == theirs.table.carried and ours.begins == theirs.begins
    assert ours.table.payload.keys() == theirs.table.payload.keys()
    for type_, rows in ours.table.payload.items():
        np.testing.assert_array_equal(rows, theirs.table.payload[type_])
    for found, expected in zip(ours.wanted, theirs.wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    add = lw.op(lambda w, a, b: jnp.tanh(a * w + b))
    w = jnp.float32(0.5)

    def one(numbers: Any) -> Any:
        total = numbers[0]
        for x in numbers[1:]:
            total = add(w, total, x)
        return total

    batch = [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]
    compiled = lw.lazy_map(one, batch)
    monkeypatch.setattr(passes, "library", lambda: None)
    np.testing.assert_allclose(lw.lazy_map(one, batch), compiled)
