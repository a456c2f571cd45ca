"""A program in two: calls whose control does not wait for values, and the rest, which takes their answers.

`control.py` answers for a whole program: one loop on values, and it has no slice. But what comes before that loop, or
beside it, is often a recursion over a tree, of which the loop reads the answer alone: an encoder before a parser, a
sampler, early exits, an iteration until something settles. Such a program is split here. The *first* program makes
those calls, and has a slice; the *rest* is the program without them, which takes their answers as further operands and
is run by whatever would have run the whole.

What is looked at is the code of the entry, with what JAX and Lanewise wrap written out. An operation that holds control
(a call, a loop, a branch around such) is *early* if all that it reads is, and if the program that ends with it can be
sliced: `control.py` is asked, so there is one rule for what can run first. Plain equations on early values are early
too. What is early is *hoisted* if it is matrix work; the rest of the program is then handed its results, and computes
again what else it needs.

Only what is reached whatever the values are is early. A call in a branch or loop on values stays where it is, though
its arguments may be known: it is pure, but the test may be what keeps it from running for ever, or from reading a child
that is not there. A branch that can be decided first is split with its sides, so that an early `return` above a call
does no harm. An assertion on values stays, and so does what follows it.

A recursion that waits for values is reached once from outside, and that first call is looked into: it is split like a
program, and becomes two calls, of what can be made first and of the rest, which goes on to call the recursion as it is.
The same is done to an entry that calls itself. Calls that come from inside the recursion stay in it: whether they are
made is what waits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.core.options import Options
from lanewise.core.program import (
    Function,
    Program,
    call_p,
    check_p,
    codes_inside,
    program_p,
    throw_p,
)
from lanewise.dynamic.code import NotSliced, variables
from lanewise.dynamic.control import is_expensive
from lanewise.dynamic.entry import Body, Op, calls_function, holds_control, written_out
from lanewise.dynamic.slice import pieces_of


@dataclass(frozen=True, eq=False)
class Stage:
    """One of the two programs: it captures what the whole does, then `constants`, and takes what the whole takes."""

    program: Program
    constants: tuple[Any, ...]

    def given(self, operands: Sequence[Any], constants: Sequence[Any] | None = None) -> list[Any]:
        """Operands of the whole, or one fact of each, with those of the constants in their place."""
        own = self.constants if constants is None else constants
        captured = self.program.num_captures - len(own)
        return [*operands[:captured], *own, *operands[captured:]]


@dataclass(frozen=True, eq=False)
class Split:
    """`first` gives what the last parameters of `rest` are. `calls`: what is hoisted; `stays`: what is not, and why."""

    first: Stage
    rest: Stage
    calls: tuple[str, ...]
    stays: tuple[str, ...]


@functools.lru_cache(maxsize=256)
def split(program: Program, varying: tuple[bool, ...], looks_into: bool = True) -> Split:
    """A program that has no slice in two, for lanes that differ in these operands.

    Raises `NotSliced` where nothing can be hoisted, or needs to be; without `looks_into`, where that is in a recursion
    that waits for values.
    """
    codes = [f.jaxpr for f in program.functions.values()]
    if not looks_into and any(calls_function(code, program.entry) for code in codes):
        raise NotSliced("its entry calls itself, and each call waits for values")
    return _Splitter(program, varying, looks_into=looks_into).split()


class _Splitter:
    """A program that is being split; `looks_into` recursions that wait for values, where they are called."""

    def __init__(self, program: Program, varying: tuple[bool, ...], *, looks_into: bool) -> None:
        self.program, self.varying, self.looks_into = program, varying, looks_into
        entry = program.functions[program.entry]
        captured = [_jax.new_var(aval) for aval in program.capture_avals]
        self.operands = [*captured, *(_jax.new_var(v.aval) for v in entry.params)]
        given = [*(captured[i] for i in entry.captures), *self.operands[len(captured) :]]
        self.body = written_out(entry.jaxpr, given, ())
        self.given: set[Atom] = set()  # what is hoisted gives
        self.stays: list[str] = []

    def split(self) -> Split:
        self.decide(self.body, set(self.operands), "")
        control = [op for op in self.body.hoisted() if holds_control(op.eqn)]
        calls = [w for op in control for w in op.calls or map(_words, _made_by(op.eqn))]
        if not calls:
            raise NotSliced("; ".join(self.stays) or "it makes no call that could be made first")
        _keep_products(self.body, set())
        handed = [v for op in self.body.hoisted() for v in op.eqn.outvars]
        whole = self.rest(handed).program
        used = _jax.used_inputs(whole.functions[whole.entry].jaxpr)[-len(handed) :]
        handed = [v for v, flag in zip(handed, used, strict=True) if flag]
        return Split(
            self.first(handed), self.rest(handed), tuple(dict.fromkeys(calls)), tuple(self.stays)
        )

    # -- what is early -----------------------------------------------------------------------------

    def decide(self, body: Body, early: set[Var], behind: str) -> str:
        """Mark what is early and what is hoisted. `behind`: what may keep this code from being reached, if anything.

        Gives the same for the code that follows.
        """
        waiting = body.ops[::-1]
        body.ops.clear()
        while waiting:
            op = waiting.pop()
            known = early.issuperset(variables(op.eqn.invars))
            inner = self.in_two(op) if known and not behind else None
            if inner is not None:
                waiting += inner[::-1]
                continue
            body.ops.append(op)
            if holds_control(op.eqn):
                op.early = known and not behind and self.sliceable(op)
                op.hoisted = op.early and self.holds_products(op.eqn)
                if op.early and not op.hoisted and op.eqn.primitive in (call_p, program_p):
                    self.stays.append(f"{_words(op.eqn)} stays: it is no matrix work")
            else:
                op.early = known and not op.eqn.effects
                # It hands the answers of a program on.
                throws = op.eqn.primitive is throw_p
                op.hoisted = op.early and throws and not self.given.isdisjoint(op.eqn.invars)
            if op.early:
                early.update(op.eqn.outvars)
                self.given.update(op.eqn.outvars if op.hoisted else ())
            elif op.sides:
                waits = not early.issuperset(variables(op.eqn.invars[:1]))
                inner = behind or (f"inside {_words(op.eqn)}" if waits else "")
                ends = [self.decide(side, set(early), inner) for side in op.sides]
                if waits:
                    ends = [self.end_of(op.eqn)]
                behind = behind or next(filter(None, ends), "")
            elif holds_control(op.eqn):
                self.stays += _why_late(op.eqn, known, behind)
                behind = behind or self.end_of(op.eqn)
        return behind

    def in_two(self, op: Op) -> list[Op] | None:
        """A call of a recursion that waits for values as two calls; None where that is of no use."""
        eqn = op.eqn
        if not self.looks_into or op.apart or eqn.primitive not in (call_p, program_p):
            return None
        if eqn.primitive is call_p:
            program = replace(self.program, entry=eqn.params["name"])
            operands, options = [*self.operands[: program.num_captures], *eqn.invars], Options()
        else:
            program, operands, options = eqn.params["program"], eqn.invars, eqn.params["options"]
        varying = (True,) * len(operands)
        try:
            pieces_of(program, varying)
            return None
        except NotSliced:
            pass
        try:
            found = _Splitter(program, varying, looks_into=False).split()
        except NotSliced:
            return None

        def bound(stage: Stage, operands: Sequence[Atom], outvars: Sequence[Var]) -> JaxprEqn:
            constants = [Literal(jnp.asarray(c), _jax.aval_of(c)) for c in stage.constants]
            given = stage.given(operands, constants)
            traced = _jax.trace(
                lambda *values: program_p.bind(
                    *values,
                    program=stage.program,
                    lanes=(),
                    mapped=((),) * len(values),
                    options=options,
                ),
                [a.aval for a in given],
            )
            (call,) = traced.jaxpr.eqns
            more = [_jax.new_var(v.aval) for v in call.outvars[len(outvars) :]]
            source = eqn.source_info
            return call.replace(invars=given, outvars=[*outvars, *more], source_info=source)

        handed = [_jax.new_var(aval) for aval in found.first.program.out_avals]
        self.stays += found.stays
        return [
            Op(bound(found.first, operands, handed), calls=found.calls, apart=True),
            Op(bound(found.rest, [*operands, *handed], eqn.outvars), apart=True),
        ]

    def end_of(self, eqn: JaxprEqn) -> str:
        """What is behind an operation on values: nothing, unless a lane may end there."""
        return f"after {_words(eqn)}" if self.asserts(eqn) else ""

    def asserts(self, eqn: JaxprEqn) -> bool:
        return any(
            each.primitive is check_p
            or (each.primitive is call_p and bool(self.program.sites))
            or (each.primitive is program_p and bool(each.params["program"].sites))
            for each in _jax.equations((eqn,))
        )

    def sliceable(self, op: Op) -> bool:
        """Whether the program that ends with an operation has a slice."""
        op.early = op.hoisted = True
        made = self.first(list(op.eqn.outvars))
        op.early = op.hoisted = False
        varying = made.given(self.varying, [False] * len(made.constants))
        try:
            pieces_of(made.program, tuple(varying))
        except NotSliced as error:
            if op.eqn.primitive in (call_p, program_p):
                self.stays.append(f"{_words(op.eqn)} stays: {error}")
            return False
        return True

    def holds_products(self, eqn: JaxprEqn) -> bool:
        """Whether an equation does matrix work, in the functions that it calls included."""
        left = dict(self.program.functions)

        def inside(eqn: JaxprEqn) -> Iterable[Jaxpr]:
            if eqn.primitive is call_p:
                function = left.pop(eqn.params["name"], None)
                return () if function is None else (function.jaxpr,)
            return () if eqn.params.get("lanes") else codes_inside(eqn)

        return any(
            is_expensive(each)
            for each in _jax.equations((eqn,), inside)
            if each.primitive not in (call_p, program_p) or each.params.get("lanes")
        )

    # -- the two programs --------------------------------------------------------------------------

    def first(self, handed: Sequence[Var]) -> Stage:
        """The program of what is early, which gives these."""

        def run(*operands: Any) -> list[Any]:
            found = _run_early(self.body, _jax.Environment(self.operands, operands), handed)
            return [_jax.convert_to_aval(found[v], v.aval) for v in handed]

        # One name for a call that is hoisted: it is what is seen of it in reports.
        return self.stage(run, (), f"calls of {self.program.entry}")

    def rest(self, handed: Sequence[Var]) -> Stage:
        """The program without what is hoisted; it is given these."""

        def run(*operands: Any) -> list[Any]:
            return _run_rest(self.body, _jax.Environment([*self.operands, *handed], operands))

        return self.stage(run, handed, self.program.entry)

    def stage(self, run: Callable[..., list[Any]], handed: Sequence[Var], name: str) -> Stage:
        traced = _jax.trace(run, [v.aval for v in (*self.operands, *handed)])
        captured, num = self.program.num_captures, len(traced.captures)
        code = _jax.without_unused(traced.jaxpr)
        # Captures of an entry are in order: what the whole captures, then constants.
        constants, ins = code.invars[:num], code.invars[num:]
        order = [*ins[:captured], *constants, *ins[captured:]]
        functions = dict(self.program.functions)
        if any(calls_function(f.jaxpr, self.program.entry) for f in functions.values()):
            # It goes on to call itself as it was.
            numbers = (f"{self.program.name}.{n}" for n in itertools.count())
            name = name if name not in functions else next(n for n in numbers if n not in functions)
        else:
            del functions[self.program.entry]
        entry = Function(
            name, _jax.new_jaxpr(order, code.outvars, code.eqns), tuple(range(captured + num))
        )
        made = Program({name: entry, **functions}, name, captured + num)
        return Stage(replace(made, functions=_reached(made)), traced.captures)


def _run_early(body: Body, env: _jax.Environment[Any], handed: Sequence[Var]) -> dict[Var, Any]:
    """Run what is early; gives those of the variables that are made here or in sides."""
    found: dict[Var, Any] = {}
    for op in body.ops:
        if op.early:
            env.bind(op.eqn.outvars, _jax.run_eqn(op.eqn, env.read(op.eqn.invars)))
        elif op.split:
            inner = {v for side in op.sides for o in side.hoisted() for v in o.eqn.outvars}
            wanted = [v for v in handed if v in inner]

            def side_of(side: Body, wanted: list[Var] = wanted) -> Callable[[], list[Any]]:
                def run() -> list[Any]:
                    made = _run_early(side, env.copy(), wanted)
                    # A side that does not make a value hands on zeros, which nothing reads.
                    return [
                        _jax.convert_to_aval(made[v], v.aval) if v in made else _jax.zeros(v.aval)
                        for v in wanted
                    ]

                return run

            index = jnp.asarray(env[op.eqn.invars[0]], jnp.int32)
            with _jax.in_place_of(op.eqn):
                outs = lax.switch(index, [side_of(side) for side in op.sides])
            found.update(zip(wanted, outs, strict=True))
    return {**found, **{v: env[v] for v in handed if v in env.known}}


def _run_rest(body: Body, env: _jax.Environment[Any]) -> list[Any]:
    """Run what is not hoisted; `env` has what is."""
    for op in body.ops:
        if op.hoisted:
            continue
        if op.split:

            def side_of(side: Body, op: Op = op) -> Callable[[], list[Any]]:
                def run() -> list[Any]:
                    outs = _run_rest(side, env.copy())
                    pairs = zip(outs, op.eqn.outvars, strict=True)
                    return [_jax.convert_to_aval(x, v.aval) for x, v in pairs]

                return run

            index = jnp.asarray(env[op.eqn.invars[0]], jnp.int32)
            with _jax.in_place_of(op.eqn):
                outs = lax.switch(index, [side_of(side) for side in op.sides])
        else:
            outs = _jax.run_eqn(op.eqn, env.read(op.eqn.invars))
        env.bind(op.eqn.outvars, outs)
    return env.read(body.outs)


def _keep_products(body: Body, needed: set[Var]) -> None:
    """Have results of matrix work that hoisted operations read handed on too, and not computed again."""
    for op in reversed(body.ops):
        if op.split:
            for side in op.sides:
                _keep_products(side, needed)
        elif op.early and (op.hoisted or not needed.isdisjoint(op.eqn.outvars)):
            op.hoisted = op.hoisted or is_expensive(op.eqn)
            needed.update(variables(op.eqn.invars))


def _reached(program: Program) -> dict[str, Function]:
    """The functions that the entry comes to call."""
    found: dict[str, Function] = {}
    waiting = [program.entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = program.functions[name]
            waiting += [n for n in program.functions if calls_function(found[name].jaxpr, n)]
    return found


# -- words -------------------------------------------------------------------------------------------------


def _words(eqn: JaxprEqn) -> str:
    """What an operation is, and where."""
    line = _jax.user_line(eqn)
    if eqn.primitive is call_p:
        return f"the call of `{Program({}, eqn.params['name']).name}` at {line}"
    if eqn.primitive is program_p:
        return f"the call of `{eqn.params['program'].name}` at {line}"
    kind = {"while": "loop", "scan": "loop", "cond": "branch"}.get(eqn.primitive.name)
    return f"the {kind or eqn.primitive.name} at {line}"


def _why_late(eqn: JaxprEqn, known: bool, behind: str) -> list[str]:
    """Why calls that are not refused stay: those of an operation, or in it."""
    if eqn.primitive in (call_p, program_p):
        if not known:
            return [f"{_words(eqn)} stays: its arguments wait for values"]
        return [f"{_words(eqn)} stays: it is {behind}, which waits for values"] if behind else []
    return [
        f"{each} stays: it is inside {_words(eqn)}, which waits for values"
        for each in dict.fromkeys(map(_words, _made_by(eqn)))
        if each != _words(eqn)
    ]


def _made_by(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The calls that an equation is or holds; itself if there are none."""
    calls = [e for e in _jax.equations((eqn,)) if e.primitive in (call_p, program_p)]
    return [e for e in calls if e is eqn or holds_control(e)] or [eqn]
