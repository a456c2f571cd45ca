"""What decides control, and what does not: four questions about a program's code.

*Same*: which variables are the same for all lanes and in all calls. An operand that lanes share is the same; so
is what is computed from such values alone, and a parameter that every call gets as one of these. Weights that a
recursion hands on are recognized as operands, by whatever path they arrive.

*Expensive*: which variables depend on matrix products and the like. If the test of a branch or loop does, control
cannot be run first. A branch that makes no call is then one equation, which JAX batches. Else it is an obstacle, and it
is named: the test, and the value that made it depend on data. With `loops`, a loop that makes no call is one equation
too, and so is a branch around such, which runs for the rows of a level together until the last has ended (`ending.py`).

*Control*: the tests of what is left, closed backwards over equations, carried values, parameters and results of calls.
The slice computes these.

*Rows*: what the answers need and the slice does not have, closed backwards. These are values, known to the slice by
number. An integer that decides control is read from there. A float that decides is computed twice, by the slice
and by the pieces, so that derivatives go through it.

The first two are forward, the others backward; each is a fixed point over all functions. None looks at the context of a
call: a parameter is control if any call needs it to be.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.core.primitives.facts import eqn_cost, is_safe
from lanewise.core.program import Program
from lanewise.dynamic.code import (
    Branch,
    Call,
    Check,
    Code,
    Loop,
    NotSliced,
    Op,
    Plain,
    Table,
    of_program,
    ops_in,
    variables,
)
from lanewise.dynamic.ending import may_not_end

# From this many operations in products on, an equation is not for the slice, which runs a lane at a time.
EXPENSIVE = 128.0
# The same for any operations.
EXPENSIVE_AT_ALL = 20_000.0


@dataclass(frozen=True)
class Same:
    """What a variable is for all lanes: operand `number` of the program, or result `number` of an equation."""

    op: Plain | None
    number: int


VARIES = Same(None, -1)


@dataclass(frozen=True, eq=False)
class Control:
    """What the questions came to. `expensive`: the equation that made a variable so."""

    table: Table
    same: dict[Var, Same]
    expensive: dict[Var, JaxprEqn]
    control: frozenset[Var]
    rows: frozenset[Var]

    def is_same(self, atom: Atom) -> bool:
        return isinstance(atom, Literal) or self.same.get(atom, VARIES) is not VARIES

    def is_row(self, atom: Atom) -> bool:
        """Whether the slice holds the number of a row for it."""
        return isinstance(atom, Var) and atom in self.rows

    def is_control(self, atom: Atom) -> bool:
        """Whether the slice holds its value, other than as an operand."""
        return isinstance(atom, Var) and atom in self.control and not self.is_same(atom)

    def read_from_slice(self, atom: Atom) -> bool:
        """Whether pieces are given its value by the slice."""
        return self.is_control(atom) and not _jax.has_tangent(atom.aval)


@functools.lru_cache(maxsize=256)
def control_of(program: Program, varying: tuple[bool, ...], loops: bool = False) -> Control:
    """The analysis of a program for lanes that differ in these operands; `loops`: those on values may be equations.

    Raises `NotSliced`.
    """
    table = of_program(program)
    expensive = _expensive(table)
    functions = {name: _settled(code, expensive, loops) for name, code in table.functions.items()}
    table = replace(table, functions=functions)
    same = _same(table, varying)
    control = _control(table)
    rows = _rows(table, same, control)
    return Control(table, same, expensive, frozenset(control), frozenset(rows))


def _each(changes: Iterable[bool]) -> bool:
    """Whether one of them changed something; all are made."""
    return sum(changes) > 0


def _fixed_point(table: Table, visit: Callable[[Code], bool]) -> None:
    """Visit the functions until nothing changes."""
    while _each(visit(code) for code in table.functions.values()):
        pass


# -- expensive -------------------------------------------------------------------------------------------


def is_expensive(eqn: JaxprEqn) -> bool:
    """Whether an equation is matrix work, or as much work."""
    cost = eqn_cost(eqn)
    return cost.products >= EXPENSIVE or cost.operations >= EXPENSIVE_AT_ALL


def _expensive(table: Table) -> dict[Var, JaxprEqn]:
    found: dict[Var, JaxprEqn] = {}

    def first(atoms: Sequence[Any]) -> JaxprEqn | None:
        return next((found[a] for a in variables(atoms) if a in found), None)

    def mark(outs: Sequence[Var], why: Sequence[JaxprEqn | None]) -> bool:
        changed = False
        for var, eqn in zip(outs, why, strict=True):
            if eqn is not None and var not in found:
                found[var] = eqn
                changed = True
        return changed

    def visit(code: Code) -> bool:
        return _each(of_op(op) for op in code.ops)

    def of_op(op: Op) -> bool:
        if isinstance(op, Plain):
            why = first(op.eqn.invars) or (op.eqn if is_expensive(op.eqn) else None)
            return mark(op.outs, [why] * len(op.outs))
        if isinstance(op, Branch):
            changed = _each(visit(code) for code in op.branches)
            taken = first([op.index])
            outs = zip(*(code.outs for code in op.branches), strict=True)
            return mark(op.outs, [taken or first(each) for each in outs]) or changed
        if isinstance(op, Loop):
            changed = visit(op.test) | visit(op.body)
            goes_on = first(op.test.outs)
            each = [goes_on or first(pair) for pair in zip(op.init, op.body.outs, strict=True)]
            changed |= mark(op.test.ins, each) | mark(op.body.ins, each)
            return mark(op.outs, each) or changed
        if isinstance(op, Call):
            callee = table.functions[op.name]
            changed = mark(callee.ins, [first([a]) for a in op.args])
            return mark(op.outs, [first([a]) for a in callee.outs]) or changed
        return False

    _fixed_point(table, visit)
    return found


def _settled(code: Code, expensive: dict[Var, JaxprEqn], loops: bool) -> Code:
    """The code with branches and loops that stay one equation as such. Raises where control depends on values."""

    def why(atoms: Sequence[Any]) -> JaxprEqn | None:
        return next((expensive[a] for a in variables(atoms) if a in expensive), None)

    ops: list[Op] = []
    for op in code.ops:
        if isinstance(op, Branch):
            reason = why([op.index])
            one = op.whole is not None and (loops or not may_not_end(op.whole.eqn))
            if op.whole is not None and (one if reason is not None else _selects(op)):
                ops.append(op.whole)
                continue
            _refuse("branch", op.line, reason)
            branches = tuple(_settled(each, expensive, loops) for each in op.branches)
            op = replace(op, branches=branches)
        elif isinstance(op, Loop):
            reason = why(op.test.outs)
            if loops and reason is not None and op.whole is not None:
                ops.append(op.whole)
                continue
            _refuse("loop", op.line, reason)
            if any(isinstance(each, Call | Check) for each in ops_in(op.test)):
                raise NotSliced(f"the test of the loop at {op.line} makes a call, or asserts")
            test, body = (_settled(each, expensive, loops) for each in (op.test, op.body))
            op = replace(op, test=test, body=body)
        elif isinstance(op, Check):
            _refuse("assertion", op.line, why([op.holds]))
        ops.append(op)
    return replace(code, ops=tuple(ops))


def _refuse(what: str, line: str, reason: JaxprEqn | None) -> None:
    if reason is not None:
        made = ", ".join(str(v.aval.str_short()) for v in reason.outvars)
        raise NotSliced(
            f"control depends on values: the test of the {what} at {line} needs {made} of {reason.primitive.name} at"
            f" {_jax.user_line(reason)}"
        )


def _selects(op: Branch) -> bool:
    """Whether a branch is as cheap as a choice between what its sides give, which is finite if their operands are."""
    inner = [each for code in op.branches for each in code.ops]
    return all(isinstance(each, Plain) and is_safe(each.eqn) for each in inner)


# -- same ------------------------------------------------------------------------------------------------


def _same(table: Table, varying: Sequence[bool]) -> dict[Var, Same]:
    found: dict[Var, Same] = {}

    def of(atom: Atom) -> Same | None:
        """What is known of an atom; None for nothing yet."""
        return VARIES if isinstance(atom, Literal) else found.get(atom)

    def join(var: Var, *given: Same | None) -> bool:
        old = found.get(var)
        new = old
        for each in given:
            if each is not None:
                new = each if new is None or new == each else VARIES
        if new is not None and new != old:
            found[var] = new
            return True
        return False

    def visit(code: Code) -> bool:
        return _each(of_op(op) for op in code.ops)

    def of_op(op: Op) -> bool:
        if isinstance(op, Plain):
            given = [of(a) for a in variables(op.eqn.invars)]
            if VARIES in given:
                return _each(join(var, VARIES) for var in op.outs)
            if None in given:
                return False
            return _each(join(var, Same(op, i)) for i, var in enumerate(op.outs))
        if isinstance(op, Branch):
            changed = _each(visit(code) for code in op.branches)
            outs = zip(*(code.outs for code in op.branches), strict=True)
            return (
                _each(join(v, *map(of, each)) for v, each in zip(op.outs, outs, strict=True))
                or changed
            )
        if isinstance(op, Loop):
            changed = visit(op.test) | visit(op.body)
            rows = zip(op.init, op.body.outs, op.test.ins, op.body.ins, op.outs, strict=True)
            for init, after, *bound in rows:
                changed |= _each(join(v, of(init), of(after)) for v in bound)
            return changed
        if isinstance(op, Call):
            callee = table.functions[op.name]
            changed = _each(join(v, of(a)) for v, a in zip(callee.ins, op.args, strict=True))
            pairs = zip(op.outs, callee.outs, strict=True)
            return _each(join(v, of(a)) for v, a in pairs) or changed
        return False

    entry = table.functions[table.entry]
    for i, (var, varies) in enumerate(zip(entry.ins, varying, strict=True)):
        found[var] = VARIES if varies else Same(None, i)
    _fixed_point(table, visit)
    return found


# -- control and rows ------------------------------------------------------------------------------------


def _control(table: Table) -> set[Var]:
    return _needed(table, lambda var: True, (), deciding=True)


def _rows(table: Table, same: dict[Var, Same], control: set[Var]) -> set[Var]:
    def may_be(var: Var) -> bool:
        known = same.get(var, VARIES) is not VARIES
        return not known and (var not in control or _jax.has_tangent(var.aval))

    return _needed(table, may_be, table.functions[table.entry].outs, deciding=False)


def _needed(
    table: Table, may_be: Callable[[Var], bool], roots: Sequence[Any], *, deciding: bool
) -> set[Var]:
    """What `roots` depend on, of the variables that may be; `deciding`: what decides control is needed too."""
    found: set[Var] = set()

    def need(atoms: Sequence[Any]) -> bool:
        before = len(found)
        found.update(filter(may_be, variables(atoms)))
        return len(found) > before

    def visit(code: Code) -> bool:
        return _each(of_op(op) for op in reversed(code.ops))

    def of_loop(op: Loop, wanted: Sequence[bool]) -> bool:
        changed = deciding and need(op.test.outs) | visit(op.test)
        bound = zip(op.test.ins, op.body.ins, wanted, strict=True)
        wanted = [a in found or b in found or w for a, b, w in bound]
        seen = (op.test.ins, op.outs) if deciding else ()
        for atoms in (op.init, op.body.outs, op.body.ins, *seen):
            changed |= need(list(itertools.compress(atoms, wanted)))
        return changed | visit(op.body)

    def of_call(op: Call, wanted: Sequence[bool]) -> bool:
        callee = table.functions[op.name]
        changed = need(list(itertools.compress(callee.outs, wanted)))
        if deciding:
            # What a function gives as control to one call, it gives to all.
            given = [isinstance(a, Var) and a in found for a in callee.outs]
            changed |= need(list(itertools.compress(op.outs, given)))
        taken = [var in found for var in callee.ins]
        return need(list(itertools.compress(op.args, taken))) or changed

    def of_op(op: Op) -> bool:
        wanted = [var in found for var in op.outs]
        if isinstance(op, Plain):
            return any(wanted) and need(op.eqn.invars)
        if isinstance(op, Branch):
            changed = deciding and need([op.index])
            for code in op.branches:
                changed |= need(list(itertools.compress(code.outs, wanted)))
                changed |= visit(code)
            return changed
        if isinstance(op, Loop):
            return of_loop(op, wanted)
        if isinstance(op, Call):
            return of_call(op, wanted)
        return deciding and need([op.holds])

    need(roots)
    _fixed_point(table, visit)
    return found
