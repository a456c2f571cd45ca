"""The capacities that one compilation serves.

XLA compiles for shapes, and every minibatch of trees has other level sizes. So what is compiled is an *envelope*: a
capacity for each (level, piece), for the payload of each type, for the rows that are wanted. The number of rows in
use is data, and the rows beyond compute something that nothing reads. Capacities come in steps (of a sixteenth on a
CPU), of 16 rows at least, with room for as much as levels vary by, so that minibatches of one kind of data need few
envelopes.

The first levels (the *head*) are unrolled: each (level, piece) is a launch of a fixed size, without a loop around.
The rest (the *tail*) is run by a compiled loop over its levels, each in tiles of 256, 64 and 16 rows: only the total
of its rows has a capacity. The tail is for chains, for a rare deep tree, for the thin levels at the top of trees (on a
CPU, where it is as fast), and for tables of which no two look alike.
From the first level that does not fit into the head on, a table's levels are run by the tail.

An envelope that a table does not fit is grown, so that it serves what it served before and this table too. After a
few times only the tail grows. A table that would fill less than a third of an envelope gets one of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lanewise.core.profile import CPU, Profile
from lanewise.dynamic.table import Piece, Table, Type

TILES = (256, 64, 16)
LEAST = 16
# Capacities from one power of two to the next, of all but levels, for which the platform's profile says it.
COARSE = 2
# More levels than this are not unrolled; then those are that fill the largest tile, up to a number.
UNROLLED = 32
UNROLLED_OF_DEEP = 12
# As many levels as this are compiled as soon as the loop is.
LEVELS_OF_A_LOOP = 4
# With more kinds of pieces than this, or after many growths, only levels of as many times the rows are unrolled.
FEW_KINDS = 2
MANY_TIMES = 4
# Levels added at the top of a head that was not deep enough.
SPARE = 2
# How often the head grows.
GROWTHS = 6
# Rows computed for each row asked for, at most, where another envelope would do with fewer; small tables may take more.
WASTE = 3
SMALL = 1024


def bucket(count: int, steps: int) -> int:
    """The capacity for this many rows: `steps` of them from one power of two to the next, of 16 rows at least.

    >>> [bucket(n, 16) for n in (0, 1, 16, 17, 100, 1000, 1025)]
    [0, 16, 16, 32, 112, 1024, 1088]
    """
    step = max(LEAST, (1 << max(count - 1, 0).bit_length()) // (2 * steps))
    return -(-count // step) * step


# What the rows of an operand are: only payload, only results (or carried rows), both.
PAYLOAD, MADE = 1, 2


@dataclass(frozen=True)
class Demand:
    """What a table asks of an envelope. `extra[l, p]` counts users beyond the first one of results made there."""

    counts: np.ndarray
    fed: tuple[tuple[int, ...], ...]
    payload: tuple[int, ...]
    carried: tuple[int, ...]
    wanted: tuple[int, ...] | None
    extra: np.ndarray
    carried_extra: int


@dataclass(frozen=True)
class Envelope:
    """Capacities. `head[l][p]` for the unrolled levels, `tail[p]` for all the rest.

    `wanted` is None where all results are answers. `fed[p][k]` says what the rows of an operand are. `extra[l][p]` is
    for users beyond the first one of the results of (l, p), with `tail_extra` and `carried_extra` for the rest.
    """

    pieces: tuple[Piece, ...]
    shared: tuple[tuple[int, ...], ...]
    types: tuple[Type, ...]
    head: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]
    tail_levels: int
    payload: tuple[int, ...]
    carried: tuple[int, ...]
    wanted: tuple[int, ...] | None
    fed: tuple[tuple[int, ...], ...]
    extra: tuple[tuple[int, ...], ...]
    tail_extra: int
    carried_extra: int
    growths: int = 0

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Each call of compiled code looks for it by this.
        return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self)))

    @functools.cached_property
    def _head(self) -> np.ndarray:
        return self._of_levels(self.head)

    @functools.cached_property
    def _extra(self) -> np.ndarray:
        return self._of_levels(self.extra)

    def _of_levels(self, capacities: tuple[tuple[int, ...], ...]) -> np.ndarray:
        return np.array(capacities, np.int64).reshape(len(self.head), len(self.pieces))

    @functools.cached_property
    def rows(self) -> int:
        return sum(map(sum, self.head)) + sum(self.tail)

    def split(self, demand: Demand) -> int:
        """The first level of a table that the tail runs."""
        height = min(len(self.head), len(demand.counts))
        beyond = demand.counts[:height] > self._head[:height]
        beyond |= demand.extra[:height] > self._extra[:height]
        return int(beyond.any(1).argmax()) if np.count_nonzero(beyond) else height

    def fits(self, demand: Demand) -> bool:
        return (
            demand.carried_extra <= self.carried_extra
            and (demand.wanted is None) == (self.wanted is None)
            and _within(demand.wanted or (), self.wanted or ())
            and _within(demand.payload, self.payload)
            and _within(demand.carried, self.carried)
            and (demand.fed == self.fed or all(map(_among, demand.fed, self.fed)))
            and self._fits_tail(demand, self.split(demand))
        )

    def _fits_tail(self, demand: Demand, at: int) -> bool:
        """Whether the levels from this one on do."""
        rest = demand.counts[at:]
        return not len(rest) or (
            len(rest) <= self.tail_levels
            and _within((rest.sum(0) + LEAST * rest.any(0)).tolist(), self.tail)
            and int(demand.extra[at:].sum()) <= self.tail_extra
        )

    def wasteful(self, demand: Demand) -> bool:
        """Whether a table would leave most of it empty."""
        return self.rows > SMALL and self.rows > WASTE * int(demand.counts.sum())


def _within(need: Sequence[int], have: Sequence[int]) -> bool:
    return all(map(operator.le, need, have))


def _among(flags: Sequence[int], known: Sequence[int]) -> bool:
    return all(a | b == b for a, b in zip(flags, known, strict=True))


def _buckets(need: Sequence[int] | np.ndarray, have: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(_coarse(int(a)), b) for a, b in zip(need, have, strict=True))


def _coarse(need: int) -> int:
    return bucket(need + math.isqrt(need), COARSE)


def empty(pieces: tuple[Piece, ...], shared: tuple[tuple[int, ...], ...], whole: bool) -> Envelope:
    """The envelope of no rows."""
    types = tuple(dict.fromkeys(t for p in pieces for t in (*p.rows, *p.results)))
    none = (0,) * len(types)
    return Envelope(
        pieces=pieces,
        shared=shared,
        types=types,
        head=(),
        tail=(0,) * len(pieces),
        tail_levels=0,
        payload=none,
        carried=none,
        wanted=None if whole else none,
        fed=tuple((0,) * len(p.rows) for p in pieces),
        extra=(),
        tail_extra=0,
        carried_extra=0,
    )


def _unrolled(old: Envelope, counts: np.ndarray, most: int, thin: int) -> int:
    """How many levels of a table are for the head."""
    if old.growths >= GROWTHS:
        return 0
    rows = counts.sum(1)
    if len(rows) > most:
        wide = rows > TILES[0]
        return min(most, UNROLLED_OF_DEEP, int(np.argmin(wide)) if not wide.all() else len(rows))
    # Which of many kinds are at which level varies more than their totals do.
    if counts.shape[1] > FEW_KINDS or old.growths > GROWTHS // 2:
        thin *= MANY_TIMES
    last = int(np.flatnonzero(rows >= thin).max(initial=-1)) + 1
    return last if len(rows) - last > LEVELS_OF_A_LOOP else len(rows)


def grown(old: Envelope, demand: Demand, most: int = UNROLLED, profile: Profile = CPU) -> Envelope:
    """An envelope that serves this table too; more than `most` levels are not unrolled."""
    counts = demand.counts
    height = len(counts)
    unrolled = _unrolled(old, counts, most, profile.thin_level)
    sigmas = 1 + min(old.growths, 1)
    head, extra = list(old.head), list(old.extra)
    none = (0,) * len(old.pieces)
    for k in range(unrolled):
        if k == len(head):
            head.append(none)
            extra.append(none)
        # Sizes of levels vary between minibatches like sums of many small numbers do: by about their square root.
        # Those that did not fit once vary by more.
        head[k] = tuple(
            max(have, bucket(need + sigmas * math.isqrt(need), profile.level_steps))
            for need, have in zip(counts[k].tolist(), head[k], strict=True)
        )
        extra[k] = _buckets(demand.extra[k], extra[k])
    if old.growths and unrolled == height and len(old.head) < height:
        # It was not deep enough, and the next ones may be deeper: thin levels cost little.
        head += [tuple(min(c, LEAST) for c in head[-1])] * SPARE
        extra += [tuple(min(c, LEAST) for c in extra[-1])] * SPARE
    new = dataclasses.replace(
        old,
        head=tuple(head),
        extra=tuple(extra),
        payload=_buckets(demand.payload, old.payload),
        # As long as `Recorder.rows` makes them: rows of another number are padded one call at a time.
        carried=tuple(
            max(bucket(a, COARSE), b) for a, b in zip(demand.carried, old.carried, strict=True)
        ),
        wanted=None if demand.wanted is None else _buckets(demand.wanted, old.wanted or ()),
        fed=_fed(old, demand),
        carried_extra=max(_coarse(demand.carried_extra), old.carried_extra),
        growths=old.growths + 1,
    )
    at = new.split(demand)
    rest = counts[at:]
    if not len(rest):
        return new
    rows = rest.sum(0)
    return dataclasses.replace(
        new,
        # With room for a quarter more: which levels the tail runs varies with the first one that does not fit.
        tail=_buckets(rows + rows // 4 + LEAST * rest.any(0), new.tail),
        tail_levels=max(new.tail_levels, 1 << (len(rest) - 1).bit_length(), 64),
        tail_extra=max(_coarse(int(demand.extra[at:].sum())), new.tail_extra),
    )


def _fed(old: Envelope, demand: Demand) -> tuple[tuple[int, ...], ...]:
    """What the rows of operands are. Where an arena holds payload already, a result's reader may read that too."""
    fed = [[a | b for a, b in zip(x, y)] for x, y in zip(demand.fed, old.fed, strict=True)]
    both = PAYLOAD | MADE
    joined = {
        type_
        for piece, flags in zip(old.pieces, fed, strict=True)
        for type_, flag in zip(piece.rows, flags, strict=True)
        if flag == both
    }
    return tuple(
        tuple(
            both if flag & MADE and type_ in joined else flag
            for type_, flag in zip(piece.rows, flags, strict=True)
        )
        for piece, flags in zip(old.pieces, fed, strict=True)
    )


class Store:
    """The envelopes in use, by pieces and the arrays they share."""

    def __init__(self, unrolled: int = UNROLLED) -> None:
        self.unrolled = unrolled
        self.envelopes: dict[tuple[object, ...], list[Envelope]] = {}
        self.made = 0
        # Tables may be prepared by several threads (`lw.ahead`).
        self._lock = threading.Lock()

    def envelope(self, table: Table, demand: Demand, profile: Profile = CPU) -> Envelope:
        """The smallest envelope that the table fits, or one that is made or grown for it."""
        with self._lock:
            return self._envelope(table, demand, profile)

    def _envelope(self, table: Table, demand: Demand, profile: Profile) -> Envelope:
        whole = demand.wanted is None
        known = self.envelopes.setdefault((table.pieces, table.shared, whole), [])
        serving = [e for e in known if not e.wasteful(demand)]
        fitting = [e for e in serving if e.fits(demand)]
        if fitting:
            return min(fitting, key=lambda e: e.rows)
        old = max(serving, key=lambda e: e.rows, default=None)
        new = grown(
            old or empty(table.pieces, table.shared, whole),
            demand,
            self.unrolled,
            profile,
        )
        if old is not None:
            known.remove(old)
        known.append(new)
        self.made += 1
        return new
