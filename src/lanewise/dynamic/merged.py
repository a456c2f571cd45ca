"""Calls that are equal are made once.

Answers at every node of a forest visit each node as often as it has nodes above it, and a graph visits what is shared
once for each way to it. The slice records all of these. Calls of one piece with equal operands give equal results, so
of each set of such one is left, level by level: those of the first level by their payload, those of the others by what
is left of the levels below.

That takes longer than making the table, so it is done only where it pays: where most calls that read nothing but
payload have been met before, which is a count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lanewise.dynamic.table import Calls, Table, flat_operands

# The most levels for which it is done: each costs some NumPy calls.
MOST_LEVELS = 256
# The most of the calls of payload alone that may be left.
SHARE = 0.6


def worth_merging(table: Table, alone: Sequence[np.ndarray]) -> bool:
    """Whether most calls that read one integer and nothing else are repeated; `alone`: what they read, by piece."""
    assert table.level is not None
    total = distinct = 0
    for rows in alone:
        if rows.ndim > 1 or rows.dtype.itemsize > 4 or not len(rows):
            continue
        least, most = int(rows.min()), int(rows.max())
        if most - least > 4 * len(table.piece) + 1024:
            continue
        total += len(rows)
        distinct += np.count_nonzero(np.bincount(rows.astype(np.int64) - least))
    return bool(distinct < SHARE * total) and int(table.level.max()) < MOST_LEVELS


def merged(table: Table, wanted: Sequence[np.ndarray]) -> tuple[Table, tuple[np.ndarray, ...]]:
    """The table without calls that repeat others, and the wanted values by their new numbers.

    >>> import jax.numpy as jnp
    >>> from lanewise.dynamic.table import Type, piece
    >>> i4 = Type((), np.dtype("i4"))
    >>> square = piece(lambda x: x * x, rows=[np.int32(0)])
    >>> twice = Table((square,), ((),), [0] * 4, [~0, 0, ~1, 2], {i4: np.int32([3, 3])}, {}, np.array([0, 1, 0, 1]))
    >>> less, (answers,) = merged(twice, [np.array([1, 3])])
    >>> len(less), answers.tolist()
    (2, [1, 1])
    """
    assert table.level is not None
    kept, value = _representatives(table, table.level)
    piece, level = table.piece[kept], np.asarray(table.level)[kept]
    counts = table.num_results[piece]
    first = (np.cumsum(counts) - counts).astype(np.int32)
    number = np.full(table.num_values, -1, np.int32)
    old = table.first_value[:-1][kept]
    for j in range(int(counts.max(initial=0))):
        has = counts > j
        number[old[has] + j] = first[has] + j
    new = number[value]
    place = (np.cumsum(kept) - 1).astype(np.int32)
    calls_of = []
    for calls in table.calls_of:
        mine = kept[calls.number]
        operands = calls.operands[mine]
        made = operands >= 0
        operands[made] = new[operands[made]]
        at = place[calls.number[mine]]
        calls_of.append(Calls(at, first[at], operands))
    operands = flat_operands(table.pieces, piece, calls_of)
    less = Table(table.pieces, table.shared, piece, operands, table.payload, table.carried, level)
    return less, tuple(new[values] for values in wanted)


def _representatives(table: Table, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which calls are left, and for each value the one that stands for it."""
    payload = {t: _first_alike(rows) for t, rows in table.payload.items()}
    value = np.arange(table.num_values, dtype=np.int32)
    kept = np.ones(len(table), bool)
    height = int(level.max(initial=-1)) + 1
    parts = []
    for calls in table.calls_of:
        order = np.argsort(level[calls.number], kind="stable")
        bounds = np.searchsorted(level[calls.number][order], np.arange(height + 1))
        parts.append((order, bounds))
    for k in range(height):
        for p, (order, bounds) in enumerate(parts):
            part = order[bounds[k] : bounds[k + 1]]
            if not len(part):
                continue
            calls = table.calls_of[p]
            operands = calls.operands[part]
            for column, type_ in zip(operands.T, table.pieces[p].rows, strict=True):
                _rename(column, value, payload.get(type_))
            first = _first_alike(operands)
            kept[calls.number[part]] = first == np.arange(len(part))
            values = calls.first[part]
            for j in range(len(table.pieces[p].results)):
                value[values + j] = values[first] + j
    return kept, value


def _rename(column: np.ndarray, value: np.ndarray, payload: np.ndarray | None) -> None:
    """Write what stands for each operand into its place."""
    made = column >= 0
    column[made] = value[column[made]]
    if payload is not None:
        given = np.flatnonzero(~made & (~column < len(payload)))
        column[given] = ~payload[~column[given]]


def _first_alike(rows: np.ndarray) -> np.ndarray:
    """For each row the first one that is equal."""
    if not rows.size:
        return np.zeros(len(rows), np.int32)
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    whole = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).reshape(-1)
    keys = flat[:, 0] if flat.shape[1] == 1 else whole
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)].astype(np.int32)
