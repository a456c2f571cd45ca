"""Sums over a whole lane: losses, counts, everything that is added up on the way and that nothing reads before the end.

`return state, total + loss(state)`: written so, each total waits for the one before, a level each, however early the
terms are known. But a sum may be taken in any order. So where a total is only ever added to and given (`only_added`),
and comes later than what its term reads, the term is a piece of its own, and each addition is a call of one piece
for all sums of its type. In the table that was recorded (`balanced`), additions that only feed each other are one sum
of many terms. Nothing else waits for them: the terms run at one level after all others, so that they are one launch
each, and their sum is a tree of the least depth.

A sum of n terms is rounded as such a tree is: in pairs, in the order in which the lane recorded the terms. That is
most often closer than one after the other, and it is the same whatever other lanes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lanewise._jax import Var
from lanewise.core.primitives.facts import is_sum
from lanewise.dynamic.code import Branch, Call, Loop, Op, Plain, Table, ops_in, variables
from lanewise.dynamic.order import depth_of
from lanewise.dynamic.table import Table as Calls


def is_addition(op: Plain | None) -> bool:
    """Whether an equation adds two arrays of one type."""
    if op is None or not is_sum(op.eqn) or len(op.eqn.invars) != 2:
        return False
    return all(a.aval.shape == op.outs[0].aval.shape for a in op.eqn.invars)


def only_added(table: Table, rows: Iterable[Var]) -> frozenset[Var]:
    """The rows that nothing reads but additions to others of these, on their way to an answer."""
    rows = frozenset(rows)
    kept = set(rows)

    def drop(atoms: Sequence[Any], readers: Sequence[Var]) -> None:
        """Atoms that these variables are bound to, if one of them is read by something else."""
        if any(v in rows and v not in kept for v in readers):
            kept.difference_update(variables(atoms))

    def visit(op: Op) -> None:
        if isinstance(op, Plain):
            if rows.isdisjoint(op.outs) or (is_addition(op) and op.outs[0] in kept):
                return
            kept.difference_update(variables(op.eqn.invars))
        elif isinstance(op, Branch):
            for code in op.branches:
                _pairwise(drop, code.outs, op.outs)
        elif isinstance(op, Loop):
            for init, last, *readers in zip(
                op.init, op.body.outs, op.body.ins, op.outs, strict=True
            ):
                drop([init, last], readers)
        elif isinstance(op, Call):
            callee = table.functions[op.name]
            _pairwise(drop, op.args, callee.ins)
            _pairwise(drop, callee.outs, op.outs)

    before = -1
    while len(kept) != before:
        before = len(kept)
        for code in table.functions.values():
            for op in ops_in(code):
                visit(op)
    return frozenset(kept)


def _pairwise(drop: Any, atoms: Sequence[Any], readers: Sequence[Var]) -> None:
    for atom, reader in zip(atoms, readers, strict=True):
        drop([atom], [reader])


# -- in a table --------------------------------------------------------------------------------------------


def balanced(
    table: Calls, additions: Sequence[bool], wanted: Sequence[np.ndarray]
) -> tuple[Calls, tuple[np.ndarray, ...]]:
    """The table with its sums as trees, after all else, and the wanted values by their new numbers.

    `additions` says which pieces are.

    >>> import jax.numpy as jnp
    >>> from lanewise.dynamic.table import Type, piece
    >>> f4 = Type((), np.dtype("f4"))
    >>> add = piece(jnp.add, rows=[np.float32(0)] * 2)
    >>> one_by_one = Calls((add,), ((),), [0] * 7, [~0, ~1, 0, ~2, 1, ~3, 2, ~4, 3, ~5, 4, ~6, 5, ~7],
    ...     {f4: np.arange(8, dtype=np.float32)}, {}, np.arange(7))
    >>> in_pairs, (answers,) = balanced(one_by_one, [True], [np.array([6])])
    >>> in_pairs.operands.reshape(-1, 2).tolist()
    [[-1, -2], [-3, -4], [-5, -6], [-7, -8], [0, 1], [2, 3], [4, 5]]
    >>> in_pairs.level.tolist(), answers.tolist()
    ([0, 0, 0, 0, 1, 1, 2], [6])
    """
    at = np.flatnonzero(np.array(additions, bool).take(table.piece))
    if not len(at) or table.level is None:
        return table, tuple(wanted)
    pairs = table.operands[table.first_operand[at, None] + np.arange(2, dtype=np.int32)]
    value = table.first_value[at]
    root, leaves = _groups(table, pairs, value, wanted)
    group, item = _sorted(root, leaves, pairs)
    made, group, item = _in_pairs(group, item, table.num_values)
    # As many additions as before, after all other calls.
    order = np.argsort(made[:, 0], kind="stable")
    others = np.ones(len(table), bool)
    others[at] = False
    of_call = table.piece[others]
    values = int(table.num_results[of_call].sum())
    number = np.full(table.num_values + len(at), -1, np.int32)
    number[: table.num_values][np.repeat(others, table.num_results[table.piece])] = np.arange(
        values
    )
    number[table.num_values + order] = values + np.arange(len(at))
    number[value[group]] = number[item]
    read = table.operands[np.repeat(others, table.arity[table.piece])]
    operands = np.concatenate([read, made[order, 1:].reshape(-1).astype(np.int32)])
    has = operands >= 0
    operands[has] = number[operands[has]]
    rest, last = _levels(table, others, pairs)
    maker, reader = operands[len(read) :] - values, np.repeat(np.arange(len(at)), 2)
    inner = maker >= 0
    new = Calls(
        table.pieces,
        table.shared,
        np.concatenate([of_call, table.piece[at[made[order, 0]]]]),
        operands,
        table.payload,
        table.carried,
        np.concatenate([rest, last + depth_of(len(at), maker[inner], reader[inner])]),
    )
    return new, tuple(number[each] for each in wanted)


def _groups(
    table: Calls, pairs: np.ndarray, value: np.ndarray, wanted: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """For each addition the last one of its sum, and which of its operands are terms."""
    uses = np.bincount(table.operands[table.operands >= 0], minlength=table.num_values)
    for values in wanted:
        uses += np.bincount(values, minlength=table.num_values)
    reader = np.full(table.num_values, -1, np.intp)
    for column in pairs.T:
        made = np.flatnonzero(column >= 0)
        reader[column[made]] = made
    inner = (uses[value] == 1) & (reader[value] >= 0)
    root = np.where(inner, reader[value], np.arange(len(value)))
    while True:
        above = root[root]
        if np.array_equal(above, root):
            break
        root = above
    summed = np.zeros(table.num_values, bool)
    summed[value[inner]] = True
    return root, (pairs < 0) | ~summed[np.maximum(pairs, 0)]


def _sorted(
    root: np.ndarray, leaves: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The terms of all sums, those of one sum together, and which sum each is of."""
    group = np.broadcast_to(root[:, None], pairs.shape)[leaves]
    order = np.argsort(group, kind="stable")
    return group[order], pairs[leaves][order].astype(np.int64)


def _in_pairs(
    group: np.ndarray, item: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Additions (sum, left, right), whose values are numbered from `first` on, and then the value of each sum."""
    made = []
    while True:
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        place = np.arange(len(group)) - np.repeat(starts, np.diff(starts, append=len(group)))
        left = np.flatnonzero((place[1:] % 2 == 1) & (group[1:] == group[:-1]))
        if not len(left):
            return np.concatenate(made), group, item
        made.append(np.stack([group[left], item[left], item[left + 1]], 1))
        item[left] = first + np.arange(len(left))
        first += len(left)
        group, item = group[place % 2 == 0], item[place % 2 == 0]


def _levels(table: Calls, others: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, int]:
    """Levels of the other calls, terms that nothing else reads after the rest; and that of the first addition."""
    assert table.level is not None
    level = np.asarray(table.level, np.int32)
    reads, added = (
        np.bincount(table.caller[made[made >= 0]], minlength=len(table))
        for made in (table.operands, pairs)
    )
    late = others & (level > 0) & (reads == added) & (added > 0)
    last = int(level[others & ~late].max(initial=-1)) + 1
    return np.where(late, last, level)[others], last + bool(late.any())
