"""A table with its sums in pairs.

Additions of which one reads the other, and nothing else does, are one sum of many terms. It is made of additions in
pairs, each as soon as two terms are there, so that n terms take log2(n) levels after the last one; zeros are left out.
Levels of all calls follow.

A sum that nothing waits for is put off until all else is done, with the terms that nothing else reads: these are then
one launch each. (Where a table is run by levels that are unrolled, its last levels are those that vary most between
minibatches; they have few pieces then.)

A sum is rounded as its pairs are: terms in the order in which they are there, and of those of one level in that in
which the lane comes to them. That is the same whatever other lanes do, and most often closer than one after the other.

Compiled code does it (`passes.cpp`); where there is no compiler, what is here, which says the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lanewise.dynamic import passes
from lanewise.dynamic.table import Table


def balanced(
    table: Table,
    adds: Sequence[bool],
    zeros: Sequence[Sequence[bool]],
    wanted: Sequence[np.ndarray],
) -> tuple[Table, tuple[np.ndarray, ...]]:
    """The table with its sums in pairs, and the wanted values by their new numbers.

    By piece: whether it adds two rows and does nothing else, and which of its results are zeros.

    >>> import jax.numpy as jnp
    >>> from lanewise.dynamic.table import Type, piece
    >>> f4 = Type((), np.dtype("f4"))
    >>> add = piece(jnp.add, rows=[np.float32(0)] * 2)
    >>> numbers = {f4: np.arange(8, dtype=np.float32)}
    >>> operands = [~0, ~1, 0, ~2, 1, ~3, 2, ~4, 3, ~5, 4, ~6, 5, ~7]
    >>> one_by_one = Table((add,), ((),), [0] * 7, operands, numbers, {}, np.arange(7))
    >>> in_pairs, (answers,) = balanced(one_by_one, [True], [[False]], [np.array([6])])
    >>> in_pairs.operands.reshape(-1, 2).tolist()
    [[-1, -2], [-3, -4], [-5, -6], [-7, -8], [0, 1], [2, 3], [4, 5]]
    >>> in_pairs.level.tolist(), answers.tolist()
    ([0, 0, 0, 0, 1, 1, 2], [6])
    """
    uses = np.zeros(table.num_values + 1, np.int32)
    for values in wanted:
        uses[:-1] += np.bincount(values, minlength=table.num_values).astype(np.int32)
    way = _in_python if passes.library() is None else _compiled
    piece, level, operands, number = way(table, adds, zeros, uses)
    new = Table(table.pieces, table.shared, piece, operands, table.payload, table.carried, level)
    return new, tuple(number[values] for values in wanted)


_Found = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _compiled(
    table: Table, adds: Sequence[bool], zeros: Sequence[Sequence[bool]], uses: np.ndarray
) -> _Found:
    assert table.level is not None
    calls, values = len(table), table.num_values
    flags = [passes.ints(adds), passes.ints([zero for each in zeros for zero in each])]
    adding = passes.Struct(
        pieces=passes.pieces_of(table.pieces),
        adds=flags[0],
        zeros=flags[1],
        piece=table.piece,
        operands=table.operands,
        level=passes.ints(table.level),
        calls=calls,
        values=values,
    )
    terms = np.zeros((values + 1, 6), np.int32)
    terms[:, 0] = uses
    scratch = [np.empty(size * calls + 1, np.int32) for size in (1, 1, 2, 4, 4)]
    piece, level = (np.empty(calls, np.int32) for _ in range(2))
    operands, number = np.empty(len(table.operands), np.int32), np.empty(values, np.int32)
    made = passes.call("lw_balanced", adding, terms, *scratch, piece, level, operands, number)
    piece, level = piece[:made], level[:made]
    return piece, level, operands[: int(table.arity[piece].sum())], number


@dataclass
class _Adding:
    """The table that is read, what is known of its values, and the calls that are made of it."""

    table: Table
    operands: list[list[int]]
    ready: list[int]  # one more than the level, by value
    number: list[int]
    made: list[tuple[int, int, list[int]]] = field(default_factory=list)
    values: int = 0

    def call(self, piece: int, level: int, operands: list[int]) -> int:
        """Append a call; gives the number of its first value."""
        self.made.append((piece, level, operands))
        self.values += int(self.table.num_results[piece])
        return self.values - int(self.table.num_results[piece])


def _in_python(
    table: Table, adds: Sequence[bool], zeros: Sequence[Sequence[bool]], uses: np.ndarray
) -> _Found:
    first, piece = table.first_value.tolist(), table.piece.tolist()
    at, flat = table.first_operand.tolist(), table.operands.tolist()
    operands = [flat[a:b] for a, b in itertools.pairwise(at)]
    late, inner = _put_off(table, adds, operands, uses)
    zero = [z for p in piece for z in zeros[p]]
    found = _Adding(table, operands, [0] * len(zero), [-1] * len(zero))
    for turn in range(3):
        start = 1 + max((level for _, level, _ in found.made), default=-1) if turn else 0
        for c, p in enumerate(piece):
            v = first[c]
            if turn != late[c] * (1 + adds[p]) or v in inner:
                continue
            if adds[p]:
                found.ready[v], found.number[v] = _sum(found, c, inner, zero, start)
                continue
            read = [x for x in operands[c] if x >= 0]
            level = max([start, *(found.ready[x] for x in read)])
            new = found.call(p, level, [found.number[x] if x >= 0 else x for x in operands[c]])
            for j in range(first[c + 1] - v):
                found.ready[v + j], found.number[v + j] = level + 1, new + j
    pieces, levels, reads = zip(*found.made, strict=True)
    flat = [x for read in reads for x in read]
    return tuple(np.array(x, np.int32) for x in (pieces, levels, flat, found.number))  # type: ignore[return-value]


def _put_off(
    table: Table, adds: Sequence[bool], operands: Sequence[list[int]], uses: np.ndarray
) -> tuple[list[bool], dict[int, int]]:
    """Which calls can wait until all else is done; and additions that only lead to another one, by their value."""
    assert table.level is not None
    first, piece, level = table.first_value.tolist(), table.piece.tolist(), table.level.tolist()
    reads, late, inner = uses.tolist(), [False] * len(piece), {}
    by_sums, otherwise, by_addition = set(), set(), set()
    for c, p in enumerate(piece):
        made = [v for v in operands[c] if v >= 0]
        by_addition.update(made if adds[p] else ())
        for v in made:
            reads[v] += 1
    for c in reversed(range(len(piece))):
        p, own = piece[c], range(first[c], first[c + 1])
        late[c] = otherwise.isdisjoint(own) and (
            adds[p] or (level[c] > 0 and not by_sums.isdisjoint(own))
        )
        (by_sums if adds[p] and late[c] else otherwise).update(v for v in operands[c] if v >= 0)
        if adds[p] and reads[first[c]] == 1 and first[c] in by_addition:
            inner[first[c]] = c
    return late, inner


def _sum(
    found: _Adding, call: int, inner: dict[int, int], zero: Sequence[bool], start: int
) -> tuple[int, int]:
    """Add the terms of a sum in pairs; gives when it is there, and its number."""
    items, todo, none = [], found.operands[call][::-1], (0, 0)
    while todo:
        v = todo.pop()
        if v in inner:
            todo += found.operands[inner[v]][::-1]
        elif v < 0:
            items.append((start, v))
        elif zero[v]:
            none = max(start, found.ready[v]), found.number[v]
        else:
            items.append((max(start, found.ready[v]), found.number[v]))
    if not items or (len(items) == 1 and items[0][1] < 0):
        # An operand of the lane is no value of its own.
        items.append(none)
    waiting = sorted(items, key=lambda item: item[0])[::-1]
    there: list[tuple[int, int]] = []
    time = waiting[-1][0]
    while len(there) + len(waiting) > 1:
        if len(there) < 2 and waiting:
            time = max(time, waiting[-1][0])
        while waiting and waiting[-1][0] <= time:
            there.append(waiting.pop())
        pairs = zip(there[::2], there[1::2], strict=False)
        piece = int(found.table.piece[call])
        odd = there[len(there) // 2 * 2 :]
        there = [(time + 1, found.call(piece, time, [a, b])) for (_, a), (_, b) in pairs] + odd
        time += 1
    return (there + waiting)[0]
