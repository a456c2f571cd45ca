"""A program's code with its control flow apart: what the slice is made from.

A `Program` is jaxprs that hold each other. Here it is one tree for each function: plain equations, branches, loops,
calls and assertions. What JAX wraps (`jit` and friends, programs that do not recurse) is written out; a recursive
program called inside joins the table. Every variable is renamed, so that it stands for one place of the code, and what
an analysis finds is a set of variables. Branches and the bodies of loops read variables around them as they are; only
functions and loops have variables that are bound anew.

Typed PRNG keys are the integers that they are made of: an equation on keys is one on these, which wraps them inside. So
keys are rows and decide control like anything else.

Captured values are parameters that every call hands on: then there is one way in which a function reads what is
outside, and `control.py` finds out which parameters are the same in all calls.

A branch or loop that makes no call has a `whole`: itself as one equation, to be run for many rows together. Where its
test depends on values, that is how it runs. A loop with a test for each element of an inner `jax.vmap`, or one inside a
`scan`, is taken apart like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.equations import inside, is_throw, sees_batch, tests_many, with_one_test
from lanewise.core.accumulate import accumulate_p
from lanewise.core.errors import LanewiseError
from lanewise.core.primitives.facts import is_control, is_wrapper
from lanewise.core.program import Function, Program, call_p, check_p, codes_inside, program_p
from lanewise.dynamic.ending import may_not_end


class NotSliced(LanewiseError):
    """What keeps a program from being run by levels, in words."""


@dataclass(frozen=True, eq=False)
class Plain:
    """An equation."""

    eqn: JaxprEqn

    @property
    def outs(self) -> tuple[Var, ...]:
        return tuple(self.eqn.outvars)


@dataclass(frozen=True, eq=False)
class Branch:
    """One of several codes, by an index; `line` is the user's."""

    index: Atom
    branches: tuple[Code, ...]
    outs: tuple[Var, ...]
    whole: Plain | None
    line: str


@dataclass(frozen=True, eq=False)
class Loop:
    """`body` while `test` holds; both take what is carried."""

    test: Code
    body: Code
    init: tuple[Atom, ...]
    outs: tuple[Var, ...]
    whole: Plain | None
    line: str


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a function of the table."""

    name: str
    args: tuple[Atom, ...]
    outs: tuple[Var, ...]
    line: str


@dataclass(frozen=True, eq=False)
class Check:
    """An assertion."""

    holds: Atom
    eqn: JaxprEqn
    outs: tuple[Var, ...] = ()

    @property
    def line(self) -> str:
        return _jax.user_line(self.eqn)


Op = Plain | Branch | Loop | Call | Check


@dataclass(frozen=True, eq=False)
class Code:
    """Straight code: what it binds, what it does, what it gives."""

    ins: tuple[Var, ...]
    ops: tuple[Op, ...]
    outs: tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """All functions; the entry's parameters are the program's operands."""

    functions: dict[str, Code]
    entry: str

    def all_ops(self) -> Iterator[Op]:
        for code in self.functions.values():
            yield from ops_in(code)


def ops_in(code: Code) -> Iterator[Op]:
    """Every operation of a code, those in its branches and loops included."""
    for op in code.ops:
        yield op
        for inner in codes_in(op):
            yield from ops_in(inner)


def codes_in(op: Op) -> tuple[Code, ...]:
    """The codes that an operation holds."""
    if isinstance(op, Branch):
        return op.branches
    return (op.test, op.body) if isinstance(op, Loop) else ()


def variables(atoms: Sequence[Any]) -> list[Var]:
    return [a for a in atoms if isinstance(a, Var)]


def reads(op: Op) -> list[Var]:
    """The variables that an operation reads itself, not in the codes that it holds."""
    if isinstance(op, Plain):
        return variables(op.eqn.invars)
    if isinstance(op, Branch):
        return variables([op.index])
    if isinstance(op, Loop):
        return variables(op.init)
    return variables(op.args if isinstance(op, Call) else [op.holds])


def read_inside(code: Code) -> set[Var]:
    """All variables that a code, or what it holds, reads or gives."""
    found = set(variables(code.outs))
    for op in ops_in(code):
        found.update(reads(op))
        for inner in codes_in(op):
            found.update(variables(inner.outs))
    return found


def of_program(program: Program) -> Table:
    """The code of a program. Raises `NotSliced`."""
    if sees_batch(program):
        raise NotSliced("it holds code that looks at the whole batch, which a level is not")
    return _Builder().table(program)


class _Builder:
    """The walk: functions made so far, those that are wanted, and the operations of the code being written."""

    def __init__(self) -> None:
        self.functions: dict[str, Code] = {}
        self.names: dict[tuple[int, str], str] = {}
        self.wanted: list[tuple[Program, Function]] = []
        self.ops: list[Op] = []

    def table(self, program: Program) -> Table:
        entry = self.named(program, program.functions[program.entry])
        while self.wanted:
            self.function(*self.wanted.pop())
        return Table(self.functions, entry)

    def named(self, program: Program, function: Function) -> str:
        """The name of a function; the first time, asks for its code."""
        key = (id(program), function.name)
        if key not in self.names:
            taken = sum(name.split("~")[0] == function.name for name in self.names.values())
            self.names[key] = f"{function.name}~{taken}" if taken else function.name
            self.wanted.append((program, function))
        return self.names[key]

    def function(self, program: Program, function: Function) -> None:
        held = [_variable(aval) for aval in program.capture_avals]
        params = [_variable(var.aval) for var in function.params]
        self.owner, self.held = program, held
        args = [*(held[i] for i in function.captures), *params]
        ops, outs = self.apart(lambda: self.walk(function.jaxpr, args))
        name = self.names[id(program), function.name]
        self.functions[name] = Code((*held, *params), ops, tuple(outs))

    def apart(self, write: Callable[[], Sequence[Atom]]) -> tuple[tuple[Op, ...], Sequence[Atom]]:
        """Operations written separately."""
        before, self.ops = self.ops, []
        outs = write()
        made, self.ops = tuple(self.ops), before
        return made, outs

    def walk(self, jaxpr: Jaxpr, args: Sequence[Atom], consts: Sequence[Any] = ()) -> list[Atom]:
        held = [
            Literal(_jax.stored(value, var.aval), _jax.stored_aval(var.aval))
            for var, value in zip(jaxpr.constvars, consts, strict=True)
        ]

        def rule(eqn: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
            return self.eqn(eqn.replace(invars=operands), [a.aval for a in eqn.invars])

        return _jax.evaluate(jaxpr, args, rule, consts=held, literal=_jax.itself)

    def eqn(self, eqn: JaxprEqn, types: Sequence[Any]) -> Sequence[Atom]:
        """Write an equation whose operands are renamed, and had these types; gives its results."""
        operands, name = eqn.invars, eqn.primitive.name
        if is_throw(eqn) and not operands[-1].aval.shape:
            return operands[: len(eqn.outvars)]
        if eqn.primitive is check_p:
            self.ops.append(Check(operands[0], eqn))
            return []
        if eqn.primitive is call_p:
            function = self.owner.functions[eqn.params["name"]]
            name = self.named(self.owner, function)
            return self.call(eqn, name, [*self.held, *operands])
        if tests_many(eqn):
            one = with_one_test(eqn.replace(invars=[_jax.new_var(aval) for aval in types]))
            return self.walk(one.jaxpr, [*map(_literal, one.captures), *operands])
        if is_control(eqn):
            if name != "scan" or _calls(eqn) or may_not_end(eqn):
                return _STRUCTURED[name](self, eqn, types)
            return self.plain(eqn, types)
        if eqn.primitive is program_p:
            return self.program(eqn, types)
        written_out = is_wrapper(eqn) or (
            _calls(eqn) and not name.startswith("custom_linear_solve")
        )
        found = inside(eqn) if written_out else None
        if found is not None:
            return self.walk(found.jaxpr, found.operands, found.consts)
        return self.plain(eqn, types)

    def plain(self, eqn: JaxprEqn, types: Sequence[Any]) -> Sequence[Atom]:
        if eqn.effects or eqn.primitive is accumulate_p:
            raise NotSliced(
                f"{eqn.primitive.name} has an effect (it adds to a sum, prints, writes or calls back)"
                f" {_jax.user_line(eqn)}, and levels have no order in time"
            )
        self.ops.append(_renamed(eqn, types))
        return self.ops[-1].outs

    def program(self, eqn: JaxprEqn, types: Sequence[Any]) -> Sequence[Atom]:
        """A program called inside: part of this one, unless it has lanes of its own."""
        if eqn.params["lanes"] or eqn.params["options"].stats:
            return self.plain(eqn, types)
        program = eqn.params["program"]
        if program.recursive:
            entry = program.functions[program.entry]
            outs = self.call(eqn, self.named(program, entry), eqn.invars, len(program.out_avals))
        else:
            found = inside(eqn)
            assert found is not None
            outs = self.walk(found.jaxpr, found.operands, found.consts)
        # Had it failed, we would not be here.
        ended = (_int(0), _int(-1))
        return [*outs, *ended[: len(eqn.outvars) - len(outs)]]

    def call(
        self, eqn: JaxprEqn, name: str, args: Sequence[Atom], num: int | None = None
    ) -> Sequence[Atom]:
        outs = tuple(_variable(var.aval) for var in eqn.outvars[:num])
        self.ops.append(Call(name, tuple(args), outs, _jax.user_line(eqn)))
        return outs

    def cond(self, eqn: JaxprEqn, types: Sequence[Any]) -> Sequence[Atom]:
        parts = _jax.Cond.of(eqn, eqn.invars)
        whole = None if _calls(eqn) else _renamed(eqn, types)
        outs = whole.outs if whole else tuple(_variable(v.aval) for v in eqn.outvars)
        codes = []
        for branch in parts.branches:
            ops, given = self.apart(
                lambda b=branch: self.walk(b, parts.operands, _jax.attached_consts(b))  # type: ignore[misc]
            )
            codes.append(Code((), ops, tuple(given)))
        self.ops.append(Branch(parts.index, tuple(codes), outs, whole, _jax.user_line(eqn)))
        return outs

    def while_(self, eqn: JaxprEqn, types: Sequence[Any]) -> Sequence[Atom]:
        loop = _jax.While.of(eqn, eqn.invars)
        whole = None if _calls(eqn) else _renamed(eqn, types)
        outs = whole.outs if whole else tuple(_variable(v.aval) for v in eqn.outvars)
        codes = []
        for code, own in ((loop.test, loop.test_consts), (loop.body, loop.consts)):
            carried = [_variable(v.aval) for v in eqn.outvars]
            ops, given = self.apart(
                lambda c=code, own=own, carried=carried: self.walk(  # type: ignore[misc]
                    c, [*own, *carried], _jax.attached_consts(c)
                )
            )
            codes.append(Code(tuple(carried), ops, tuple(given)))
        test, body = codes
        self.ops.append(Loop(test, body, tuple(loop.init), outs, whole, _jax.user_line(eqn)))
        return outs

    def scan(self, eqn: JaxprEqn, types: Sequence[Any]) -> Sequence[Atom]:
        """A scan that makes calls, or holds a loop of unknown length, as a loop that counts."""
        del types
        parts = _jax.Scan.of(eqn, eqn.invars)
        made = [_jax.stored_aval(v.aval) for v in parts.divided(eqn.outvars)[1]]
        stacks = self.inline(lambda: [_jax.zeros(aval) for aval in made], [])
        line = _jax.user_line(eqn)
        counter = _jax.shaped((), np.dtype(np.int32))
        avals = [counter, *(v.aval for v in eqn.outvars)]

        def body(i: Atom, *carried: Atom) -> list[Atom]:
            def take(i: Any, *arrays: Any) -> list[Any]:
                at = parts.length - 1 - i if parts.reverse else i
                return [at, *(lax.dynamic_index_in_dim(x, at, keepdims=False) for x in arrays)]

            def put(i: Any, at: Any, *arrays: Any) -> list[Any]:
                pairs = zip(arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :], strict=True)
                return [i + 1, *(lax.dynamic_update_index_in_dim(s, v, at, 0) for s, v in pairs)]

            state, stacked = parts.divided(carried)
            at, *own = self.inline(take, [i, *parts.xs])
            consts = _jax.attached_consts(parts.body)
            state, rows = parts.divided(
                self.walk(parts.body, [*parts.consts, *state, *own], consts)
            )
            after = self.inline(put, [i, at, *stacked, *rows])
            return [after[0], *state, *after[1:]]

        def test(i: Atom, *carried: Atom) -> list[Atom]:
            return self.inline(lambda i: [i < parts.length], [i])

        codes = []
        for write in (test, body):
            ins = [_variable(aval) for aval in avals]
            ops, given = self.apart(lambda w=write, ins=ins: w(*ins))  # type: ignore[misc]
            codes.append(Code(tuple(ins), ops, tuple(given)))
        outs = tuple(_variable(aval) for aval in avals)
        self.ops.append(Loop(codes[0], codes[1], (_int(0), *parts.init, *stacks), outs, None, line))
        return outs[1:]

    def inline(self, fun: Callable[..., Sequence[Any]], operands: Sequence[Atom]) -> list[Atom]:
        """Write the equations of a small JAX function."""
        traced = _jax.trace(fun, [a.aval for a in operands])
        return self.walk(traced.jaxpr, [*map(_literal, traced.captures), *operands])


_STRUCTURED: dict[str, Callable[[_Builder, JaxprEqn, Sequence[Any]], Sequence[Atom]]] = {
    "cond": _Builder.cond,
    "while": _Builder.while_,
    "scan": _Builder.scan,
}


def _calls(eqn: JaxprEqn) -> bool:
    """Whether an equation holds something that cannot be part of one equation: a call, or an assertion."""
    held = _jax.equations((eqn,), lambda e: () if e.params.get("lanes") else codes_inside(e))
    return any(each.primitive in (call_p, check_p, accumulate_p) for each in held)


def _variable(aval: Any) -> Var:
    return _jax.new_var(_jax.stored_aval(aval))


def _renamed(eqn: JaxprEqn, types: Sequence[Any]) -> Plain:
    """An equation on values as they are kept, with results of its own; `types` had its operands before."""
    outs = [_variable(v.aval) for v in eqn.outvars]
    if not any(_jax.is_key(aval) for aval in (*types, *(v.aval for v in eqn.outvars))):
        return Plain(eqn.replace(outvars=outs))

    @jax.jit
    def on_data(*kept: Any) -> list[Any]:
        values = [_jax.loaded(x, aval) for x, aval in zip(kept, types, strict=True)]
        found = zip(_jax.run_eqn(eqn, values), eqn.outvars, strict=True)
        return [_jax.stored(x, v.aval) for x, v in found]

    (whole,) = _jax.trace(on_data, [a.aval for a in eqn.invars]).jaxpr.eqns
    return Plain(whole.replace(invars=eqn.invars, outvars=outs, source_info=eqn.source_info))


def _literal(value: Any) -> Literal:
    aval = _jax.aval_of(value)
    return Literal(_jax.stored(value, aval), _jax.stored_aval(aval))


def _int(value: int) -> Literal:
    return Literal(np.int32(value), _jax.shaped((), np.dtype(np.int32)))
