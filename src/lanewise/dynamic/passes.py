"""The compiled passes over a table: what the host does for every minibatch, in C++ (`passes.cpp`).

NumPy (`pack.py`, `recorded.py`) does the same in a hundred array expressions of a few microseconds each, and in 0.1 µs
and more for each call of a large table; compiled code takes a fifth of that. It is compiled at first use, and kept for
later processes, as the kernels of `native` are. Where there is no C++ compiler NumPy does it, and says what is right:
the tests compare both.

Considered and not done: to make the tables inside the compiled function that runs them. XLA sorts and scatters slower
than a loop in C++ does, and the host has to know the sizes of levels first in any case.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lanewise.core.errors import CompilerError, OptionError
from lanewise.core.sources import source
from lanewise.cpp.toolchain import host
from lanewise.dynamic.envelope import Demand, Envelope
from lanewise.dynamic.layout import Layout, layout
from lanewise.dynamic.pack import (
    Packed,
    Places,
    Survey,
    Wanted,
    begins,
    pack_extra,
    pack_tail,
)
from lanewise.dynamic.table import Piece, Table, Type


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled passes; None where nothing here compiles them."""
    try:
        return host.load(source("dynamic/passes.cpp"))
    except (CompilerError, OptionError, OSError):
        return None


def ints(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Integers as the passes take them."""
    return np.ascontiguousarray(values, np.int32).reshape(-1)


def _at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class Struct:
    """Arrays and numbers as a C++ structure of pointers and `int64`; keeps the arrays alive."""

    def __init__(self, **fields: np.ndarray | int) -> None:
        self.fields = fields
        words = [x if isinstance(x, int) else _at(x) for x in fields.values()]
        self.words = np.array(words, np.int64)
        self.pointer = _at(self.words)


@functools.cache
def _function(name: str, arguments: int) -> Any:
    function = getattr(library(), name)
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * arguments
    return function


def call(name: str, *arguments: Struct | np.ndarray | int | None) -> int:
    """Call a compiled pass. Arrays are passed by address, integers as `int64`."""
    given = [
        a.pointer if isinstance(a, Struct) else _at(a) if isinstance(a, np.ndarray) else a or 0
        for a in arguments
    ]
    return _function(name, len(given))(*given)


class _Pieces(NamedTuple):
    struct: Struct
    types: tuple[Type, ...]
    operands: int
    results: np.ndarray


@functools.lru_cache(maxsize=256)
def _pieces(pieces: tuple[Piece, ...]) -> _Pieces:
    types = tuple(dict.fromkeys(t for p in pieces for t in (*p.rows, *p.results)))
    arity, results = ([len(getattr(p, name)) for p in pieces] for name in ("rows", "results"))
    struct = Struct(
        arity=ints(arity),
        results=ints(results),
        operand_at=_starts(arity),
        result_at=_starts(results),
        operand_type=ints([types.index(t) for p in pieces for t in p.rows]),
        differentiable=ints([t.differentiable for t in types]),
        pieces=len(pieces),
        types=len(types),
    )
    return _Pieces(struct, types, sum(arity), ints(results))


def _starts(sizes: Sequence[int]) -> np.ndarray:
    return ints(np.cumsum([0, *sizes])[:-1])


class _Numbered(NamedTuple):
    """A table as the passes take it, and, for a gradient, the edge that reads each value last."""

    struct: Struct
    last: np.ndarray | None


def survey(table: Table, level: np.ndarray | None, wanted: Wanted, gradient: bool) -> Survey:
    """What the table asks of an envelope; levels are by depth where none are given."""
    pieces = _pieces(table.pieces)
    calls, num = len(table), len(table.pieces)
    first_operand, first_value, by_piece = (np.empty(calls + 1, np.int32) for _ in range(3))
    piece_start = np.empty(num + 1, np.int32)
    known = level is not None
    own = ints(level) if level is not None else np.empty(calls, np.int32)
    values = int(pieces.results.take(table.piece).sum()) if calls else 0
    of_value = np.empty(0 if known else 1 + values, np.int32)
    numbered = (first_operand, first_value, own, int(known), of_value, by_piece, piece_start)
    height = call("lw_numbered", pieces.struct, calls, table.piece, table.operands, *numbered)

    payload = [len(table.payload.get(t, ())) for t in pieces.types]
    carried = [int(table.carried.get(t, 0)) for t in pieces.types]
    carried_from = np.cumsum([values, *carried])
    wants = [ints(v) for v in wanted or ()]
    struct = Struct(
        piece=table.piece,
        operands=table.operands,
        level=own,
        first_operand=first_operand,
        first_value=first_value,
        calls=calls,
        values=values,
        by_piece=by_piece,
        piece_start=piece_start,
        payload=ints(payload),
        carried=ints(carried),
        carried_from=ints(carried_from[:-1]),
        wanted=np.concatenate(wants) if wants else ints(()),
        num_wanted=ints([len(v) for v in wants] or [0] * len(pieces.types)),
    )
    counts = np.zeros((height, num), np.int64)
    fed = np.empty(pieces.operands, np.int32)
    last = np.full(int(carried_from[-1]), -1, np.int32) if gradient else None
    extra = np.empty(call("lw_survey", pieces.struct, struct, counts, fed, last), np.int32)
    of_calls, carried_extra = np.zeros_like(counts), 0
    if len(extra):
        call("lw_extra", pieces.struct, struct, last, extra)
        made = extra[extra < values]
        maker = table.caller[made]
        np.add.at(of_calls, (own[maker], table.piece[maker]), 1)
        carried_extra = len(extra) - len(made)
    turn = iter(fed.tolist())
    need = Demand(
        counts,
        tuple(tuple(next(turn) for _ in piece.rows) for piece in table.pieces),
        tuple(payload),
        tuple(carried),
        None if wanted is None else tuple(map(len, wants)),
        of_calls,
        carried_extra,
    )
    return Survey(own, need, extra, _Numbered(struct, last))


@functools.lru_cache(maxsize=256)
def _layout(envelope: Envelope) -> Struct:
    """Where things lie. A result without an adjoint has no place for one, and neither has such an operand."""
    lay, types = layout(envelope), envelope.types
    operands = [(p, k) for p, piece in enumerate(envelope.pieces) for k in range(len(piece.rows))]
    results = [
        (p, j, t) for p, piece in enumerate(envelope.pieces) for j, t in enumerate(piece.results)
    ]
    return Struct(
        index_at=ints([lay.forward["index", p, k].start for p, k in operands]),
        fed=ints([envelope.fed[p][k] for p, k in operands]),
        adjoint_at=ints([lay.operand[p][k] or 0 for p, k in operands]),
        result_base=ints([lay.result[p][j] for p, j, _ in results]),
        first_at=ints(
            [lay.reverse["first", p, j].start if t.differentiable else -1 for p, j, t in results]
        ),
        rows=ints(lay.rows),
        there_at=ints([lay.reverse["there", p].start for p in range(len(envelope.pieces))]),
        joined=ints([n if flag else 0 for n, flag in zip(envelope.payload, lay.joined)]),
        wanted_at=ints([lay.forward["wanted", t].start for t in range(len(types))]),
        carried_at=ints([lay.reverse["carried", t].start for t in range(len(types))]),
    )


def packed(table: Table, found: Survey, lay: Layout) -> Packed:
    """The index tables of both directions."""
    pieces, numbered, need = _pieces(table.pieces), found.numbered, found.need
    split, begin = begins(need, lay)
    row = np.empty(len(table), np.int32)
    position = np.empty(int(numbered.struct.fields["values"]), np.int32)
    forward = np.zeros(lay.forward.size, np.int32)
    static = _layout(lay.envelope)
    call(
        *("lw_forward", pieces.struct, numbered.struct, static),
        *(ints(begin), row, position, forward),
    )
    pack_tail(forward, lay.forward, need, split, begin)
    if numbered.last is None:
        return Packed(forward, None, position)
    reverse = np.zeros(lay.reverse.size, np.int32)
    source = np.empty(len(found.extra), np.int32)
    at = np.empty(len(table.operands) + sum(need.wanted or ()), np.int32)
    call(
        *("lw_reverse", pieces.struct, numbered.struct, static),
        *(row, numbered.last, len(source), at, source, reverse),
    )
    if len(source):
        pack_extra(reverse, table, found, source, lay, Places(split, begin, row, position))
    pack_tail(reverse, lay.reverse, need, split, begin)
    return Packed(forward, reverse, position)
