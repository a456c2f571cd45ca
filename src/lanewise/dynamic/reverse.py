"""A table run in reverse: adjoints of rows level by level, those of shared arrays once at the end.

Nothing is scattered. A user writes the adjoints of its operands to a region of its own, and the call that made a
value reads them there: by one gather where each value has one user, with a sum over the pairs of `extra` where some
have more. So what is added in which order depends on the table alone, and the answer is the same in each run.

Rows beyond those that are there read the row of zeros as their adjoint, and nothing reads what they write. They must
not reach the weights: where the code for weights begins, the cuts are zeros in these rows, and what they are
multiplied with is zero too or an operand of a row that is there. So `0 * inf` cannot occur in a row that the
table does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.dynamic import cut
from lanewise.dynamic.compute import (
    Active,
    Ran,
    Source,
    evaluated_if,
    kept,
    over_tail,
    part,
    read,
    written,
)
from lanewise.dynamic.inplace import before_all_else, gathers_first
from lanewise.dynamic.layout import Layout
from lanewise.dynamic.pack import arena_starts

# How many extra users are added at once in the tail.
_CHUNK = 64


class _Reverse:
    """One run in reverse, at the values of a forward run."""

    def __init__(
        self,
        lay: Layout,
        tables: Any,
        payload: Sequence[Any],
        shared: Sequence[Any],
        ran: Ran,
        active: Active,
        seeds: Sequence[Any],
        in_place: bool,
    ) -> None:
        self.in_place = in_place
        self.lay, self.envelope, self.tables = lay, lay.envelope, tables
        self.shared, self.ran, self.active, self.seeds = shared, ran, active, seeds
        self.source = Source(lay, tables, payload)
        self.given = [self.whole(p) if size else [] for p, size in enumerate(lay.rows)]

    def codes(self, p: int, size: int) -> cut.Codes:
        return cut.codes(self.envelope.pieces[p], size, *self.active[p])

    def shared_of(self, p: int) -> list[Any]:
        return [self.shared[s] for s in self.envelope.shared[p]]

    def whole(self, p: int) -> list[Any]:
        """All rows of a piece: operands, results, what was saved, what is prepared; None for what nothing reads."""
        size, codes = self.lay.rows[p], self.codes(p, self.lay.rows[p])
        shared = self.shared_of(p)
        num = len(codes.prepare.outvars)
        here = len(codes.axes) - num
        read_by = [codes.reads(c, len(shared)) for c in (codes.rows, codes.weights)]
        wanted = [any(flags) for flags in zip(*read_by)]
        before = [*codes.reads(codes.prepare, len(shared))[:here], *[False] * num]
        used = [a or b for a, b in zip(wanted, before, strict=True)]
        piece = self.envelope.pieces[p]
        found: list[Any] = [None] * here
        for k in range(len(piece.rows)):
            if used[k]:
                found[k] = self.source.operand(self.ran.arenas, p, k, 0, size)
        for j, type_ in enumerate(piece.results):
            if used[len(piece.rows) + j]:
                arena = self.ran.arenas[self.lay.number(type_)]
                found[len(piece.rows) + j] = part(arena, self.lay.result[p][j], size)
        for i, x in enumerate(codes.saved_axes):
            at = len(piece.rows) + len(piece.results) + i
            if used[at]:
                head = [
                    self.ran.head[n][p][i] for n, level in enumerate(self.envelope.head) if level[p]
                ]
                found[at] = _joined([*head, *self.ran.tail[p][i : i + 1]], x)
        if piece.loops:
            # Rows that are not there are copies of one that is, in all that is read of them.
            there = self.there(p)
            index = jnp.where(there, jnp.arange(size), jnp.argmax(there))
            axes = codes.axes[:here]
            found = [
                None if v is None else jnp.take(v, index, x)
                for v, x in zip(found, axes, strict=True)
            ]
        return [*found, *_evaluated(codes.prepare, [*shared, *found])]

    def there(self, p: int) -> Any:
        """Which rows of a piece the table has."""
        return self.tables[self.lay.reverse["there", p]] > 0

    def if_there(self, p: int, start: Any, size: int) -> Any:
        """Whether some of these are, for a piece that must not run otherwise; else None."""
        loops = self.envelope.pieces[p].loops
        return jnp.any(part(self.there(p), start, size)) if loops else None

    def adjoints(self, arenas: Sequence[Any], p: int, start: Any, size: int) -> list[Any]:
        """Adjoints of the results of some rows of a piece: of their first users, and of answers if all results are."""
        found = []
        for j, type_ in enumerate(self.envelope.pieces[p].results):
            if not type_.differentiable:
                continue
            t = self.lay.number(type_)
            at = self.lay.reverse["first", p, j].start
            adjoint = read(arenas[t], part(self.tables, at + start, size))
            if self.envelope.wanted is None:
                adjoint = adjoint + part(self.seeds[t], self.lay.result[p][j] + start, size)
            found.append(adjoint)
        return found

    def launch(
        self,
        arenas: Sequence[Any],
        p: int,
        start: Any,
        adjoints: Callable[[Any], list[Any]],
        size: int,
    ) -> tuple[list[Any], list[Any]]:
        """Adjoints of operands written to their regions, and the cuts; `adjoints(first row)` are those of results."""
        codes, piece = self.codes(p, size), self.envelope.pieces[p]
        results = tuple(t for t in piece.results if t.differentiable)
        active = tuple(t for k, t in enumerate(piece.rows) if self.lay.active(p, k))
        first = self.in_place and gathers_first(codes.rows, results, active)
        found = (
            before_all_else(self.tables, lambda turn: adjoints(start + turn))
            if first
            else kept(adjoints(start))  # as `inplace.py` says of a GPU
        )
        given = [
            None if v is None else part(v, start, size, x)
            for v, x in zip(self.given[p], codes.axes, strict=True)
        ]
        own = [*self.shared_of(p), *given, *found]
        outs = _evaluated(codes.rows, own, self.if_there(p, start, size))
        return self.with_operands(arenas, p, start, outs[: len(active)]), list(outs[len(active) :])

    def with_operands(
        self, arenas: Sequence[Any], p: int, start: Any, adjoints: Sequence[Any]
    ) -> list[Any]:
        """The arenas with adjoints of the operands of some rows: one write for all operands of a type."""
        arenas, given = list(arenas), iter(adjoints)
        slots: dict[int, tuple[int, list[Any]]] = {}
        for base, type_ in zip(self.lay.operand[p], self.envelope.pieces[p].rows, strict=True):
            if base is not None:
                slots.setdefault(self.lay.number(type_), (base, []))[1].append(next(given))
        for t, (base, rows) in slots.items():
            whole = jnp.stack(rows, 1).reshape(-1, *rows[0].shape[1:])
            arenas[t] = written(arenas[t], whole, base + start * len(rows))
        return kept(arenas)

    def with_extra(
        self, arenas: Sequence[Any], level: int, p: int, adjoints: list[Any]
    ) -> list[Any]:
        """With the users beyond the first one, in the head."""
        size, capacity = self.envelope.head[level][p], self.envelope.extra[level][p]
        if not capacity:
            return adjoints
        results = self.envelope.pieces[p].results
        sections = self.lay.reverse
        from_ = self.tables[sections["extra", level, p, "from"]]
        to = self.tables[sections["extra", level, p, "to"]]
        active = [j for j, t in enumerate(results) if t.differentiable]
        found = list(adjoints)
        types = {results[j] for j in active}
        for type_ in types:
            mine = from_
            if len(types) > 1:
                own = jnp.array([t == type_ for t in results])[to // size]
                mine = jnp.where(own, from_, 0)
            terms = read(arenas[self.lay.number(type_)], mine)
            summed = jax.ops.segment_sum(
                terms,
                to,
                size * len(results),
                indices_are_sorted=True,
                mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
            )
            for i, j in enumerate(active):
                if results[j] == type_:
                    found[i] = found[i] + part(summed, j * size, size)
        return found

    def run(self) -> tuple[list[Any], list[Any]]:
        envelope, lay = self.envelope, self.lay
        arenas = self.initial()
        arenas, tail_cuts = self.tail(arenas)
        head_cuts: list[list[Any]] = [[None] * len(envelope.pieces) for _ in envelope.head]
        for level in reversed(range(len(envelope.head))):
            for p in reversed(range(len(envelope.pieces))):
                size = envelope.head[level][p]
                if not size:
                    continue
                start = int(lay.offset[level, p])

                def adjoints(
                    start: Any,
                    arenas: Any = arenas,
                    level: int = level,
                    p: int = p,
                    size: int = size,
                ) -> list[Any]:
                    own = self.adjoints(arenas, p, start, size)
                    return self.with_extra(arenas, level, p, own)

                arenas, cuts = self.launch(arenas, p, start, adjoints, size)
                head_cuts[level][p] = cuts
        shared = self.of_shared(head_cuts, tail_cuts)
        return self.of_carried(arenas), shared

    def initial(self) -> list[Any]:
        arenas = []
        for t, type_ in enumerate(self.envelope.types):
            size = self.lay.adjoints[t] if type_.differentiable else 0
            arena = jnp.zeros((size, *type_.shape), type_.dtype)
            if type_.differentiable and self.envelope.wanted is not None:
                arena = written(arena, self.seeds[t], 1)
            arenas.append(arena)
        return arenas

    def tail(self, arenas: list[Any]) -> tuple[list[Any], list[list[Any]]]:
        """The levels of the tail; `sums` holds the users beyond the first one, laid out as the results are."""
        envelope, lay = self.envelope, self.lay
        cuts = [
            [jnp.zeros(a.shape, a.dtype) for a in self.codes(p, size).cuts] if size else []
            for p, size in enumerate(envelope.tail)
        ]
        more = bool(envelope.tail_extra)
        sums = [
            jnp.zeros((size, *t.shape), t.dtype) if more and t.differentiable else jnp.zeros(())
            for t, size in zip(envelope.types, lay.arena, strict=True)
        ]

        def tile(state: Any, p: int, level: Any, start: Any, size: int) -> Any:
            del level
            arenas, cuts, sums = state
            results = envelope.pieces[p].results
            active = [(j, t) for j, t in enumerate(results) if t.differentiable]

            def adjoints(start: Any) -> list[Any]:
                own = self.adjoints(arenas, p, start, size)
                if not more:
                    return own
                return [
                    a + part(sums[lay.number(t)], lay.result[p][j] + start, size)
                    for a, (j, t) in zip(own, active, strict=True)
                ]

            begin = start - int(lay.offset[-1, p])
            arenas, found = self.launch(arenas, p, start, adjoints, size)
            axes = self.codes(p, size).cut_axes
            mine = [written(a, c, begin, x) for a, c, x in zip(cuts[p], found, axes, strict=True)]
            return arenas, [*cuts[:p], mine, *cuts[p + 1 :]], sums

        before = self.sum_extra if more else None
        state = (arenas, cuts, sums)
        arenas, cuts, _ = over_tail(lay, lay.reverse, self.tables, tile, state, True, before)
        return arenas, cuts

    def sum_extra(self, state: Any, p: int, number: Any) -> Any:
        """Add up the users beyond the first one of the results of a piece at a level."""
        arenas, cuts, sums = state
        lay = self.lay
        from_ = lay.reverse["tail extra", "from"].start
        to = lay.reverse["tail extra", "to"].start
        starts = lay.reverse["extra start",].start
        begin, end = self.tables[starts + number], self.tables[starts + number + 1]
        types = {t for t in self.envelope.pieces[p].results if t.differentiable}
        room = min(_CHUNK, self.envelope.tail_extra)
        offsets = arena_starts(lay.arena)

        def chunk(q: Any, sums: list[Any]) -> list[Any]:
            # The last chunk may begin earlier than asked, where the table ends.
            first = begin + q * room
            at = jnp.minimum(first, self.envelope.tail_extra - room)
            number = at + jnp.arange(room)
            mine = (number >= first) & (number < end)
            source, target = part(self.tables, from_ + at, room), part(self.tables, to + at, room)
            sums = list(sums)
            for type_ in types:
                t = lay.number(type_)
                local = target - offsets[t]
                own = mine & (local >= 0) & (local < lay.arena[t])
                terms = read(arenas[t], jnp.where(own, source, 0))
                place = jnp.where(own, local, lay.arena[t])
                sums[t] = sums[t].at[place].add(terms, mode="drop")
            return sums

        sums = lax.fori_loop(0, (end - begin + room - 1) // room, chunk, sums)
        return arenas, cuts, sums

    def of_carried(self, arenas: Sequence[Any]) -> list[Any]:
        """Adjoints of carried rows."""
        envelope, lay = self.envelope, self.lay
        found = []
        begins = arena_starts(envelope.carried)
        from_, to = (self.tables[lay.reverse["carried extra", n]] for n in ("from", "to"))
        for t, (type_, size) in enumerate(zip(envelope.types, envelope.carried, strict=True)):
            if not type_.differentiable or not size:
                found.append(None)
                continue
            adjoint = read(arenas[t], self.tables[lay.reverse["carried", t]])
            if envelope.carried_extra:
                own = (to >= begins[t]) & (to < begins[t + 1])
                terms = read(arenas[t], jnp.where(own, from_, 0))
                place = jnp.where(own, to - begins[t], size)
                adjoint = adjoint.at[place].add(terms, mode="drop")
            if envelope.wanted is None:
                begin = envelope.payload[t] if lay.joined[t] else 0
                adjoint = adjoint + part(self.seeds[t], begin, size)
            found.append(adjoint)
        return found

    def of_shared(self, head: list[list[Any]], tail: list[list[Any]]) -> list[Any]:
        """Adjoints of shared arrays: the cuts of all rows of each piece at once."""
        envelope, lay = self.envelope, self.lay
        found: list[Any] = [None] * len(self.shared)
        for p, size in enumerate(lay.rows):
            active = self.active[p][1]
            if not size or not any(active):
                continue
            codes = self.codes(p, size)
            cuts = [
                _joined([*(level[p][i] for level in head if level[p]), *tail[p][i : i + 1]], x)
                for i, x in enumerate(codes.cut_axes)
            ]
            shared = self.shared_of(p)
            used = codes.reads(codes.weights, len(shared))
            # Rows that the table does not have count for nothing.
            there = self.there(p)
            cuts = [_kept(v, there, x) for v, x in zip(cuts, codes.cut_axes, strict=True)]
            # Operands of these are copies of those of a row that is there.
            piece = envelope.pieces[p]
            fine = len(used) if codes.again or piece.loops else len(piece.rows)
            given = [
                None if not u else v if i < fine else _kept(v, there, x)
                for i, (v, u, x) in enumerate(zip(self.given[p], used, codes.axes, strict=True))
            ]
            own = [*shared, *given, *cuts]
            adjoints = iter(_evaluated(codes.weights, own, self.if_there(p, 0, size)))
            for s, moves in zip(envelope.shared[p], active, strict=True):
                if moves:
                    adjoint = next(adjoints)
                    if codes.again:
                        adjoint = jnp.where(jnp.any(there), adjoint, jnp.zeros_like(adjoint))
                    found[s] = adjoint if found[s] is None else found[s] + adjoint
        return found


def _joined(parts: list[Any], axis: int) -> Any:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def _evaluated(code: _jax.Jaxpr, given: Sequence[Any], there: Any = None) -> list[Any]:
    """Run code, if rows are there; inputs that it does not read may be None."""
    whole = [
        jnp.zeros(v.aval.shape, v.aval.dtype) if g is None else g
        for v, g in zip(code.invars, given, strict=True)
    ]
    return evaluated_if(there, code, whole)


def _kept(value: Any, there: Any, axis: int) -> Any:
    """A value with zeros in all rows but those that are there."""
    shape = [1] * value.ndim
    shape[axis] = value.shape[axis]
    return jnp.where(there.reshape(shape), value, jnp.zeros_like(value))


def reverse(
    lay: Layout,
    tables: Any,
    payload: Sequence[Any],
    shared: Sequence[Any],
    ran: Ran,
    active: Active,
    seeds: Sequence[Any],
    in_place: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Adjoints of carried rows by type, and of shared arrays; None where there is none."""
    return _Reverse(lay, tables, payload, shared, ran, active, seeds, in_place).run()
