"""The slice: a program's control as a separate program, which records what the values need.

ACRoBat (Fegade et al. 2023) splits a model into tensor operations that are batched and the control that is left, at
compile time. So does this, on jaxprs, and what is left is again a `Program`: integers mostly, which `native` runs a
lane at a time in tens of nanoseconds a call. Each value is the number of a row there. Where the code has a piece
(`pieces.py`), the slice appends one row to the lane's *record*: which piece, at which level, the rows it reads, and
what it reads of control (the *payload*). The lane's record is a tape that is threaded through all calls, as those of a
gradient do, and which carriers write in place.

A row's number is `call * results + place`, with as many results for each call as the piece with the most has: so the
call that made it, and its level, is found by a division. What a lane is given as an operand has a negative number.

A tape has a fixed room. A lane that records more goes on, and writes over the last row: control does not depend on what
is recorded. It gives the number of its calls, from which the host sees how much room it takes, and runs it again.

The code is traversed twice: how wide a row is and how many results a call has is known when all pieces have been
met.

Calls whose arguments are equal are recorded each time; `merged.py` finds them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.core.program import Function, Program, call_p, check_p
from lanewise.diff.tape import unfilled
from lanewise.dynamic.code import Branch, Call, Check, Code, Loop, Op, Plain, ops_in, read_inside
from lanewise.dynamic.control import VARIES, Control, control_of, is_expensive
from lanewise.dynamic.pieces import Kind, Pieces
from lanewise.dynamic.table import Piece
from lanewise.dynamic.words import words, words_in

# Words of a row before its operands: the piece, and the level.
HEAD = 2

_INT = np.dtype(np.int32)


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
    control = control_of(program, varying, loops)
    pieces = Pieces(control)
    _Slicer(control, pieces, _Shape(1, HEAD, 1, writes=False)).program()
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
    slicer = _Slicer(control, pieces, _Shape(results, width, room, writes=True))
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


@dataclass(frozen=True)
class _Shape:
    """Of a record: results of a call, words of a row, rows. The first walk writes nothing."""

    results: int
    width: int
    room: int
    writes: bool

    @property
    def tape(self) -> _jax.ShapedArray:
        return _jax.shaped((self.room, self.width), _INT)


@dataclass
class _Scope:
    """What is known at a place of the code being traced: values of control, rows, what is pending, and the record."""

    held: dict[int, Any]  # operands of the program, by number
    top: Any
    tape: Any
    control: dict[Var, Any] = field(default_factory=dict)
    rows: dict[Var, Any] = field(default_factory=dict)
    pending: dict[Var, Plain] = field(default_factory=dict)

    def inner(self, top: Any, tape: Any) -> _Scope:
        return _Scope(self.held, top, tape, dict(self.control), dict(self.rows), dict(self.pending))


class _Slicer:
    """One walk over a program's code."""

    def __init__(self, control: Control, pieces: Pieces, shape: _Shape) -> None:
        self.control, self.pieces, self.shape = control, pieces, shape
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
        rows = [_jax.shaped((), _INT) for v in code.ins if self.control.is_row(v)]
        return [_jax.shaped((), _INT), self.shape.tape, *values, *rows]

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
        scope, turn = _Scope(held, top, tape), iter(rest)
        scope.control.update((v, next(turn)) for v in code.ins if self.control.is_control(v))
        scope.rows.update((v, next(turn)) for v in code.ins if self.control.is_row(v))
        self.run(code, scope)
        values, rows = self._gives(name)
        return self.ends(scope, code, values, rows)

    def whole(self, *given: Any, again: bool) -> list[Any]:
        """The entry: makes the record, and gives the answers."""
        num, code = len(self.captured), self.entry
        held = dict(zip(self.captured, given[:num], strict=True))
        scope = _Scope(held, jnp.int32(0), unfilled(self.shape.tape))
        scope.control.update(
            (code.ins[i], x) for i, x in zip(self.params, given[num:], strict=True)
        )
        scope.rows.update(
            (v, jnp.int32(-1 - i)) for i, v in enumerate(code.ins) if self.control.is_row(v)
        )
        if again:
            outs = [_jax.new_var(a.aval) for a in code.outs]
            values, rows = self._gives(self.table.entry)
            self.bind_call(self.table.entry, code.ins, outs, values, rows, scope)
            atoms = [
                a if how == "same" else v
                for a, v, how in zip(code.outs, outs, self.answers, strict=True)
            ]
        else:
            self.run(code, scope)
            atoms = list(code.outs)
        made = [a for a, how in zip(atoms, self.answers, strict=True) if how != "control"]
        turn = iter(self.flush(scope, made))
        answers = [
            self.value(scope, a) if how == "control" else next(turn)
            for a, how in zip(atoms, self.answers, strict=True)
        ]
        return [scope.top, scope.tape, *answers]

    def ends(self, scope: _Scope, code: Code, values: list[int], rows: list[int]) -> list[Any]:
        """What code gives: the record, values, rows."""
        found = self.flush(scope, [code.outs[i] for i in rows])
        given = [self.value(scope, code.outs[i]) for i in values]
        return [scope.top, scope.tape, *given, *found]

    # -- operations ------------------------------------------------------------------------------

    def run(self, code: Code, scope: _Scope) -> None:
        for op in code.ops:
            _RULES[type(op)](self, op, scope)

    def plain(self, op: Plain, scope: _Scope) -> None:
        if any(map(self.control.is_control, op.outs)):
            outs = _jax.run_eqn(op.eqn, [self.value(scope, a) for a in op.eqn.invars])
            scope.control.update(zip(op.outs, outs, strict=True))
        scope.pending.update((v, op) for v in op.outs if self.control.is_row(v))

    def branch(self, op: Branch, scope: _Scope) -> None:
        values = [i for i, v in enumerate(op.outs) if self.control.is_control(v)]
        rows = [i for i, v in enumerate(op.outs) if self.control.is_row(v)]
        if not (values or rows or any(map(_checks, op.branches))):
            return
        self.flush(scope, self.early(scope, op.branches))

        def side(code: Code) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                inner = scope.inner(scope.top, scope.tape)
                self.run(code, inner)
                return self.ends(inner, code, values, rows)

            return run

        index = self.value(scope, op.index)
        outs = lax.switch(jnp.asarray(index, _INT), [side(code) for code in op.branches])
        self.bound(scope, op.outs, values, rows, outs)

    def loop(self, op: Loop, scope: _Scope) -> None:
        pairs = list(zip(op.body.ins, op.outs, strict=True))
        values = [i for i, (a, b) in enumerate(pairs) if any(map(self.control.is_control, (a, b)))]
        rows = [i for i, (a, b) in enumerate(pairs) if any(map(self.control.is_row, (a, b)))]
        if not (values or rows or _checks(op.body)):
            return
        first = self.flush(scope, [*(op.init[i] for i in rows), *self.early(scope, [op.body])])
        init = [self.value(scope, op.init[i]) for i in values]

        def test(state: Sequence[Any]) -> Any:
            inner = scope.inner(*state[:2])
            self.bound(inner, op.test.ins, values, (), state)
            self.run(op.test, inner)
            return self.value(inner, op.test.outs[0])

        def body(state: Sequence[Any]) -> list[Any]:
            inner = scope.inner(*state[:2])
            self.bound(inner, op.body.ins, values, rows, state)
            self.run(op.body, inner)
            return self.ends(inner, op.body, values, rows)

        state = [scope.top, scope.tape, *init, *first[: len(rows)]]
        self.bound(scope, op.outs, values, rows, lax.while_loop(test, body, state))

    def call(self, op: Call, scope: _Scope) -> None:
        values, rows = self._gives(op.name)
        wanted = any(self.control.is_control(v) or self.control.is_row(v) for v in op.outs)
        if wanted or _checks(self.table.functions[op.name]):
            self.bind_call(op.name, op.args, op.outs, values, rows, scope)

    def bind_call(
        self,
        name: str,
        args: Sequence[Atom],
        outs: Sequence[Var],
        values: list[int],
        rows: list[int],
        scope: _Scope,
    ) -> None:
        code = self.table.functions[name]
        pairs = list(zip(code.ins, args, strict=True))
        given = self.flush(scope, [a for v, a in pairs if self.control.is_row(v)])
        taken = [self.value(scope, a) for v, a in pairs if self.control.is_control(v)]
        avals = [code.outs[i].aval for i in values]
        found = call_p.bind(
            scope.top,
            scope.tape,
            *taken,
            *given,
            name=name,
            out_avals=(
                _jax.shaped((), _INT),
                self.shape.tape,
                *(_jax.shaped(a.shape, a.dtype) for a in avals),
                *[_jax.shaped((), _INT)] * len(rows),
            ),
            jvp_of=None,
        )
        self.bound(scope, outs, values, rows, found)

    def check(self, op: Check, scope: _Scope) -> None:
        check_p.bind(self.value(scope, op.holds), **op.eqn.params)

    # -- values and rows -------------------------------------------------------------------------

    def bound(
        self,
        scope: _Scope,
        variables: Sequence[Var],
        values: Sequence[int],
        rows: Sequence[int],
        given: Sequence[Any],
    ) -> None:
        """Bind variables to what control flow gives: the record, values, rows."""
        scope.top, scope.tape, *rest = given
        turn = iter(rest)
        scope.control.update((variables[i], next(turn)) for i in values)
        scope.rows.update((variables[i], next(turn)) for i in rows)

    def value(self, scope: _Scope, atom: Atom) -> Any:
        """The value of what decides control, of the type that it has."""
        if isinstance(atom, Literal):
            found = jnp.asarray(atom.val, atom.aval.dtype)
        elif atom in scope.control:
            found = scope.control[atom]
        else:
            same = self.control.same[atom]
            if same.op is None:
                found = scope.held[same.number]
            else:
                outs = _jax.run_eqn(same.op.eqn, [self.value(scope, a) for a in same.op.eqn.invars])
                found = outs[same.number]
            scope.control[atom] = found
        return lax.convert_element_type(found, atom.aval.dtype)

    def early(self, scope: _Scope, codes: Iterable[Code]) -> list[Var]:
        """What is pending, is matrix work and is read inside: it is done once, before."""
        read = {v for code in codes for v in read_inside(code)}
        wanted = [v for v in scope.pending if v in read and v not in scope.rows]
        return [
            v
            for v in wanted
            if any(
                is_expensive(op.eqn)
                for op in self.pieces.closure([v], scope.rows, scope.pending).ops
            )
        ]

    def flush(self, scope: _Scope, atoms: Sequence[Atom]) -> list[Any]:
        """The rows of some atoms; those that are not there are made by one piece."""
        wanted = list({_name(a): a for a in atoms if not _is_made(scope, a)}.values())
        made: dict[Any, Any] = {}
        if wanted:
            found = self.pieces.closure(wanted, scope.rows, scope.pending)
            before = self.pieces.hoisted(wanted, found)
            if before:
                self.flush(scope, before)
                wanted = [a for a in wanted if not _is_made(scope, a)]
                found = self.pieces.closure(wanted, scope.rows, scope.pending)
            if wanted:
                outs = [*wanted, *self.pieces.escaping(wanted, found)]
                rows = self.record(scope, self.pieces.kind(outs, found))
                made = dict(zip(map(_name, outs), rows, strict=True))
                scope.rows.update(
                    (a, row)
                    for a, row in zip(outs, rows, strict=True)
                    if self.control.is_row(a)  # type: ignore[misc]
                )
        return [scope.rows[a] if _is_made(scope, a) else made[_name(a)] for a in atoms]  # type: ignore[index]

    def record(self, scope: _Scope, kind: Kind) -> list[Any]:
        """Append a row to the record; gives the numbers of the piece's results."""
        shape, top = self.shape, scope.top
        number = top * shape.results
        rows = [number + j if j else number for j in range(len(kind.piece.results))]
        if not shape.writes:
            return rows
        operands = [scope.rows[v] for v in kind.rows]
        payload = [w for v in kind.payload for w in words(self.value(scope, v))]
        row = [jnp.int32(kind.number), self.level(scope, operands), *operands, *payload]
        new = jnp.stack(row)[None]
        scope.tape = lax.dynamic_update_slice(
            scope.tape, new, (top, jnp.int32(0)), allow_negative_indices=False
        )
        scope.top = top + 1
        return rows

    def level(self, scope: _Scope, operands: Sequence[Any]) -> Any:
        """One more than the highest level of what is read; 0 where no call made it."""
        found = jnp.int32(0)
        for row in operands:
            call = row if self.shape.results == 1 else lax.div(row, jnp.int32(self.shape.results))
            at = lax.dynamic_slice(
                scope.tape, (call, jnp.int32(1)), (1, 1), allow_negative_indices=False
            )[0, 0]
            above = at + 1
            if self.lane_rows:
                above = jnp.where(row < 0, 0, above)
            found = jnp.maximum(found, above)
        return found


_RULES: dict[type[Op], Callable[[_Slicer, Any, _Scope], None]] = {
    Plain: _Slicer.plain,
    Branch: _Slicer.branch,
    Loop: _Slicer.loop,
    Call: _Slicer.call,
    Check: _Slicer.check,
}


def _words_of(kind: Kind) -> int:
    return len(kind.rows) + sum(words_in(v.aval) for v in kind.payload)


def _name(atom: Atom) -> Any:
    return (id(atom),) if isinstance(atom, Literal) else atom


def _is_made(scope: _Scope, atom: Atom) -> bool:
    return isinstance(atom, Var) and atom in scope.rows


def _checks(code: Code) -> bool:
    return any(isinstance(op, Check) for op in ops_in(code))
