"""What the slice recorded, as a table.

The records of all lanes, one after the other, are the calls of a table, and their rows hold all that it says; what is
left is to number things. Values are numbered through all lanes. Payload of one type is one array, to which each operand
of each piece that reads such contributes a column. What lanes were given as operands are carried rows, so gradients go
through.

All of it is a few NumPy expressions for each piece and operand, and none for each call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lanewise.dynamic.pieces import Kind
from lanewise.dynamic.slice import HEAD, Sliced
from lanewise.dynamic.table import Calls, Table, Type
from lanewise.dynamic.words import from_words, words_in


@dataclass(frozen=True)
class Recorded:
    """A table, and the values that answers are, for each type of the table.

    `begins` has for an answer the number of its type, and where among the wanted rows its own begin.
    """

    table: Table
    wanted: tuple[np.ndarray, ...]
    begins: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Given:
    """Operands of the program that are rows: which, of which type, and whether each lane has its own."""

    number: int
    type: Type
    varies: bool


def recorded(
    sliced: Sliced,
    top: np.ndarray,
    tape: np.ndarray,
    answers: Mapping[int, np.ndarray],
    given: Sequence[Given],
) -> Recorded:
    """The table of a run. `top` calls were made by each lane, `answers` are the rows that it gave, by
    answer."""
    lanes, kinds = len(top), sliced.kinds
    start = (np.cumsum(top) - top).astype(np.int32)
    rows = _rows_of(top, tape, start)
    piece = np.ascontiguousarray(rows[:, 0])
    lane = np.repeat(np.arange(lanes, dtype=np.int32), top)
    counts = np.array([len(k.piece.results) for k in kinds] or [1], np.int32)
    numbering = _Numbering(sliced.results, counts, piece, start)
    number = [np.flatnonzero(piece == p) for p in range(len(kinds))]
    matrices = [rows.take(n, 0) for n in number]
    payload, places = _payload(kinds, matrices)
    carried = _Carried(given, lanes, payload)
    calls = []
    for p, kind in enumerate(kinds):
        of, taken = lane.take(number[p]), len(kind.rows)
        read = matrices[p][:, HEAD : HEAD + taken]
        operands = np.empty((len(of), len(kind.piece.rows)), np.int32)
        operands[:, :taken] = numbering.values(read, of[:, None])
        if carried.any and taken and len(of) and read.min() < 0:
            own = np.nonzero(read < 0)
            operands[own] = carried.operands(read[own], of[own[0]])
        for k, first in enumerate(places[p], taken):
            operands[:, k] = ~np.arange(first, first + len(of), dtype=np.int32)
        calls.append(Calls(number[p], numbering.first(number[p]), operands))
    table = Table.of_calls(
        sliced.pieces,
        sliced.shared_of,
        piece,
        tuple(calls),
        payload,
        carried.sizes,
        rows[:, 1],
    )
    return _with_answers(sliced, table, numbering, answers, top)


def _with_answers(
    sliced: Sliced,
    table: Table,
    numbering: _Numbering,
    answers: Mapping[int, np.ndarray],
    top: np.ndarray,
) -> Recorded:
    """The table with what is wanted of it.

    An answer that is an operand of its lane is none of its values, nor is that of a lane that failed.
    """
    entry = sliced.control.table.functions[sliced.control.table.entry]
    wanted: list[list[np.ndarray]] = [[] for _ in table.types]
    sizes = [0] * len(wanted)
    begins: dict[int, tuple[int, int]] = {}
    for i, rows in answers.items():
        aval = entry.outs[i].aval
        type_ = Type(tuple(aval.shape), np.dtype(aval.dtype))
        made = (rows >= 0) & (top > 0)
        if type_ not in table.types or not made.any():
            continue
        t = table.types.index(type_)
        begins[i] = t, sizes[t]
        lane = np.arange(len(rows), dtype=np.int32)
        values = numbering.values(rows, lane)
        # Some value of the type: who reads the answer knows better.
        values[~made] = values[made][0]
        wanted[t].append(values)
        sizes[t] += len(rows)
    none = np.zeros(0, np.int32)
    joined = tuple(np.concatenate(w) if w else none for w in wanted)
    return Recorded(table, joined, begins)


def _rows_of(top: np.ndarray, tape: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The records of all lanes, one after the other."""
    lanes, room, width = tape.shape
    if lanes == 1:
        return tape[0, : top[0]]
    total = int(top.sum())
    place = np.arange(total) + np.repeat(room * np.arange(lanes) - start, top)
    return tape.reshape(lanes * room, width).take(place, 0)


@dataclass(frozen=True)
class _Numbering:
    """From rows of a lane, which are numbered by call, to values, which are numbered one after the other."""

    results: int
    counts: np.ndarray  # of results, by piece
    piece: np.ndarray
    start: np.ndarray  # the first call of each lane

    @functools.cached_property
    def _even(self) -> bool:
        return bool((self.counts == self.results).all())

    @functools.cached_property
    def _first(self) -> np.ndarray:
        each = self.counts.take(self.piece)
        return (np.cumsum(each) - each).astype(np.int32)

    def first(self, calls: np.ndarray) -> np.ndarray:
        """The first value of calls."""
        return calls * self.results if self._even else self._first.take(calls)

    def values(self, rows: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """The values that rows of these lanes are; anything for rows that are operands of their lane."""
        start = self.start.take(lane)
        if self._even:
            return rows + start * self.results
        call = rows // self.results + start
        return self._first.take(np.maximum(call, 0)) + rows % self.results


class _Carried:
    """Where the operands that lanes were given lie among the inputs of their type."""

    def __init__(
        self, given: Sequence[Given], lanes: int, payload: Mapping[Type, np.ndarray]
    ) -> None:
        self.any = bool(given)
        self.sizes: dict[Type, int] = {}
        self.begin: dict[int, int] = {}
        self.varies: dict[int, bool] = {}
        for each in given:
            before = self.sizes.get(each.type, 0)
            self.begin[each.number] = len(payload.get(each.type, ())) + before
            self.varies[each.number] = each.varies
            self.sizes[each.type] = before + (lanes if each.varies else 1)

    def operands(self, rows: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """The operands of a table that rows, which are operands of their lanes, are."""
        which = -1 - rows
        begin = np.zeros(int(which.max()) + 1, np.int32)
        apart = np.zeros_like(begin)
        for number, first in self.begin.items():
            if number < len(begin):
                begin[number], apart[number] = first, self.varies[number]
        return ~(begin[which] + apart[which] * lane)


def _payload(
    kinds: Sequence[Kind], matrices: Sequence[np.ndarray]
) -> tuple[dict[Type, np.ndarray], list[list[int]]]:
    """The payload of each type, and where that of each operand begins."""
    columns: dict[Type, list[np.ndarray]] = {}
    sizes: dict[Type, int] = {}
    places: list[list[int]] = []
    for kind, matrix in zip(kinds, matrices, strict=True):
        at = HEAD + len(kind.rows)
        mine = []
        for type_, var in zip(
            kind.piece.rows[len(kind.rows) :], kind.payload or (None,), strict=False
        ):
            if var is None:
                column = np.zeros(len(matrix), np.int32)
            else:
                words = words_in(var.aval)
                column = from_words(matrix[:, at : at + words], type_.shape, type_.dtype)
                at += words
            columns.setdefault(type_, []).append(column)
            mine.append(sizes.get(type_, 0))
            sizes[type_] = sizes.get(type_, 0) + len(matrix)
        places.append(mine)
    return {t: np.concatenate(c) for t, c in columns.items()}, places
