"""Sums of tables in pairs: the same values in few levels, and the same table with and without a compiler."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lanewise.dynamic import passes
from lanewise.dynamic.balanced import balanced
from lanewise.dynamic.order import edges
from lanewise.dynamic.run import run
from lanewise.dynamic.table import Table, Type, check, piece

INT = Type((), np.dtype(np.int32))
ADD = piece(jnp.add, rows=[np.int32(0)] * 2, name="sum")
TERM = piece(lambda a, b: a * b + 1, rows=[np.int32(0)] * 2)
NONE = piece(lambda a: jnp.zeros((), jnp.int32), rows=[np.int32(0)])
PAIR = piece(lambda a: (a + 1, 3 * a), rows=[np.int32(0)])
PIECES = (TERM, ADD, NONE, PAIR)
ADDS, ZEROS = (False, True, False, False), ((False,), (False,), (True,), (False, False))


def recorded(pieces: list[int], operands: list[int]) -> Table:
    """A table of these calls, with levels as a slice gives them."""
    payload = {INT: np.arange(1, 5, dtype=np.int32)}
    table = Table(PIECES, ((),) * 4, np.array(pieces), np.array(operands), payload)
    level = np.zeros(len(table), np.int32)
    for maker, reader in sorted(zip(*edges(table), strict=True), key=lambda edge: edge[1]):
        level[reader] = max(level[reader], level[maker] + 1)
    return Table(PIECES, ((),) * 4, np.array(pieces), np.array(operands), payload, {}, level)


def random_table(rng: np.random.Generator, calls: int) -> Table:
    pieces: list[int] = []
    operands: list[int] = []
    made = 0
    for _ in range(calls):
        p = int(rng.choice(4, p=(0.3, 0.5, 0.1, 0.1)))
        for _ in PIECES[p].rows:
            # What is new is read more often, so that there are long sums.
            new = made - 1 - int(rng.integers(0, min(made, 4))) if made else -1
            operands.append(new if rng.random() < 0.8 and made else int(~rng.integers(0, 4)))
        pieces.append(p)
        made += len(PIECES[p].results)
    return recorded(pieces, operands)


def values(table: Table, wanted: np.ndarray) -> Any:
    return run(table, [], [wanted]).of(INT)


@pytest.mark.parametrize("calls", [1, 5, 30, 30, 200])
def test_random_tables(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(6):
        rng = np.random.default_rng(calls + seed)
        table = random_table(rng, calls)
        wanted = rng.integers(0, table.num_values, 3)
        ours, (answers,) = balanced(check(table), ADDS, ZEROS, [wanted])
        with monkeypatch.context() as without:
            without.setattr(passes, "library", lambda: None)
            theirs, (others,) = balanced(table, ADDS, ZEROS, [wanted])
        for name in ("piece", "operands", "level"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_array_equal(answers, others)
        maker, reader = edges(check(ours))
        assert ours.level is not None and np.all(ours.level[maker] < ours.level[reader])
        assert len(ours) <= len(table)
        if seed < 2:
            np.testing.assert_array_equal(values(ours, answers), values(table, wanted))


def test_terms_that_are_there_are_added_first() -> None:
    """A chain of calls, of which each is added to the sum of those before: one level more than the chain has."""
    count = 20
    pieces, operands, last, total = [0], [~0, ~1], 0, -1
    for _ in range(count):
        pieces += [0, 1]
        operands += [last, ~2, total, 2 * len(pieces) // 2 - 2]
        last, total = len(pieces) - 2, len(pieces) - 1
    # The sum is read by a call, so nothing is put off.
    table = recorded([*pieces, 0], [*operands, total, ~0])
    found, _ = balanced(check(table), ADDS, ZEROS, [np.array([len(table) - 1])])
    assert found.level is not None
    assert found.level.max() == count + 2


def test_zeros_and_single_terms_are_no_additions() -> None:
    # 0 + t, read by a call; 0 + 0; 0 + an operand of the lane.
    table = recorded([2, 0, 1, 0, 1, 1], [~0, ~1, ~2, 0, 1, 2, ~0, 0, 0, 0, ~3])
    wanted = np.array([3, 4, 5])
    found, (answers,) = balanced(check(table), ADDS, ZEROS, [wanted])
    assert found.piece.tolist() == [2, 0, 0, 1]
    np.testing.assert_array_equal(values(found, answers), values(table, wanted))
