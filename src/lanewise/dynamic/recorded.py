"""What the slice recorded, as a table.

The records of all lanes are the calls of a table, those that read no rows before all others, so that calls of one piece
follow one another; and their rows hold all that it says. What is left is to number things. Values are numbered through
all lanes. Payload of one type is one array, to which each operand of each piece that reads such contributes a column.
What lanes were given as operands are carried rows, so gradients go through.

Compiled code reads the records (`passes.py`); where there is no compiler, a few NumPy expressions for each piece
and operand do (`_in_numpy`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lanewise.dynamic import passes
from lanewise.dynamic.balanced import balanced
from lanewise.dynamic.pieces import Kind
from lanewise.dynamic.rows import HEAD
from lanewise.dynamic.slice import Sliced
from lanewise.dynamic.table import Calls, Table, Type, flat_operands
from lanewise.dynamic.words import from_words, words_in


@dataclass(frozen=True)
class Recorded:
    """A table, and the values that answers are, for each type of the table.

    `begins` has for an answer the number of its type, and where among the wanted rows its own begin. `alone`: what
    calls read that read one integer and nothing else, by piece.
    """

    table: Table
    wanted: tuple[np.ndarray, ...]
    begins: Mapping[int, tuple[int, int]]
    alone: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class Given:
    """Operands of the program that are rows: which, of which type, and whether each lane has its own."""

    number: int
    type: Type
    varies: bool


@dataclass(frozen=True)
class _Records:
    """The records of all lanes: `top` calls of each, in room for more."""

    sliced: Sliced
    top: np.ndarray
    tape: np.ndarray

    @property
    def lanes(self) -> int:
        return len(self.top)

    @functools.cached_property
    def start(self) -> np.ndarray:
        """The first call of each lane."""
        return (np.cumsum(self.top) - self.top).astype(np.int32)

    @functools.cached_property
    def total(self) -> int:
        return int(self.top.sum())


@dataclass(frozen=True)
class _Numbered:
    """The calls, the number of the first value of each record, and the words that those of each piece read."""

    piece: np.ndarray
    level: np.ndarray
    operands: np.ndarray
    first: np.ndarray
    words: list[np.ndarray]


def recorded(
    sliced: Sliced,
    top: np.ndarray,
    tape: np.ndarray,
    answers: Mapping[int, np.ndarray],
    given: Sequence[Given],
) -> Recorded:
    """The table of a run. `top` calls were made by each lane, `answers` are the rows that it gave, by
    answer."""
    # What is the same for all lanes may be one array seen many times.
    top, tape = passes.ints(top), np.ascontiguousarray(tape, np.int32)
    records, kinds = _Records(sliced, top, tape), sliced.kinds
    compiled = passes.library() is not None
    counts = _counted(records) if compiled else _counted_in_numpy(records)
    places, sizes = _payload_places(kinds, counts)
    carried = _Carried(given, records.lanes, sizes)
    numbered = (_compiled if compiled else _in_numpy)(records, counts, places, carried)
    payload = _payload(kinds, numbered.words)
    table = Table(
        sliced.pieces,
        sliced.shared_of,
        numbered.piece,
        numbered.operands,
        payload,
        carried.sizes,
        numbered.level,
    )
    alone = tuple(
        payload[kind.piece.rows[0]][place[0] : place[0] + count]
        for kind, place, count in zip(kinds, places, counts.tolist(), strict=True)
        if not kind.rows and len(kind.payload) == 1
    )
    found = _with_answers(records, table, numbered.first, answers, alone)
    adds = [kind.adds for kind in kinds]
    if not any(adds) or not len(table):
        return found
    table, wanted = balanced(table, adds, [kind.zeros for kind in kinds], found.wanted)
    return replace(found, table=table, wanted=wanted)


def _with_answers(
    records: _Records,
    table: Table,
    first: np.ndarray,
    answers: Mapping[int, np.ndarray],
    alone: tuple[np.ndarray, ...],
) -> Recorded:
    """The table with what is wanted of it.

    An answer that is an operand of its lane is none of its values, nor is that of a lane that failed.
    """
    entry = records.sliced.control.table.functions[records.sliced.control.table.entry]
    wanted: list[list[np.ndarray]] = [[] for _ in table.types]
    sizes = [0] * len(wanted)
    begins: dict[int, tuple[int, int]] = {}
    for i, rows in answers.items():
        aval = entry.outs[i].aval
        type_ = Type(tuple(aval.shape), np.dtype(aval.dtype))
        made = (rows >= 0) & (records.top > 0)
        if type_ not in table.types or not made.any():
            continue
        t = table.types.index(type_)
        begins[i] = t, sizes[t]
        values = _values(records, first, rows, records.start)
        # Some value of the type: its reader knows better.
        values[~made] = values[made][0]
        wanted[t].append(values)
        sizes[t] += len(rows)
    none = np.zeros(0, np.int32)
    joined = tuple(np.concatenate(w) if w else none for w in wanted)
    return Recorded(table, joined, begins, alone)


def _values(
    records: _Records, first: np.ndarray, rows: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """The values that rows are, of lanes with these first calls; anything for rows that are operands of their lane."""
    call = np.maximum(rows // records.sliced.results + start, 0)
    return first.take(call, mode="clip") + rows % records.sliced.results


# -- the calls ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _struct(kinds: tuple[Kind, ...], results: int) -> passes.Struct:
    return passes.Struct(
        arity=passes.ints([len(k.piece.rows) for k in kinds]),
        rows=passes.ints([len(k.rows) for k in kinds]),
        results=passes.ints([len(k.piece.results) for k in kinds]),
        words=passes.ints(_words(kinds)),
        most_results=results,
        head=HEAD,
    )


def _words(kinds: Sequence[Kind]) -> list[int]:
    """How many words of control the calls of each piece read."""
    return [sum(words_in(var.aval) for var in kind.payload) for kind in kinds]


def _counted(records: _Records) -> np.ndarray:
    counts = np.zeros(len(records.sliced.kinds), np.int32)
    _, room, width = records.tape.shape
    passes.call("lw_counted", records.lanes, room, width, records.top, records.tape, counts)
    return counts


def _compiled(
    records: _Records, counts: np.ndarray, places: Sequence[Sequence[int]], carried: _Carried
) -> _Numbered:
    kinds, total = records.sliced.kinds, records.total
    words = _words(kinds)
    sizes = [n * w for n, w in zip(counts.tolist(), words, strict=True)]
    starts = np.cumsum([0, *sizes])
    arity = sum(n * len(k.piece.rows) for n, k in zip(counts.tolist(), kinds, strict=True))
    piece, level, first = (np.empty(total, np.int32) for _ in range(3))
    operands, columns = np.empty(arity, np.int32), np.empty(int(starts[-1]), np.int32)
    _, room, width = records.tape.shape
    payload = passes.Struct(
        payload_at=passes.ints(np.cumsum([0, *map(len, places)])),
        first_payload=passes.ints([n for each in places for n in each]),
        column_at=starts.astype(np.int64),
    )
    passes.call(
        *("lw_recorded", _struct(kinds, records.sliced.results), payload),
        *(len(kinds), passes.ints(counts), records.lanes, room, width, records.top, records.tape),
        *(carried.begin, carried.apart, first, np.zeros(len(kinds) + 1, np.int32)),
        *(piece, level, operands, columns),
    )
    parts = [
        columns[a : a + n].reshape(-1, w) if w else np.zeros((count, 0), np.int32)
        for a, n, w, count in zip(starts.tolist(), sizes, words, counts.tolist(), strict=False)
    ]
    return _Numbered(piece, level, operands, first, parts)


def _counted_in_numpy(records: _Records) -> np.ndarray:
    return np.bincount(_rows_of(records)[:, 0], minlength=len(records.sliced.kinds))


def _in_numpy(
    records: _Records, counts: np.ndarray, places: Sequence[Sequence[int]], carried: _Carried
) -> _Numbered:
    kinds, rows = records.sliced.kinds, _rows_of(records)
    source = np.array([not kind.rows for kind in kinds] or [False], bool).take(rows[:, 0])
    order = np.concatenate([np.flatnonzero(source), np.flatnonzero(~source)])
    piece = np.ascontiguousarray(rows[order, 0])
    lane = np.repeat(np.arange(records.lanes, dtype=np.int32), records.top)[order]
    each = np.array([len(k.piece.results) for k in kinds] or [1], np.int32).take(piece)
    first = np.empty(len(order), np.int32)
    first[order] = np.cumsum(each) - each
    calls, words = [], []
    for p, kind in enumerate(kinds):
        number, taken = np.flatnonzero(piece == p), len(kind.rows)
        matrix, of = rows.take(order[number], 0), lane.take(number)
        read = matrix[:, HEAD : HEAD + taken]
        operands = np.empty((int(counts[p]), len(kind.piece.rows)), np.int32)
        operands[:, :taken] = _values(records, first, read, records.start.take(of)[:, None])
        own = np.nonzero(read < 0)
        which = -1 - read[own]
        operands[own] = ~(carried.begin[which] + carried.apart[which] * of[own[0]])
        for k, begin in enumerate(places[p], taken):
            operands[:, k] = ~np.arange(begin, begin + len(of), dtype=np.int32)
        calls.append(Calls(number, first.take(order[number]), operands))
        words.append(matrix[:, HEAD + taken :])
    operands = flat_operands(records.sliced.pieces, piece, calls)
    level = np.ascontiguousarray(rows[order, 1])
    return _Numbered(piece, level, operands, first, words)


def _rows_of(records: _Records) -> np.ndarray:
    """The records of all lanes, one after the other."""
    lanes, room, width = records.tape.shape
    place = np.arange(records.total) + np.repeat(
        room * np.arange(lanes) - records.start, records.top
    )
    return records.tape.reshape(lanes * room, width).take(place, 0)


# -- what calls read beside rows of others -------------------------------------------------------------------


class _Carried:
    """Where the operands that lanes were given are among the inputs of their type: `begin`, and `apart` for each
    lane, by the operand's number."""

    def __init__(self, given: Sequence[Given], lanes: int, payload: Mapping[Type, int]) -> None:
        most = max((each.number for each in given), default=0)
        self.sizes: dict[Type, int] = {}
        self.begin, self.apart = np.zeros((2, most + 1), np.int32)
        for each in given:
            before = self.sizes.get(each.type, 0)
            self.begin[each.number] = payload.get(each.type, 0) + before
            self.apart[each.number] = each.varies
            self.sizes[each.type] = before + (lanes if each.varies else 1)


def _payload_places(
    kinds: Sequence[Kind], counts: np.ndarray
) -> tuple[list[list[int]], dict[Type, int]]:
    """Where the payload of each operand of each piece begins, and how much there is of each type."""
    sizes: dict[Type, int] = {}
    places: list[list[int]] = []
    for kind, count in zip(kinds, counts.tolist(), strict=True):
        mine = []
        for type_ in kind.piece.rows[len(kind.rows) :]:
            mine.append(sizes.get(type_, 0))
            sizes[type_] = mine[-1] + count
        places.append(mine)
    return places, sizes


def _payload(kinds: Sequence[Kind], words: Sequence[np.ndarray]) -> dict[Type, np.ndarray]:
    """The payload of each type. A piece that reads nothing has one operand, so that it has rows."""
    columns: dict[Type, list[np.ndarray]] = {}
    for kind, matrix in zip(kinds, words, strict=True):
        at = 0
        for type_, var in zip(
            kind.piece.rows[len(kind.rows) :], kind.payload or (None,), strict=False
        ):
            size = 0 if var is None else words_in(var.aval)
            read = (
                np.zeros((len(matrix), 1), np.int32) if var is None else matrix[:, at : at + size]
            )
            columns.setdefault(type_, []).append(from_words(read, type_.shape, type_.dtype))
            at += size
    return {t: np.concatenate(c) for t, c in columns.items()}
