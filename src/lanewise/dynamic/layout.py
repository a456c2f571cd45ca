"""Where rows lie, and the index tables that say so to compiled code.

Rows of one type lie in one *arena*:

    payload (where an operand reads both payload and results) | carried rows | a region for each result of each piece

A region holds the rows of a piece, those of the first level first; all results of a call are at the same row of their
regions. In the head each level has the room that the envelope gives it; in the tail levels follow each other without
a gap. Operands are read by position in the arena.

Adjoints of operands lie in arenas of their own, which are written by users in the reverse direction:

    one row of zeros | adjoints of wanted rows | a region for each operand of each piece

The adjoint of a result is the sum of its users' rows there. Most have one user: `first` is its position, or that of
the zeros. The other users are *extra*: pairs of a position and the row it is added to, ordered by row.

All tables of one direction go to the device as one array of integers. A section of it is found by its name, at an
offset that depends on the envelope alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from lanewise.dynamic.envelope import MADE, PAYLOAD, TILES, Envelope
from lanewise.dynamic.table import Type

Name = tuple[object, ...]


@dataclass
class Sections:
    """Named parts of one array of integers."""

    parts: dict[Name, slice] = field(default_factory=dict)
    size: int = 0

    def add(self, name: Name, size: int) -> None:
        self.parts[name] = slice(self.size, self.size + size)
        self.size += size

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
    operand: tuple[tuple[int | None, ...], ...]  # where the region of an operand's adjoint begins
    adjoints: tuple[int, ...]  # rows of the arena of adjoints of each type
    forward: Sections
    reverse: Sections

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
    result, operand = [], []
    for p, piece in enumerate(pieces):
        bases: list[int | None] = []
        for type_ in piece.results:
            t = types.index(type_)
            bases.append(arena[t])
            arena[t] += rows[p]
        result.append(tuple(bases))
        bases = []
        for type_, flags in zip(piece.rows, envelope.fed[p], strict=True):
            t = types.index(type_)
            active = type_.differentiable and bool(flags & MADE)
            bases.append(adjoints[t] if active else None)
            adjoints[t] += rows[p] if active else 0
        operand.append(tuple(bases))

    forward, reverse = Sections(), Sections()
    for p, piece in enumerate(pieces):
        for k in range(len(piece.rows)):
            forward.add(("index", p, k), rows[p])
        for j, type_ in enumerate(piece.results):
            if type_.differentiable:
                reverse.add(("first", p, j), rows[p])
    for level, capacities in enumerate(envelope.extra):
        for p, capacity in enumerate(capacities):
            reverse.add(("extra", level, p, "from"), capacity)
            reverse.add(("extra", level, p, "to"), capacity)
    for t in range(len(types)):
        forward.add(("wanted", t), wanted[t])
        reverse.add(("carried", t), envelope.carried[t])
    for name in ("from", "to"):
        reverse.add(("carried extra", name), envelope.carried_extra)
        reverse.add(("tail extra", name), envelope.tail_extra)
    for sections in (forward, reverse):
        sections.add(("levels",), 1)
        sections.add(("start",), envelope.tail_levels * len(pieces))
        sections.add(("tiles",), envelope.tail_levels * len(pieces) * len(TILES))
    if any(piece.loops for piece in pieces):
        forward.add(("counts",), (len(envelope.head) + envelope.tail_levels) * len(pieces))
    reverse.add(("extra start",), envelope.tail_levels * len(pieces) + 1)
    for p in range(len(pieces)):
        reverse.add(("there", p), rows[p])
    return Layout(
        envelope,
        offset,
        rows,
        tuple(both),
        tuple(result),
        tuple(arena),
        tuple(operand),
        tuple(adjoints),
        forward,
        reverse,
    )
