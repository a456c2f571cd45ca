"""Where rows are stored, and the index tables that say so to compiled code.

Rows of one type are stored in one *arena*:

    payload (where an operand reads both payload and results) | carried rows | a region for each result of each piece

A region holds the rows of a piece, those of the first level first; all results of a call are at the same row of their
regions. In the head each level has the room that the envelope gives it; in the tail levels follow each other without
a gap. Operands are read by position in the arena.

Adjoints of operands are in arenas of their own, which are written by users in the reverse direction:

    one row of zeros | adjoints of wanted rows | a region for the operands of each piece

A row of such a region has a slot for each of a call's operands of the type, so that a level writes one contiguous part.

The adjoint of a result is the sum of its users' rows there. Most have one user: `first` is its position, or that of
the zeros, by row of the arena. The other users are *extra*: pairs of a position and the row it is added to, ordered by
row.

All tables, and payload of numbers of their size, go to the device as one array of integers: each array costs a
transfer, and time in each call of compiled code. A section of it is found by its name, at an offset that depends on the
envelope alone. Those of the reverse direction come last, and are there only where there is a gradient.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from lanewise.dynamic.envelope import MADE, PAYLOAD, TILES, Envelope
from lanewise.dynamic.table import Type

Name = tuple[object, ...]

# The type of all tables.
TABLE = np.dtype(np.int32)


@dataclass
class Sections:
    """Named parts of one array of integers."""

    parts: dict[Name, slice] = field(default_factory=dict)
    size: int = 0

    def add(self, name: Name, size: int) -> int:
        """A section after all others; gives where it begins."""
        begin = self.size
        self.parts[name] = slice(begin, begin + size)
        self.size += size
        return begin

    def within(self, name: Name, begin: int, size: int) -> None:
        """Rows of a section that have a name of their own."""
        self.parts[name] = slice(begin, begin + size)

    def __getitem__(self, name: Name) -> slice:
        return self.parts[name]


@dataclass(frozen=True)
class Layout:
    """Static positions of an envelope."""

    envelope: Envelope
    # The row, in the regions of piece p, at which level l of the head begins: offset[l, p]; the tail's is the last one.
    offset: np.ndarray
    rows: tuple[int, ...]  # of a region
    joined: tuple[bool, ...]  # whether a type's arena begins with payload
    result: tuple[
        tuple[int, ...], ...
    ]  # where the region of a result begins, in the arena of its type
    arena: tuple[int, ...]  # rows of the arena of each type
    operand: tuple[tuple[int | None, ...], ...]  # where the first adjoint of an operand is
    step: tuple[tuple[int, ...], ...]  # and how far from row to row
    adjoints: tuple[int, ...]  # rows of the arena of adjoints of each type
    forward: Sections
    reverse: Sections  # which begins where the other one ends

    def size(self, gradient: bool) -> int:
        """How many integers there are."""
        return self.reverse.size if gradient else self.forward.size

    def active(self, p: int, k: int) -> bool:
        """Whether operand k of piece p has an adjoint."""
        return self.operand[p][k] is not None

    def number(self, type_: Type) -> int:
        return self.envelope.types.index(type_)


@functools.lru_cache(maxsize=256)
def layout(envelope: Envelope) -> Layout:
    pieces, types = envelope.pieces, envelope.types
    heads = np.array(envelope.head, np.int64).reshape(len(envelope.head), len(pieces))
    offset = np.concatenate([np.zeros((1, len(pieces)), np.int64), np.cumsum(heads, 0)])
    rows = tuple(int(n) + t for n, t in zip(offset[-1], envelope.tail, strict=True))

    both = [False] * len(types)
    for piece, fed in zip(pieces, envelope.fed, strict=True):
        for type_, flags in zip(piece.rows, fed, strict=True):
            both[types.index(type_)] |= flags == PAYLOAD | MADE
    arena = [
        carried + (payload if joined else 0)
        for joined, payload, carried in zip(both, envelope.payload, envelope.carried, strict=True)
    ]
    wanted = envelope.wanted or (0,) * len(types)
    adjoints = [1 + n if t.differentiable else 0 for n, t in zip(wanted, types, strict=True)]
    result, operand, step = [], [], []
    for p, piece in enumerate(pieces):
        bases: list[int | None] = []
        for type_ in piece.results:
            t = types.index(type_)
            bases.append(arena[t])
            arena[t] += rows[p]
        result.append(tuple(bases))
        active = [
            types.index(type_) if type_.differentiable and flags & MADE else -1
            for type_, flags in zip(piece.rows, envelope.fed[p], strict=True)
        ]
        bases, steps = [], [active.count(t) for t in active]
        for k, t in enumerate(active):
            bases.append(adjoints[t] + active[:k].count(t) if t >= 0 else None)
        for t in {*active} - {-1}:
            adjoints[t] += active.count(t) * rows[p]
        operand.append(tuple(bases))
        step.append(tuple(steps))

    forward = _forward(envelope, rows, wanted)
    reverse = Sections(size=forward.size)
    for t, (type_, size) in enumerate(zip(types, arena, strict=True)):
        if type_.differentiable:
            begin = reverse.add(("first", t), size)
            carried = begin + (envelope.payload[t] if both[t] else 0)
            reverse.within(("carried", t), carried, envelope.carried[t])
            for p, piece in enumerate(pieces):
                for j, base in enumerate(result[p]):
                    if piece.results[j] == type_:
                        reverse.within(("first", p, j), begin + base, rows[p])
    _reverse(reverse, envelope, rows)
    return Layout(
        envelope,
        offset,
        rows,
        tuple(both),
        tuple(result),
        tuple(arena),
        tuple(operand),
        tuple(step),
        tuple(adjoints),
        forward,
        reverse,
    )


def in_tables(type_: Type) -> bool:
    """Whether payload of this type goes with the index tables."""
    return np.dtype(type_.dtype).itemsize == TABLE.itemsize and type_.dtype.kind in "iuf"


def _forward(envelope: Envelope, rows: tuple[int, ...], wanted: tuple[int, ...]) -> Sections:
    found = Sections()
    for p, piece in enumerate(envelope.pieces):
        for k in range(len(piece.rows)):
            found.add(("index", p, k), rows[p])
    for t, type_ in enumerate(envelope.types):
        found.add(("wanted", t), wanted[t])
        if in_tables(type_):
            found.add(("payload", t), envelope.payload[t] * math.prod(type_.shape))
    _tail(found, envelope)
    if any(piece.loops for piece in envelope.pieces):
        levels = len(envelope.head) + envelope.tail_levels
        found.add(("counts",), levels * len(envelope.pieces))
    return found


def _reverse(found: Sections, envelope: Envelope, rows: tuple[int, ...]) -> None:
    """All but the first users."""
    for level, capacities in enumerate(envelope.extra):
        for p, capacity in enumerate(capacities):
            found.add(("extra", level, p, "from"), capacity)
            found.add(("extra", level, p, "to"), capacity)
    for name in ("from", "to"):
        found.add(("carried extra", name), envelope.carried_extra)
        found.add(("tail extra", name), envelope.tail_extra)
    _tail(found, envelope)
    found.add(("extra start",), envelope.tail_levels * len(envelope.pieces) + 1)
    for p in range(len(envelope.pieces)):
        found.add(("there", p), rows[p])


def _tail(found: Sections, envelope: Envelope) -> None:
    pairs = envelope.tail_levels * len(envelope.pieces)
    found.add(("levels",), 1)
    found.add(("start",), pairs)
    found.add(("tiles",), pairs * len(TILES))
