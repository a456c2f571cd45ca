"""The slice: a program's control as a separate program, which records what the values need.

ACRoBat (Fegade et al. 2023) splits a model into tensor operations that are batched and the control that is left, at
compile time. So does this, on jaxprs, and what is left is again a `Program`: integers mostly, which `native` runs a
lane at a time in tens of nanoseconds a call. Each value is the number of a row there. Where the code has a piece
(`pieces.py`), the slice appends one row to the lane's *record*: which piece, at which level, the rows it reads, and
what it reads of control (the *payload*). The lane's record is a tape that is threaded through all calls, as those of a
gradient do, and which carriers write in place.

A tape has a fixed room. A lane that records more goes on, and writes over the last row: control does not depend on what
is recorded. It gives the number of its calls, from which the host sees how much room it takes, and runs it again.

The code is traversed twice: how wide a row is and how many results a call has is known when all pieces have been
met. The first walk is made again where what it believed of levels (`waits.py`) turns out otherwise.

Calls whose arguments are equal are recorded each time; `merged.py` finds them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.core.program import Function, Program, call_p, check_p
from lanewise.diff.tape import unfilled
from lanewise.dynamic.code import Branch, Call, Check, Code, Loop, Op, Plain, ops_in, read_inside
from lanewise.dynamic.control import VARIES, Control, control_of, is_expensive
from lanewise.dynamic.pieces import Kind, Pieces, name_of, type_of
from lanewise.dynamic.rows import HEAD, INT, Known, Row, Shape, record
from lanewise.dynamic.table import Piece
from lanewise.dynamic.waits import INPUT, Facts, Level, joined
from lanewise.dynamic.words import words, words_in


@dataclass(frozen=True, eq=False)
class Sliced:
    """A slice. `program` takes operands `captured` and `constants`, then those of `params`, which differ by lane.

    It gives how many calls a lane made and its record, then the answers: rows for those of `is_row`, else values.
    """

    program: Program
    control: Control
    kinds: tuple[Kind, ...]
    captured: tuple[int, ...]
    constants: tuple[Any, ...]
    params: tuple[int, ...]
    is_row: tuple[bool, ...]
    results: int
    width: int
    room: int

    @property
    def reads(self) -> frozenset[int]:
        """The program's operands whose values decide."""
        return frozenset((*self.captured, *self.params))

    @functools.cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(kind.piece for kind in self.kinds)

    @functools.cached_property
    def shared(self) -> tuple[int, ...]:
        """The program's operands that pieces share."""
        return tuple(sorted({i for kind in self.kinds for i in kind.shared}))

    @functools.cached_property
    def shared_of(self) -> tuple[tuple[int, ...], ...]:
        """For each piece, which of these it takes."""
        place = {number: i for i, number in enumerate(self.shared)}
        return tuple(tuple(place[i] for i in kind.shared) for kind in self.kinds)

    @property
    def lane_rows(self) -> tuple[int, ...]:
        """The program's operands that are rows."""
        entry = self.control.table.functions[self.control.table.entry]
        return tuple(i for i, var in enumerate(entry.ins) if self.control.is_row(var))


@functools.lru_cache(maxsize=256)
def pieces_of(program: Program, varying: tuple[bool, ...], loops: bool = False) -> Pieces:
    """All pieces of a program for lanes that differ in these operands, met in a first walk. Raises `NotSliced`."""
    control, facts = control_of(program, varying, loops), Facts()
    while True:
        pieces = Pieces(control, facts)
        _Slicer(control, pieces, Shape(1, HEAD, 1, writes=False)).program()
        if not facts.again():
            return pieces


@functools.lru_cache(maxsize=256)
def sliced(program: Program, varying: tuple[bool, ...], room: int, loops: bool = False) -> Sliced:
    """The slice of a program for lanes that differ in these operands, with room for `room` calls.

    Raises `NotSliced`.
    """
    pieces = pieces_of(program, varying, loops)
    control, kinds = pieces.control, tuple(pieces.kinds.values())
    results = max((len(k.piece.results) for k in kinds), default=1)
    width = max((HEAD + _words_of(k) for k in kinds), default=HEAD)
    slicer = _Slicer(control, pieces, Shape(results, width, room, writes=True))
    made, constants = slicer.program()
    return Sliced(
        made,
        control,
        kinds,
        slicer.captured,
        tuple(constants),
        slicer.params,
        tuple(how != "control" for how in slicer.answers),
        results,
        width,
        room,
    )


class _Slicer:
    """One walk over a program's code."""

    def __init__(self, control: Control, pieces: Pieces, shape: Shape) -> None:
        self.control, self.pieces, self.shape = control, pieces, shape
        self.facts = pieces.facts
        self.table = control.table
        self.entry = self.table.functions[self.table.entry]
        self.calls = [op for op in self.table.all_ops() if isinstance(op, Call)]
        self.captured = tuple(sorted(self._captured()))
        self.params = tuple(i for i, v in enumerate(self.entry.ins) if control.is_control(v))
        self.answers = [self._answer(a) for a in self.entry.outs]
        self.lane_rows = any(control.is_row(v) for v in self.entry.ins)

    def _captured(self) -> set[int]:
        """Operands that lanes share, and the slice reads."""
        found: set[int] = set()

        def visit(atom: Atom) -> None:
            same = VARIES if isinstance(atom, Literal) else self.control.same.get(atom, VARIES)
            if same is VARIES:
                return
            if same.op is None:
                found.add(same.number)
            else:
                for each in same.op.eqn.invars:
                    visit(each)

        for var in self.control.control:
            visit(var)
        return found

    def _answer(self, atom: Atom) -> str:
        """Where an answer is from: the slice, a row that the entry gives, or a row made of shared operands alone."""
        if self.control.read_from_slice(atom):
            return "control"
        return "row" if self.control.is_row(atom) else "same"

    # -- functions -------------------------------------------------------------------------------

    def program(self) -> tuple[Program, list[Any]]:
        """The slice and its constants."""
        constants: list[Any] = []
        functions = {}
        avals = [self.entry.ins[i].aval for i in self.captured]
        called = {call.name for call in self.calls}
        jobs: list[tuple[str, Callable[..., list[Any]], list[Any]]] = [
            (name, functools.partial(self.function, name), self._params(self.table.functions[name]))
            for name in self.table.functions
            if name in called
        ]
        name = f"slice of {self.table.entry}"
        whole = functools.partial(self.whole, again=self.table.entry in called)
        jobs.insert(0, (name, whole, [self.entry.ins[i].aval for i in self.params]))
        for each, run, params in jobs:
            traced = _jax.trace(run, [*avals, *params])
            first = len(avals) + len(constants)
            constants += traced.captures
            held = (*range(first, first + len(traced.captures)), *range(len(avals)))
            functions[each] = Function(each, traced.jaxpr, held)
        return Program(functions, name, len(avals) + len(constants)), constants

    def _params(self, code: Code) -> list[Any]:
        """The types that a function's slice takes beside what is captured."""
        values = [v.aval for v in code.ins if self.control.is_control(v)]
        rows = [_jax.shaped((), INT) for v in code.ins if self.control.is_row(v)]
        return [_jax.shaped((), INT), self.shape.tape, *values, *rows]

    def _gives(self, name: str) -> tuple[list[int], list[int]]:
        """The results that a function's slice gives as values, and as rows."""
        uses = [call.outs for call in self.calls if call.name == name]
        if name == self.table.entry:
            uses.append(self.entry.outs)  # type: ignore[arg-type]
        num = range(len(self.table.functions[name].outs))
        values = [i for i in num if any(self.control.is_control(u[i]) for u in uses)]
        return values, [i for i in num if any(self.control.is_row(u[i]) for u in uses)]

    def function(self, name: str, *given: Any) -> list[Any]:
        """The slice of a function: top, tape, values and rows to the same."""
        code, num = self.table.functions[name], len(self.captured)
        held = dict(zip(self.captured, given[:num], strict=True))
        top, tape, *rest = given[num:]
        known, turn = Known(held, top, tape), iter(rest)
        known.control.update((v, next(turn)) for v in code.ins if self.control.is_control(v))
        params = [v for v in code.ins if self.control.is_row(v)]
        levels = dict(zip(params, self.facts.levels(params, {}), strict=True))
        known.rows.update((v, Row(next(turn), level)) for v, level in levels.items())
        self.run(code, known)
        values, rows = self._gives(name)
        outs, found = self.ends(known, code, values, rows)
        self.facts.refute({(name, i): x for i, x in zip(rows, found, strict=True)}, levels)
        return outs

    def whole(self, *given: Any, again: bool) -> list[Any]:
        """The entry: makes the record, and gives the answers."""
        num, code = len(self.captured), self.entry
        held = dict(zip(self.captured, given[:num], strict=True))
        known = Known(held, jnp.int32(0), unfilled(self.shape.tape))
        known.control.update(
            (code.ins[i], x) for i, x in zip(self.params, given[num:], strict=True)
        )
        known.rows.update(
            (v, Row(jnp.int32(-1 - i), INPUT))
            for i, v in enumerate(code.ins)
            if self.control.is_row(v)
        )
        if again:
            outs = [_jax.new_var(a.aval) for a in code.outs]
            values, rows = self._gives(self.table.entry)
            self.bind_call(self.table.entry, code.ins, outs, values, rows, known)
            atoms = [
                a if how == "same" else v
                for a, v, how in zip(code.outs, outs, self.answers, strict=True)
            ]
        else:
            self.run(code, known)
            atoms = list(code.outs)
        made = [a for a, how in zip(atoms, self.answers, strict=True) if how != "control"]
        turn = iter(self.flush(known, made))
        answers = [
            self.value(known, a) if how == "control" else next(turn).number
            for a, how in zip(atoms, self.answers, strict=True)
        ]
        return [known.top, known.tape, *answers]

    def ends(
        self, known: Known, code: Code, values: list[int], rows: list[int]
    ) -> tuple[list[Any], list[Level]]:
        """What code gives: the record, values, rows; and the levels of these."""
        found = self.flush(known, [code.outs[i] for i in rows])
        given = [self.value(known, code.outs[i]) for i in values]
        outs = [known.top, known.tape, *given, *(row.number for row in found)]
        return outs, [row.level for row in found]

    # -- operations ------------------------------------------------------------------------------

    def run(self, code: Code, known: Known) -> None:
        for op in code.ops:
            _RULES[type(op)](self, op, known)

    def plain(self, op: Plain, known: Known) -> None:
        if any(map(self.control.is_control, op.outs)):
            outs = _jax.run_eqn(op.eqn, [self.value(known, a) for a in op.eqn.invars])
            known.control.update(zip(op.outs, outs, strict=True))
        known.pending.update((v, op) for v in op.outs if self.control.is_row(v))

    def branch(self, op: Branch, known: Known) -> None:
        values = [i for i, v in enumerate(op.outs) if self.control.is_control(v)]
        rows = [i for i, v in enumerate(op.outs) if self.control.is_row(v)]
        if not (values or rows or any(map(_checks, op.branches))):
            return
        self.flush(known, self.early(known, op.branches))
        levels: list[list[Level]] = []

        def side(code: Code) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                inner = known.inner(known.top, known.tape)
                self.run(code, inner)
                outs, found = self.ends(inner, code, values, rows)
                levels.append(found)
                return outs

            return run

        index = self.value(known, op.index)
        outs = lax.switch(jnp.asarray(index, INT), [side(code) for code in op.branches])
        self.bound(known, op.outs, values, rows, outs, joined(levels, known.levels))

    def loop(self, op: Loop, known: Known) -> None:
        pairs = list(zip(op.body.ins, op.outs, strict=True))
        values = [i for i, (a, b) in enumerate(pairs) if any(map(self.control.is_control, (a, b)))]
        rows = [i for i, (a, b) in enumerate(pairs) if any(map(self.control.is_row, (a, b)))]
        if not (values or rows or _checks(op.body)):
            return
        first = self.flush(known, [*(op.init[i] for i in rows), *self.early(known, [op.body])])
        first = first[: len(rows)]
        init = [self.value(known, op.init[i]) for i in values]
        carried = [op.body.ins[i] for i in rows]
        around = known.levels
        before = {v: row.level for v, row in zip(carried, first, strict=True)}
        levels = self.facts.carried(before, around)

        def test(state: Sequence[Any]) -> Any:
            inner = known.inner(*state[:2])
            self.bound(inner, op.test.ins, values, (), state, ())
            self.run(op.test, inner)
            return self.value(inner, op.test.outs[0])

        def body(state: Sequence[Any]) -> list[Any]:
            inner = known.inner(*state[:2])
            self.bound(inner, op.body.ins, values, rows, state, levels)
            self.run(op.body, inner)
            outs, found = self.ends(inner, op.body, values, rows)
            self.facts.refute(dict(zip(carried, found, strict=True)), around)
            return outs

        state = [known.top, known.tape, *init, *(row.number for row in first)]
        outs = lax.while_loop(test, body, state)
        self.bound(known, op.outs, values, rows, outs, levels)

    def call(self, op: Call, known: Known) -> None:
        values, rows = self._gives(op.name)
        wanted = any(self.control.is_control(v) or self.control.is_row(v) for v in op.outs)
        if wanted or _checks(self.table.functions[op.name]):
            self.bind_call(op.name, op.args, op.outs, values, rows, known)

    def bind_call(
        self,
        name: str,
        args: Sequence[Atom],
        outs: Sequence[Var],
        values: list[int],
        rows: list[int],
        known: Known,
    ) -> None:
        code = self.table.functions[name]
        pairs = list(zip(code.ins, args, strict=True))
        params = [v for v in code.ins if self.control.is_row(v)]
        given = self.flush(known, [a for v, a in pairs if self.control.is_row(v)])
        around = {v: row.level for v, row in zip(params, given, strict=True)}
        self.facts.refute(around, {})
        taken = [self.value(known, a) for v, a in pairs if self.control.is_control(v)]
        avals = [code.outs[i].aval for i in values]
        found = call_p.bind(
            known.top,
            known.tape,
            *taken,
            *(row.number for row in given),
            name=name,
            out_avals=(
                _jax.shaped((), INT),
                self.shape.tape,
                *(_jax.shaped(a.shape, a.dtype) for a in avals),
                *[_jax.shaped((), INT)] * len(rows),
            ),
            jvp_of=None,
        )
        levels = self.facts.levels([(name, i) for i in rows], around)
        self.bound(known, outs, values, rows, found, levels)

    def check(self, op: Check, known: Known) -> None:
        check_p.bind(self.value(known, op.holds), **op.eqn.params)

    # -- values and rows -------------------------------------------------------------------------

    def bound(
        self,
        known: Known,
        variables: Sequence[Var],
        values: Sequence[int],
        rows: Sequence[int],
        given: Sequence[Any],
        levels: Sequence[Level],
    ) -> None:
        """Bind variables to what control flow gives: the record, values, rows of these levels."""
        known.top, known.tape, *rest = given
        turn = iter(rest)
        known.control.update((variables[i], next(turn)) for i in values)
        known.rows.update(
            (variables[i], Row(next(turn), level)) for i, level in zip(rows, levels, strict=True)
        )

    def value(self, known: Known, atom: Atom) -> Any:
        """The value of what decides control, of the type that it has."""
        if isinstance(atom, Literal):
            found = jnp.asarray(atom.val, atom.aval.dtype)
        elif atom in known.control:
            found = known.control[atom]
        else:
            same = self.control.same[atom]
            if same.op is None:
                found = known.held[same.number]
            else:
                outs = _jax.run_eqn(same.op.eqn, [self.value(known, a) for a in same.op.eqn.invars])
                found = outs[same.number]
            known.control[atom] = found
        return lax.convert_element_type(found, atom.aval.dtype)

    def early(self, known: Known, codes: Iterable[Code]) -> list[Var]:
        """What is pending, is matrix work and is read inside: it is done once, before."""
        read = {v for code in codes for v in read_inside(code)}
        wanted = [v for v in known.pending if v in read and v not in known.rows]
        return [
            v
            for v in wanted
            if any(
                is_expensive(op.eqn)
                for op in self.pieces.closure([v], known.rows, known.pending).ops
            )
        ]

    def flush(self, known: Known, atoms: Sequence[Atom]) -> list[Row]:
        """The rows of some atoms; those that are not there are made by as few pieces as do not wait for each other."""
        made: dict[Any, Row] = {}
        for part in self.pieces.parts(atoms, known):
            self.make(known, part, made)
        return [known.rows[a] if _is_made(known, a) else made[name_of(a)] for a in atoms]  # type: ignore[index]

    def make(self, known: Known, atoms: list[Atom], made: dict[Any, Row]) -> None:
        """Record one piece that gives these; or their terms, and additions."""
        terms = self.pieces.terms(atoms, known)
        if terms is not None:
            self.flush(known, terms)
            made.update((atom, self.added(known, atom)) for atom in atoms)
            return
        found = self.pieces.closure(atoms, known.rows, known.pending)
        before = self.pieces.hoisted(atoms, found)
        if before:
            self.flush(known, before)
            atoms = [a for a in atoms if not _is_made(known, a)]
            found = self.pieces.closure(atoms, known.rows, known.pending)
        if not atoms:
            return
        outs = [*atoms, *self.pieces.escaping(atoms, found)]
        kind = self.pieces.kind(outs, found)
        rows = self.record(known, kind, [known.rows[v] for v in kind.rows])
        for atom, row in zip(outs, rows, strict=True):
            made[name_of(atom)] = row
            if self.control.is_row(atom):
                known.rows[atom] = row  # type: ignore[index]

    def added(self, known: Known, atom: Any) -> Row:
        """The row of a sum whose terms are rows."""
        if atom not in known.rows:
            read = [self.added(known, a) for a in known.pending[atom].eqn.invars]
            (known.rows[atom],) = self.record(known, self.pieces.addition(type_of(atom)), read)
        return known.rows[atom]

    def record(self, known: Known, kind: Kind, read: Sequence[Row]) -> list[Row]:
        """Append a row to the record; gives the piece's results."""
        results = len(kind.piece.results)
        payload = [w for v in kind.payload for w in words(self.value(known, v))]
        return record(known, self.shape, kind.number, results, read, payload, self.lane_rows)


_RULES: dict[type[Op], Callable[[_Slicer, Any, Known], None]] = {
    Plain: _Slicer.plain,
    Branch: _Slicer.branch,
    Loop: _Slicer.loop,
    Call: _Slicer.call,
    Check: _Slicer.check,
}


def _words_of(kind: Kind) -> int:
    return len(kind.rows) + sum(words_in(v.aval) for v in kind.payload)


def _is_made(known: Known, atom: Atom) -> bool:
    return isinstance(atom, Var) and atom in known.rows


def _checks(code: Code) -> bool:
    return any(isinstance(op, Check) for op in ops_in(code))
