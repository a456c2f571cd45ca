"""A table run forwards: levels unrolled into the envelope, then the loop for the tail.

A launch gathers the operand rows of one piece at one level from the arenas, runs the piece on them, and writes its
results to the regions where they belong, which is one contiguous part of an arena for each result. In the head all of
this has fixed places and sizes. In the tail the place is data: a loop over levels holds, for each piece and each tile
width, a loop over the tiles of that width, which most often runs zero or one times.

Tiles do not end where levels do. The last tile of a level may reach into rows of the next one, of which the operands
may be missing: what it computes there is computed again at the next level. Past the last level there is room for a
tile.

Considered and not done: one array for each level instead of arenas. XLA updates arenas in place, and gathers from one
array read children from any level below. XLA for a GPU would rather fuse a gather with the writes of all levels below,
into kernels that grow from level to level and take it 20 s to compile. So arenas are kept in memory between launches
(`kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.dynamic import cut
from lanewise.dynamic.envelope import MADE, TILES
from lanewise.dynamic.inplace import before_all_else, gathers_first
from lanewise.dynamic.layout import Layout, Sections, in_tables

# Which rows (by piece) and shared operands (by piece) have adjoints.
Active = tuple[tuple[tuple[bool, ...], tuple[bool, ...]], ...]


class Ran(NamedTuple):
    """What a forward run leaves: arenas by type, and what was saved by piece: by level of the head, and of the
    tail."""

    arenas: list[Any]
    head: list[list[list[Any]]]
    tail: list[list[Any]]


def read(array: Any, index: Any) -> Any:
    """Rows of an array, at indices that are right."""
    return array.at[index].get(mode="promise_in_bounds")


def part(array: Any, start: Any, size: int, axis: int = 0) -> Any:
    if isinstance(start, int):
        return lax.slice_in_dim(array, start, start + size, axis=axis)
    return lax.dynamic_slice_in_dim(array, start, size, axis)


def written(array: Any, rows: Any, start: Any, axis: int = 0) -> Any:
    return lax.dynamic_update_slice_in_dim(array, rows, start, axis)


def kept(arenas: Sequence[Any]) -> list[Any]:
    """Arenas, or rows of them, that no kernel is fused across. (XLA for a CPU takes the barrier out before that.)"""
    return list(lax.optimization_barrier(tuple(arenas)))


def payload_of(lay: Layout, tables: Any, payload: Sequence[Any]) -> list[Any]:
    """The payload of each type; `payload` has what is not in the tables, None where there is none."""
    found = []
    for t, (type_, own) in enumerate(zip(lay.envelope.types, payload, strict=True)):
        shape = lay.envelope.payload[t], *type_.shape
        if in_tables(type_):
            words = tables[lay.forward["payload", t]].reshape(shape)
            own = lax.bitcast_convert_type(words, type_.dtype)
        found.append(jnp.zeros(shape, type_.dtype) if own is None else own)
    return found


class Source:
    """Where a piece's operand rows are read from."""

    def __init__(self, lay: Layout, tables: Any, payload: Sequence[Any]) -> None:
        self.lay, self.tables, self.payload = lay, tables, payload_of(lay, tables, payload)

    def operand(
        self, arenas: Sequence[Any], p: int, k: int, start: Any, size: int, count: Any = None
    ) -> Any:
        """Operand k of rows of piece p; with a count, copies of the last of these in place of those beyond."""
        envelope = self.lay.envelope
        at = self.lay.forward["index", p, k].start
        t = self.lay.number(envelope.pieces[p].rows[k])
        array = arenas[t] if envelope.fed[p][k] & MADE else self.payload[t]
        if count is None:
            return read(array, part(self.tables, at + start, size))
        there = jnp.clip(jnp.arange(size, dtype=jnp.int32), 0, jnp.maximum(count - 1, 0))
        return read(array, read(self.tables, at + start + there))


def initial(lay: Layout, payload: Sequence[Any], carried: Sequence[Any]) -> list[Any]:
    """Arenas before the first level."""
    arenas = []
    for t, (type_, size) in enumerate(zip(lay.envelope.types, lay.arena, strict=True)):
        arena = jnp.zeros((size, *type_.shape), type_.dtype)
        begin = lay.envelope.payload[t] if lay.joined[t] else 0
        if begin:
            arena = written(arena, payload[t], 0)
        if lay.envelope.carried[t]:
            arena = written(arena, carried[t], begin)
        arenas.append(arena)
    return arenas


@dataclass(frozen=True)
class _Forward:
    """What all launches of a forward run read."""

    source: Source
    shared: Sequence[Any]
    active: Active | None
    in_place: bool

    def codes(self, p: int, size: int) -> cut.Codes | None:
        """Both sweeps of a piece for this many rows, if the reverse sweep comes."""
        piece = self.source.lay.envelope.pieces[p]
        return None if self.active is None else cut.codes(piece, size, *self.active[p])

    def launch(
        self, arenas: Sequence[Any], p: int, level: Any, start: Any, size: int
    ) -> tuple[list[Any], list[Any]]:
        """Run a piece on rows of a level: the arenas with its results, and what is saved."""
        source, lay, tables = self.source, self.source.lay, self.source.tables
        piece = lay.envelope.pieces[p]
        count = level_end(lay, tables, p, level, start)
        codes = self.codes(p, size)
        code = cut.forward_code(piece, size) if codes is None else codes.forward

        def gathered(turn: Any) -> list[Any]:
            return [
                source.operand(arenas, p, k, start + turn, size, count)
                for k in range(len(piece.rows))
            ]

        fed = zip(piece.rows, lay.envelope.fed[p], strict=True)
        made = tuple(t if flags & MADE else None for t, flags in fed)
        first = self.in_place and gathers_first(code, made, piece.results)
        rows = before_all_else(tables, gathered) if first else gathered(0)
        given = [*(self.shared[s] for s in lay.envelope.shared[p]), *rows]
        outs = evaluated_if(None if count is None else count > 0, code, given)
        arenas = list(arenas)
        for j, type_ in enumerate(piece.results):
            t = lay.number(type_)
            arenas[t] = written(arenas[t], outs[j], lay.result[p][j] + start)
        return kept(arenas), list(outs[len(piece.results) :])


def forward(
    lay: Layout,
    tables: Any,
    payload: Sequence[Any],
    carried: Sequence[Any],
    shared: Sequence[Any],
    active: Active | None = None,
    in_place: bool = True,
) -> Ran:
    """Run all levels; with `active`, save what the reverse reads. `in_place`: see `inplace.py`."""
    envelope = lay.envelope
    run = _Forward(Source(lay, tables, payload), shared, active, in_place)
    arenas = initial(lay, run.source.payload, carried)
    head: list[list[list[Any]]] = []
    for level, capacities in enumerate(envelope.head):
        saved: list[list[Any]] = [[] for _ in envelope.pieces]
        for p, size in enumerate(capacities):
            if size:
                arenas, saved[p] = run.launch(arenas, p, level, int(lay.offset[level, p]), size)
        head.append(saved)
    all_codes = [run.codes(p, size) if size else None for p, size in enumerate(envelope.tail)]
    tail = [
        [] if codes is None else [jnp.zeros(a.shape, a.dtype) for a in codes.saved]
        for codes in all_codes
    ]

    def tile(state: Any, p: int, level: Any, start: Any, size: int) -> Any:
        arenas, tail = state
        arenas, saved = run.launch(arenas, p, len(envelope.head) + level, start, size)
        codes = run.codes(p, size)
        if codes is not None:
            begin = start - int(lay.offset[-1, p])
            own = zip(tail[p], saved, codes.saved_axes, strict=True)
            tail = [*tail[:p], [written(a, v, begin, x) for a, v, x in own], *tail[p + 1 :]]
        return arenas, tail

    arenas, tail = over_tail(lay, lay.forward, tables, tile, (arenas, tail))
    return Ran(arenas, head, tail)


def over_tail(
    lay: Layout,
    sections: Sections,
    tables: Any,
    tile: Callable[[Any, int, Any, Any, int], Any],
    state: Any,
    reverse: bool = False,
    before: Callable[[Any, int, Any], Any] | None = None,
) -> Any:
    """`tile(state, piece, level, start, size)` for the tiles of all levels of the tail.

    `before(state, piece, number)` comes before the tiles of a piece at a level; `number` counts such pairs.
    """
    envelope = lay.envelope
    if not envelope.tail_levels:
        return state
    num, kinds = len(envelope.pieces), len(TILES)
    height = tables[sections["levels",]][0]
    begins = sections["start",].start
    tiles = sections["tiles",].start

    def level(i: Any, state: Any) -> Any:
        k = height - 1 - i if reverse else i
        pieces = [p for p in range(num) if envelope.tail[p]]
        for p in reversed(pieces) if reverse else pieces:
            number = k * num + p
            if before is not None:
                state = before(state, p, number)
            start = tables[begins + number]
            for j, width in enumerate(TILES):
                # A capacity below a width leaves no place for a tile of it, and no need.
                if width > envelope.tail[p]:
                    continue
                count = tables[tiles + number * kinds + j]

                def one(
                    q: Any, state: Any, p: int = p, start: Any = start, width: int = width
                ) -> Any:
                    return tile(state, p, k, start + q * width, width)

                state = lax.fori_loop(0, count, one, state)
                start = start + count * width
        return state

    return lax.fori_loop(0, height, level, state)


def level_end(lay: Layout, tables: Any, p: int, level: Any, start: Any) -> Any:
    """How many rows from `start` on are of this level, for a piece that must not run on others; else None."""
    envelope = lay.envelope
    if not envelope.pieces[p].loops:
        return None
    number, head = len(envelope.pieces), len(envelope.head)
    count = tables[lay.forward["counts",].start + level * number + p]
    if isinstance(start, int):
        return count
    begin = tables[lay.forward["start",].start + (level - head) * number + p]
    return begin + count - start


def evaluated_if(there: Any, code: _jax.Jaxpr, given: Sequence[Any]) -> list[Any]:
    """What code gives, zeros where no row is there; `there` is None for code that may run anyway."""
    if there is None:
        return _jax.eval_jaxpr(code, *given)
    none = [jnp.zeros(a.aval.shape, a.aval.dtype) for a in code.outvars]
    return lax.cond(there, lambda: _jax.eval_jaxpr(code, *given), lambda: none)


def answers(lay: Layout, tables: Any, arenas: Sequence[Any]) -> tuple[Any, ...]:
    """The wanted rows of each type, or the arenas."""
    if lay.envelope.wanted is None:
        return tuple(arenas)
    sections = lay.forward
    return tuple(
        read(arena, tables[sections["wanted", t]]) if arena.shape[0] else arena[:0]
        for t, arena in enumerate(arenas)
    )
