"""Which calls run together: each call of a table gets a level.

The levels of a table are run one after the other, and in a level the pieces one after the other, each for all its
calls there. So an order is right if every operand is made at an earlier level, or at the same one by a piece of a
lower number; and it is good if few (level, piece) pairs have calls, as each is a launch.

* `depth` (Looks et al. 2017, TensorFlow Fold): the longest way from the inputs. Best for trees and for lists of one
  kind, and the levels of different tables look alike, so that one compilation serves them.
* `agenda` (Neubig et al. 2017, DyNet): of the pieces with calls that are ready, run the one whose calls that are left
  have the least average depth. Calls of one piece at different depths meet.
* `lookahead` (after Chen et al. 2023, ED-Batch): run a piece of which all calls are ready that no other call of the
  same piece has to precede. That is never wrong: nothing is gained by waiting. Where there is none, two rules are
  followed to the end, the largest such share and the agenda's. Of these, the agenda and depth, the fewest launches
  count: it takes three times as long as the agenda, and never has more launches.

Depth is found by peeling: a call is at level k if it loses its last operand that is not yet made in round k. The
rounds are a few NumPy calls on the edges that are left, which for trees soon are few. A table with thousands of thin
levels would need as many rounds; what is left after some of them is done by a plain loop over edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lanewise.core.errors import OptionError
from lanewise.dynamic.table import Table

# Rounds before the plain loop takes over: from then on a round costs more than the loop does for the same edges.
_ROUNDS = 24


class Edges(NamedTuple):
    """Which call reads what which call makes, once where several results of one call are read alike."""

    maker: np.ndarray
    reader: np.ndarray


def edges(table: Table) -> Edges:
    makers, readers = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for calls in table.calls_of:
        before = None
        for read in calls.operands.T:
            if not len(read):
                continue
            if read.min() < 0:
                made = read >= 0
                makers.append(table.caller[read[made]])
                readers.append(calls.number[made])
                continue
            maker = table.caller[read]
            # A pair of results (h, c) of one call is most often read together.
            if before is None or not np.array_equal(maker, before):
                makers.append(maker)
                readers.append(calls.number)
            before = maker
    return Edges(np.concatenate(makers), np.concatenate(readers))


def depth(table: Table) -> np.ndarray:
    """The level of each call: 0 for those that read inputs alone, else one more than the deepest of what it reads."""
    if table.level is not None:
        return np.asarray(table.level, np.int32)
    maker, reader = (e.astype(np.intp) for e in edges(table))
    level = np.zeros(len(table), np.int32)
    pending = np.zeros(len(table), bool)
    for _ in range(_ROUNDS):
        if not len(reader):
            return level
        pending[:] = False
        pending[reader] = True
        level += pending
        left = np.flatnonzero(pending.take(maker))
        maker, reader = maker.take(left), reader.take(left)
    _finish(level, maker, reader)
    return level


def _finish(level: np.ndarray, maker: np.ndarray, reader: np.ndarray) -> None:
    """The rest of `depth`, an edge at a time: in the order of readers, so that each maker is done."""
    found = level.tolist()
    order = np.argsort(reader, kind="stable")
    maker, reader = maker[order], reader[order]
    for a, b in zip(maker.tolist(), reader.tolist()):
        if found[a] >= found[b]:
            found[b] = found[a] + 1
    level[:] = found


def _by_steps(
    table: Table, choose: Callable[[np.ndarray, np.ndarray, np.ndarray], int], key: np.ndarray
) -> np.ndarray:
    """Levels made of steps; a step runs the ready calls of one piece, which `choose` picks.

    `choose(ready, done, key)` is given how many calls of each piece are ready, which calls are done, and a key of each.
    """
    maker, reader = edges(table)
    by_maker = np.argsort(maker, kind="stable")
    readers = reader[by_maker]
    begin = np.searchsorted(maker[by_maker], np.arange(len(table) + 1))
    waits = np.bincount(reader, minlength=len(table))
    num = len(table.pieces)
    ready: list[list[np.ndarray]] = [[] for _ in range(num)]
    for p, calls in enumerate(table.calls_of):
        ready[p].append(calls.number[waits[calls.number] == 0])
    done = np.zeros(len(table), bool)
    level = np.zeros(len(table), np.int32)
    now, last = 0, -1
    while True:
        counts = np.array([sum(map(len, r)) for r in ready])
        if not counts.any():
            return level
        p = choose(counts, done, key)
        if p <= last:
            now += 1
        last = p
        calls = np.concatenate(ready[p])
        ready[p] = []
        level[calls], done[calls] = now, True
        users = np.concatenate([readers[begin[c] : begin[c + 1]] for c in calls.tolist()])
        np.subtract.at(waits, users, 1)
        users = np.unique(users)
        users = users[waits[users] == 0]
        for q in np.unique(table.piece[users]).tolist():
            ready[q].append(users[table.piece[users] == q])


def agenda(table: Table) -> np.ndarray:
    """Levels by DyNet's agenda."""
    deep = depth(table).astype(np.float64)

    def choose(ready: np.ndarray, done: np.ndarray, key: np.ndarray) -> int:
        return int(np.argmin(_mean_depth(table, ready, done, key)))

    return _by_steps(table, choose, deep)


def _mean_depth(table: Table, ready: np.ndarray, done: np.ndarray, deep: np.ndarray) -> np.ndarray:
    """The mean depth of the calls that are left of each piece; infinite where none is ready."""
    left = ~done
    size = np.bincount(table.piece[left], minlength=len(ready))
    total = np.bincount(table.piece[left], weights=deep[left], minlength=len(ready))
    return np.where(ready > 0, total / np.maximum(size, 1), np.inf)


def lookahead(table: Table) -> np.ndarray:
    """Levels by the share of calls that are ready among those that need not wait for their own kind."""
    deep, own = depth(table).astype(np.float64), _own_depth(table)

    def shares(ready: np.ndarray, done: np.ndarray, key: np.ndarray) -> np.ndarray:
        share = np.zeros(len(ready))
        for p in np.flatnonzero(ready).tolist():
            left = key[(table.piece == p) & ~done]
            share[p] = ready[p] / np.count_nonzero(left == left.min())
        return share

    def by_share(ready: np.ndarray, done: np.ndarray, key: np.ndarray) -> int:
        mean = _mean_depth(table, ready, done, deep)
        return int(np.lexsort((mean, -shares(ready, done, key)))[0])

    def by_depth(ready: np.ndarray, done: np.ndarray, key: np.ndarray) -> int:
        mean = _mean_depth(table, ready, done, deep)
        whole = shares(ready, done, key) == 1
        return int(np.argmin(np.where(whole, mean, np.inf) if whole.any() else mean))

    found = [_by_steps(table, choose, own) for choose in (by_share, by_depth)]
    found += [agenda(table), depth(table)]
    return min(found, key=lambda level: launches(table, level))


def _own_depth(table: Table) -> np.ndarray:
    """How many calls of the same piece, one after the other, have to precede each call."""
    # passed[c] is, for each piece, the most calls of it on a way that ends at c, c included.
    passed = np.zeros((len(table), len(table.pieces)), np.int32)
    level = depth(table)
    maker, reader = edges(table)
    order = np.argsort(level[reader], kind="stable")
    maker, reader = maker[order], reader[order]
    ends = np.searchsorted(level[reader], np.arange(level.max(initial=0) + 2))
    by_level = np.argsort(level, kind="stable")
    starts = np.searchsorted(level[by_level], np.arange(level.max(initial=0) + 2))
    for k in range(len(starts) - 1):
        part = slice(ends[k], ends[k + 1])
        np.maximum.at(passed, reader[part], passed[maker[part]])
        calls = by_level[starts[k] : starts[k + 1]]
        passed[calls, table.piece[calls]] += 1
    return passed[np.arange(len(table)), table.piece] - 1


ORDERS: dict[str, Callable[[Table], np.ndarray]] = {
    "depth": depth,
    "agenda": agenda,
    "lookahead": lookahead,
}


def levels(table: Table, order: str = "depth") -> np.ndarray:
    """The level of each call, by one of the `ORDERS`."""
    return ORDERS[known_order(order)](table)


def known_order(order: str) -> str:
    """The order, if there is one of that name."""
    if order not in ORDERS:
        raise OptionError(f"order={order!r} is none of {', '.join(map(repr, ORDERS))}.")
    return order


def counts(table: Table, level: np.ndarray) -> np.ndarray:
    """How many calls of each piece (columns) there are at each level (rows)."""
    pieces = len(table.pieces)
    height = int(level.max(initial=-1)) + 1
    key = level.astype(np.int64) * pieces + table.piece
    return np.bincount(key, minlength=height * pieces).reshape(height, pieces)


def launches(table: Table, level: np.ndarray) -> int:
    """How many times a piece is run for all its calls of a level.

    >>> import jax.numpy as jnp
    >>> from lanewise.dynamic.table import Type, piece
    >>> f4 = Type((), np.dtype("f4"))
    >>> negate = piece(jnp.negative, rows=[np.float32(0)])
    >>> chains = Table((negate,), ((),), [0] * 4, [~0, ~0, 0, 1], {f4: np.float32([1])})
    >>> launches(chains, levels(chains))
    2
    """
    return int(np.count_nonzero(counts(table, level)))
