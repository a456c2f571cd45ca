"""The compiled passes over a table: what the host does for every minibatch, in C++ (`passes.cpp`).

NumPy (`pack.py`, `recorded.py`) does the same in a hundred array expressions of a few microseconds each, and in 0.1 µs
and more for each call of a large table; compiled code takes a fifth of that. It is compiled at first use, and cached
for later processes, as the kernels of `native` are. Where there is no C++ compiler NumPy does it, and says what is
right: the tests compare both.

Considered and not done: to make the tables inside the compiled function that runs them. XLA sorts and scatters slower
than a loop in C++ does, and the host has to know the sizes of levels first in any case.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lanewise.core.errors import CompilerError, OptionError
from lanewise.core.sources import source
from lanewise.cpp.toolchain import host
from lanewise.dynamic.envelope import TILES, Demand, Envelope
from lanewise.dynamic.layout import TABLE, Layout, layout
from lanewise.dynamic.pack import Packed, Survey, Wanted
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


_address: Any = ctypes.addressof
_first_byte: Any = ctypes.c_char.from_buffer


def _at(array: np.ndarray) -> int:
    """An array's address. NumPy's own ways to say it take two microseconds, as long as a pass over a small table."""
    try:
        return _address(_first_byte(array))
    except (TypeError, ValueError):  # it may not be written to, or is empty
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


class _Scratch(threading.local):
    """Memory that passes write and read again, for each thread its own: it stays in the processor's caches."""

    def __init__(self) -> None:
        self.words = np.empty(0, np.int32)

    def take(self, *sizes: int) -> list[int]:
        """Addresses of parts of this many integers each, each from an even one on."""
        starts = list(itertools.accumulate((size + size % 2 for size in sizes), initial=0))
        if starts[-1] > len(self.words):
            self.words = np.empty(starts[-1] + starts[-1] // 4 + 2, np.int32)
        base = _at(self.words)
        return [base + self.words.itemsize * start for start in starts]


_scratch = _Scratch()


class _Pieces(NamedTuple):
    struct: Struct
    types: tuple[Type, ...]
    operands: tuple[int, ...]  # where those of each piece begin, and where the last ones end
    most_results: int


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
        result_type=ints([types.index(t) for p in pieces for t in p.results]),
        differentiable=ints([t.differentiable for t in types]),
        pieces=len(pieces),
        types=len(types),
    )
    operands = tuple(itertools.accumulate(arity, initial=0))
    return _Pieces(struct, types, operands, max(results, default=0))


def pieces_of(pieces: tuple[Piece, ...]) -> int:
    """The address of the structure that describes pieces."""
    return _pieces(pieces).struct.pointer


def _starts(sizes: Sequence[int]) -> np.ndarray:
    return ints(np.cumsum([0, *sizes])[:-1])


class _Own(NamedTuple):
    """A table as the passes take it; its calls and extra users by level and piece, with room for more levels."""

    struct: Struct
    counts: np.ndarray
    gradient: bool


# Passes write two results of each call, however many it has; those of the next one follow.
_SPARE = 2
# Counts that there is room for at first: of most tables.
_COUNTS = 2048


def survey(table: Table, level: np.ndarray | None, wanted: Wanted, gradient: bool) -> Survey:
    """What the table asks of an envelope; levels are by depth where none are given."""
    pieces, calls = _pieces(table.pieces), len(table.piece)
    types = pieces.types
    payload = [len(table.payload.get(t, ())) for t in types]
    carried = [int(table.carried.get(t, 0)) for t in types] if table.carried else [0] * len(types)
    wants = [ints(v) for v in wanted or ()]
    sizes = [len(v) for v in wants] or [0] * len(types)
    *before, all_carried = itertools.accumulate(carried, initial=0)
    of_types = np.array([payload, carried, sizes, before], np.int32)
    struct = Struct(
        piece=table.piece,
        operands=table.operands,
        wanted=_joined(wants),
        payload=of_types[0],
        carried=of_types[1],
        num_wanted=of_types[2],
        carried_from=of_types[3],
        calls=calls,
        all_carried=all_carried,
    )
    known = level is not None
    own = ints(level) if level is not None else np.empty(calls, np.int32)
    (values, _) = _scratch.take(2 * (calls * pieces.most_results + all_carried + _SPARE))
    num = len(table.pieces)
    room = max(_COUNTS // max(num, 1), 16)
    while True:
        counts = np.zeros((2, room, num), np.int64)
        fed = np.zeros(pieces.operands[-1] + 1, np.int32)
        carried_extra = fed[pieces.operands[-1] :]
        given = struct, own, int(known), int(gradient), values, room, counts, fed, carried_extra
        height = call("lw_survey", pieces.struct, *given)
        if height <= room:
            break
        known, room = True, height
    flags = fed.tolist()
    need = Demand(
        counts[0, :height],
        tuple(tuple(flags[a:b]) for a, b in itertools.pairwise(pieces.operands)),
        tuple(payload),
        tuple(carried),
        None if wanted is None else tuple(sizes),
        counts[1, :height],
        flags[-1],
    )
    return Survey(own, need, _Own(struct, counts, gradient))


def _joined(wants: Sequence[np.ndarray]) -> np.ndarray:
    some = [v for v in wants if len(v)]
    return some[0] if len(some) == 1 else np.concatenate(some) if some else np.zeros(1, np.int32)


@functools.lru_cache(maxsize=256)
def _layout(envelope: Envelope) -> Struct:
    """Where things are. A result without an adjoint has no place for one, and neither has such an operand."""
    lay, types = layout(envelope), envelope.types
    operands = [(p, k) for p, piece in enumerate(envelope.pieces) for k in range(len(piece.rows))]
    forward, reverse, active = lay.forward, lay.reverse, [t.differentiable for t in types]
    head = [(n, p) for n in range(len(envelope.head)) for p in range(len(envelope.pieces))]
    extra = [[reverse["extra", n, p, name].start for n, p in head] for name in ("from", "to")]
    firsts = [reverse["first", t] for t, flag in enumerate(active) if flag]
    counts = forward.parts.get(("counts",))
    return Struct(
        index_at=ints([forward["index", p, k].start for p, k in operands]),
        adjoint_at=ints([-1 if (b := lay.operand[p][k]) is None else b for p, k in operands]),
        adjoint_step=ints([n for steps in lay.step for n in steps]),
        result_base=ints([base for bases in lay.result for base in bases] + [0] * _SPARE),
        rows=ints(lay.rows),
        there_at=ints([reverse["there", p].start for p in range(len(envelope.pieces))]),
        first_at=ints([reverse["first", t].start if flag else -1 for t, flag in enumerate(active)]),
        joined=ints([n if flag else 0 for n, flag in zip(envelope.payload, lay.joined)]),
        wanted_at=ints([forward["wanted", t].start for t in range(len(types))]),
        arena_from=_starts(lay.arena),
        carried_from=_starts(envelope.carried),
        capacity=ints([c for level in envelope.head for c in level]),
        offset=ints(lay.offset),
        extra_from=ints(extra[0]),
        extra_to=ints(extra[1]),
        extra_capacity=ints([c for level in envelope.extra for c in level]),
        head=len(envelope.head),
        indices=sum(
            forward["index", p, k].stop - forward["index", p, k].start for p, k in operands
        ),
        forward=forward.size,
        size=reverse.size,
        first_begin=firsts[0].start if firsts else reverse.size,
        first_end=firsts[-1].stop if firsts else reverse.size,
        carried_extra_from=reverse["carried extra", "from"].start,
        carried_extra_to=reverse["carried extra", "to"].start,
        carried_extra=envelope.carried_extra,
        tail_extra_from=reverse["tail extra", "from"].start,
        tail_extra_to=reverse["tail extra", "to"].start,
        tail_extra=envelope.tail_extra,
        extra_start=reverse["extra start",].start,
        extra_starts=reverse["extra start",].stop - reverse["extra start",].start,
        levels_at=ints([way["levels",].start for way in (forward, reverse)]),
        start_at=ints([way["start",].start for way in (forward, reverse)]),
        tiles_at=ints([way["tiles",].start for way in (forward, reverse)]),
        widths=ints(TILES),
        num_widths=len(TILES),
        counts_at=-1 if counts is None else counts.start,
        tail_counts=0 if counts is None else counts.start + len(head),
    )


def packed(table: Table, wanted: Wanted, found: Survey, lay: Layout) -> Packed:
    """The index tables of both directions."""
    pieces, own, need = _pieces(table.pieces), found.own, found.need
    static, split = _layout(lay.envelope), lay.envelope.split(need)
    out = np.empty(lay.size(own.gradient), TABLE)
    extras = int(need.extra.sum()) + need.carried_extra if own.gradient else 0
    position = np.empty(table.num_values + _SPARE, np.int32) if wanted is None else None
    pairs = need.counts.size
    sizes = 2 * pairs, pairs, len(table) * pieces.most_results + _SPARE
    arenas = sum(lay.arena) if extras else 0
    *places, _ = _scratch.take(*sizes, arenas, 2 * (extras + 1))
    if position is not None:
        places[2] = _at(position)
    call(
        *("lw_packed", pieces.struct, own.struct, static, found.level, need.counts, need.extra),
        *(extras, len(need.counts), split, int(own.gradient)),
        *(np.array(places, np.int64), out),
    )
    return Packed(out, None if position is None else position[:-_SPARE])
