"""A table's demand, and its index tables, in NumPy: what is done on the host for every minibatch.

`survey` says what a table asks of an envelope, `packed` makes the tables for the envelope that it got. Each step is a
few array expressions for each piece and operand, none for each call. `passes.py` has the same in compiled code, which
runs where there is a C++ compiler; this is what it has to equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lanewise.dynamic.envelope import MADE, PAYLOAD, TILES, Demand
from lanewise.dynamic.layout import TABLE, Layout, Sections
from lanewise.dynamic.order import counts, depth
from lanewise.dynamic.table import Table, Type

# The values wanted of each type of the table, or None for all.
Wanted = Sequence[np.ndarray] | None


@dataclass(frozen=True)
class Survey:
    """What a table asks for. `own` is for `packed` of the same form."""

    level: np.ndarray
    need: Demand
    own: Any


@dataclass(frozen=True)
class Packed:
    """Index tables of the forward direction, and of the reverse one if it was asked for, in one array; and where each
    value is."""

    tables: np.ndarray
    position: np.ndarray | None


@dataclass(frozen=True)
class Uses:
    """Which edges read each value whose adjoint counts.

    Edges are numbered: the operands of all calls as the table has them, then wanted values. `target[e]` is what edge e
    reads: a value, or after all values a carried row; -1 where no adjoint flows. `last[v]` is the last edge that reads
    v, or -1; `extra` are all others.
    """

    target: np.ndarray
    last: np.ndarray
    extra: np.ndarray


class _Operands(NamedTuple):
    """For the operands of all calls: the call, and the number among those of all pieces."""

    call: np.ndarray
    number: np.ndarray


def _operands(table: Table) -> _Operands:
    first = table.first_operand
    call = np.repeat(np.arange(len(table), dtype=np.int32), table.arity[table.piece])
    within = np.arange(len(table.operands)) - first[call]
    return _Operands(call, _starts(table.arity.tolist())[table.piece[call]] + within)


def uses(table: Table, types: Sequence[Type], wanted: Wanted) -> Uses:
    number = [types.index(t) for p in table.pieces for t in p.rows]
    of_type = np.array(number, np.int64)[_operands(table).number]
    flows = np.array([t.differentiable for t in types], bool)
    payload = np.array([len(table.payload.get(t, ())) for t in types], np.int64)
    carried_from = table.num_values + _starts([table.carried.get(t, 0) for t in types])
    read = table.operands
    carried = ~read - payload[of_type]
    target = np.where(read >= 0, read, carried_from[of_type] + carried)
    targets = [np.where(flows[of_type] & ((read >= 0) | (carried >= 0)), target, -1)]
    for type_, values in zip(types, wanted or (), strict=False):
        targets.append(np.asarray(values) if type_.differentiable else np.full(len(values), -1))
    target = np.concatenate(targets)
    edges = np.flatnonzero(target >= 0)
    last = np.full(int(carried_from[-1]), -1, np.int64)
    last[target[edges]] = edges
    return Uses(target, last, edges[last[target[edges]] != edges])


def _starts(sizes: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


def survey(table: Table, level: np.ndarray | None, wanted: Wanted, gradient: bool) -> Survey:
    """What the table asks of an envelope; levels are by depth where none are given."""
    level = depth(table) if level is None else level
    used = uses(table, table.types, wanted) if gradient else None
    return Survey(level, _demand(table, level, wanted, used), used)


def _demand(table: Table, level: np.ndarray, wanted: Wanted, used: Uses | None) -> Demand:
    count, types = counts(table, level), table.types
    extra, carried_extra = np.zeros_like(count), 0
    if used is not None and len(used.extra):
        value = used.target[used.extra]
        made = value < table.num_values
        call = table.caller[value[made]]
        np.add.at(extra, (level[call], table.piece[call]), 1)
        carried_extra = int(np.count_nonzero(~made))
    fed = []
    for piece, calls in zip(table.pieces, table.calls_of, strict=True):
        flags = []
        for k, type_ in enumerate(piece.rows):
            read = calls.operands[:, k]
            if not len(read):
                flags.append(0)
                continue
            least, rows = int(read.min()), len(table.payload.get(type_, ()))
            made = int(read.max()) >= 0 or least < -rows
            plain = bool(least < 0 and np.any((read < 0) & (read >= -rows)))
            flags.append(PAYLOAD * plain | MADE * made)
        fed.append(tuple(flags))
    return Demand(
        count,
        tuple(fed),
        tuple(len(table.payload.get(t, ())) for t in types),
        tuple(int(table.carried.get(t, 0)) for t in types),
        None if wanted is None else tuple(map(len, wanted)),
        extra,
        carried_extra,
    )


@dataclass(frozen=True)
class Places:
    """Where a table's calls and values are: the row of each call in its piece's regions, of each value in its
    arena. Levels from `split` on are in the tail; `begin` is where calls of a piece at a level begin."""

    split: int
    begin: np.ndarray
    row: np.ndarray
    position: np.ndarray


def _places(table: Table, found: Survey, lay: Layout) -> Places:
    count, level = found.need.counts, found.level
    # The first level of the tail, and the first row of each piece at each level.
    split = lay.envelope.split(found.need)
    begin = np.empty_like(count)
    begin[:split] = lay.offset[:split]
    rest = count[split:]
    begin[split:] = lay.offset[-1] + np.cumsum(rest, 0) - rest
    key = level * len(table.pieces) + table.piece
    small = count.size < 1 << 16
    order = np.argsort(key.astype(np.uint16) if small else key, kind="stable")
    flat = count.reshape(-1)
    shift = begin.reshape(-1) - (np.cumsum(flat) - flat)
    row = np.empty(len(table), np.int32)
    row[order] = np.arange(len(table)) + np.repeat(shift, flat)
    position = np.empty(table.num_values, np.int32)
    for calls, bases in zip(table.calls_of, lay.result, strict=True):
        rows = row[calls.number]
        for j, base in enumerate(bases):
            position[calls.first + j] = rows + base
    return Places(split, begin, row, position)


def packed(table: Table, wanted: Wanted, found: Survey, lay: Layout) -> Packed:
    """The index tables of both directions."""
    at = _places(table, found, lay)
    out = np.zeros(lay.size(found.own is not None), TABLE)
    _forward(out, table, wanted, lay, at)
    gradient = found.own is not None
    if gradient:
        _reverse(out, table, found, lay, at)
    for sections in (lay.forward, lay.reverse) if gradient else (lay.forward,):
        _pack_tail(out, sections, found.need, at.split, at.begin)
    return Packed(out, at.position)


def _forward(out: np.ndarray, table: Table, wanted: Wanted, lay: Layout, at: Places) -> None:
    envelope, sections = lay.envelope, lay.forward
    for p, (piece, calls) in enumerate(zip(table.pieces, table.calls_of, strict=True)):
        if not len(calls.number):
            continue
        rows = at.row[calls.number]
        for k, type_ in enumerate(piece.rows):
            section = out[sections["index", p, k]]
            positions = _positions(table, calls.operands[:, k], type_, envelope.fed[p][k], lay, at)
            # Rows beyond are copies of the first one: after the levels, all it reads has been computed.
            section[:] = positions[rows.argmin()]
            section[rows] = positions
    for t, values in enumerate(wanted or ()):
        out[sections["wanted", t]][: len(values)] = at.position[values]


def _positions(
    table: Table, read: np.ndarray, type_: Type, flags: int, lay: Layout, at: Places
) -> np.ndarray:
    if flags == PAYLOAD:
        return ~read
    if read.min() >= 0:
        return at.position[read]
    t = lay.number(type_)
    payload = len(table.payload.get(type_, ()))
    gap = (lay.envelope.payload[t] if lay.joined[t] else 0) - payload
    given = np.where(~read < payload, ~read, ~read + gap)
    return (
        np.where(read >= 0, at.position[np.maximum(read, 0)], given) if len(at.position) else given
    )


def _pack_tail(
    out: np.ndarray, sections: Sections, need: Demand, split: int, begin: np.ndarray
) -> None:
    """Where the levels of the tail begin, and in which tiles they run; how many rows levels have, if that is asked."""
    rest = need.counts[split:]
    if ("counts",) in sections.parts:
        both = out[sections["counts",]].reshape(-1, need.counts.shape[1])
        both[:split] = need.counts[:split]
        after = len(both) - len(out[sections["start",]]) // both.shape[1]
        both[after : after + len(rest)] = rest
    if not len(rest):
        return
    out[sections["levels",]] = len(rest)
    out[sections["start",]][: rest.size] = begin[split:].reshape(-1)
    tiles = np.empty((rest.size, len(TILES)), np.int64)
    left = rest.reshape(-1).copy()
    for i, width in enumerate(TILES):
        tiles[:, i] = -(-left // width) if i == len(TILES) - 1 else left // width
        left = left - tiles[:, i] * width
    out[sections["tiles",]][: tiles.size] = tiles.reshape(-1)


def _reverse(out: np.ndarray, table: Table, found: Survey, lay: Layout, at: Places) -> None:
    sections, need, used = lay.reverse, found.need, found.own
    source = _adjoint_positions(table, need, lay, at)
    at_first = np.where(used.last >= 0, source[used.last], 0) if len(source) else used.last * 0
    for p, (piece, calls) in enumerate(zip(table.pieces, table.calls_of, strict=True)):
        rows = at.row[calls.number]
        for j, type_ in enumerate(piece.results):
            if type_.differentiable:
                out[sections["first", p, j]][rows] = at_first[calls.first + j]
        out[sections["there", p]][rows] = 1
    carried_from = table.num_values + _starts(need.carried)
    for t, number in enumerate(need.carried):
        if lay.envelope.types[t].differentiable:
            given = at_first[carried_from[t] : carried_from[t] + number]
            out[sections["carried", t]][:number] = given
    if len(used.extra):
        extra = used.extra
        _pack_extra(out, table, found, (used.target[extra], source[extra]), lay, at)


def _adjoint_positions(table: Table, need: Demand, lay: Layout, at: Places) -> np.ndarray:
    """Where each edge's adjoint is written, if it has one."""
    call, number = _operands(table)
    base = np.array([b or 0 for bases in lay.operand for b in bases], np.int64)
    step = np.array([n for steps in lay.step for n in steps], np.int64)
    wanted = [np.arange(1, size + 1) for size in need.wanted or ()]
    return np.concatenate([at.row[call] * step[number] + base[number], *wanted])


def arena_starts(sizes: Sequence[int]) -> list[int]:
    """Where each type's arena would begin if they were one after the other."""
    return _starts(sizes).tolist()


def _pack_extra(
    out: np.ndarray,
    table: Table,
    found: Survey,
    edges: tuple[np.ndarray, np.ndarray],
    lay: Layout,
    at: Places,
) -> None:
    """Pairs of where an adjoint is read and what it is added to, in the order of the latter."""
    target, source = edges
    envelope, sections, need = lay.envelope, lay.reverse, found.need
    num = len(table.pieces)
    made = target < table.num_values
    begins = [table.num_values + n for n in arena_starts(need.carried)]
    by_row = np.argsort(target[~made], kind="stable")
    carried, from_ = target[~made][by_row], source[~made][by_row]
    t = np.searchsorted(begins, carried, side="right") - 1
    rows = carried - np.array(begins)[t] + np.array(arena_starts(envelope.carried))[t]
    _write(out, sections["carried extra", "from"], sections["carried extra", "to"], from_, rows)

    value, source = target[made], source[made]
    call = table.caller[value]
    result = value - table.first_value[call]
    piece = table.piece[call]
    key = found.level[call] * num + piece
    order = np.lexsort((at.row[call], result, key))
    value, source, call, result, piece, key = (
        x[order] for x in (value, source, call, result, piece, key)
    )
    bounds = np.searchsorted(key, np.arange(need.counts.size + 1))
    begin = at.begin.reshape(-1)
    for i in range(at.split * num):
        part = slice(bounds[i], bounds[i + 1])
        if part.start == part.stop:
            continue
        level, p = divmod(i, num)
        to = at.row[call[part]] - begin[i] + result[part] * envelope.head[level][p]
        where = sections["extra", level, p, "from"], sections["extra", level, p, "to"]
        _write(out, *where, source[part], to)
    tail = slice(bounds[at.split * num], None)
    of_type = np.array(
        [envelope.types.index(t) for q in envelope.pieces for t in q.results], np.int64
    )
    first = _starts([len(q.results) for q in envelope.pieces])
    types = of_type[first[piece[tail]] + result[tail]]
    to = at.position[value[tail]] + np.array(arena_starts(lay.arena))[types]
    _write(out, sections["tail extra", "from"], sections["tail extra", "to"], source[tail], to)
    starts = bounds[at.split * num :] - bounds[at.split * num]
    section = out[sections["extra start",]]
    section[: len(starts)] = starts
    section[len(starts) :] = starts[-1]


def _write(
    out: np.ndarray, from_: slice, to: slice, source: np.ndarray, target: np.ndarray
) -> None:
    out[from_][: len(source)] = source
    section = out[to]
    section[: len(target)] = target
    if len(target):
        section[len(target) :] = target[-1]
