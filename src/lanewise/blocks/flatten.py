"""From structured jaxprs to blocks.

One walk over the program. Control flow that diverges (see `divergence.py`) becomes blocks; everything else stays an
equation. A function that does not recurse is inlined where it is called; each function of a recursion becomes a
block function of its own, called with `Call`.

* `cond`: a branch to one block a side; each side stores into the same result variables.
* `while`: the carried values that the body changes are variables; `head` tests, `body` stores and jumps back.
* `scan`: a counted loop; the stacked results are variables written by index.
* `check`: a branch to a block that fails.

Captured values are variables that nothing stores into again, so recursion never saves them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.divergence import Divergence, flag_of
from lanewise.blocks.equations import (
    as_on_one_lane,
    inside,
    is_throw,
    tests_many,
    with_one_test,
)
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Fail,
    Jump,
    Label,
    Return,
    Terminator,
)
from lanewise.core.accumulate import accumulate_p
from lanewise.core.errors import Outcome, TransformError
from lanewise.core.outcomes import Site
from lanewise.core.primitives.facts import is_forward_call, is_update
from lanewise.core.program import Function, Program, call_p, check_p, program_p, site_of


def flatten(
    program: Program,
    varying: Sequence[bool],
    *,
    every_loop: bool = False,
    explains: bool = False,
) -> BlockProgram:
    """The blocks of `program` when these of its operands vary between lanes.

    Assertions hold on to what their messages format only if the blocks are there to explain a failure.
    """
    return _Flattener(Divergence(every_loop), explains).program(program, varying)


class _Flattener:
    """The walk's state: the blocks made so far, and the block being written."""

    def __init__(self, divergence: Divergence, explains: bool) -> None:
        self.divergence = divergence
        self.explains = explains
        self.constants: list[tuple[Var, Any]] = []
        self.sites: dict[Site, int] = {}
        self.functions: dict[str, BlockFunction] = {}
        self.frames: dict[tuple[int, str], BlockFunction] = {}
        self.captures: dict[tuple[int, int], Var] = {}
        self.pending: list[tuple[Program, Function]] = []
        self.next_label: Label = 0
        self.blocks: list[Block] = []
        self.varies: dict[Var, bool] = {}

    # -- programs and functions ------------------------------------------------------------------

    def program(self, program: Program, varying: Sequence[bool]) -> BlockProgram:
        avals = program.operand_avals
        # Sites are numbered as the program numbers them: that is what outcomes refer to.
        self.sites = {site: i for i, site in enumerate(program.sites)}
        num_captures = program.num_captures
        captured = [
            self.new_var(a, flag) for a, flag in zip(avals[:num_captures], varying, strict=False)
        ]
        self.link_captures(program, captured)
        entry = program.functions[program.entry]
        called_again = any(
            eqn.primitive is call_p and eqn.params["name"] == entry.name
            for eqn in program.equations()
        )
        frame = self.frame(
            program, entry, [flag or called_again for flag in varying[num_captures:]]
        )
        while self.pending:
            self.function(*self.pending.pop(0))
        return BlockProgram(
            {frame.name: self.functions[frame.name]} | self.functions,
            frame.name,
            (*captured, *frame.params),
            tuple(self.constants),
            tuple(self.sites),
            program.sums,
        )

    def link_captures(self, program: Program, variables: Sequence[Var]) -> None:
        for i, var in enumerate(variables):
            self.captures[id(program), i] = var

    def frame(
        self, program: Program, function: Function, varying: Sequence[bool] | None = None
    ) -> BlockFunction:
        """Name, parameter and result variables of a function; the first time, asks for its blocks."""
        key = (id(program), function.name)
        if key not in self.frames:
            taken = sum(frame.name.split("~")[0] == function.name for frame in self.frames.values())
            name = f"{function.name}~{taken}" if taken else function.name
            flags = varying if varying is not None else [True] * len(function.params)
            params = tuple(
                self.new_var(v.aval, flag) for v, flag in zip(function.params, flags, strict=True)
            )
            results = tuple(self.new_var(atom.aval, True) for atom in function.jaxpr.outvars)
            threads = tuple((params[i], j) for i, j in function.threads)
            self.frames[key] = BlockFunction(name, params, results, (), threads)
            self.pending.append((program, function))
        return self.frames[key]

    def function(self, program: Program, function: Function) -> None:
        frame = self.frame(program, function)
        self.blocks, self.owner = [], program
        self.start(self.label(), function.name, steps=1)
        captured = [self.captures[id(program), i] for i in function.captures]
        outs = self.walk(function.jaxpr, [*captured, *frame.params])
        self.finish(Return(), list(zip(frame.results, outs, strict=True)))
        self.functions[frame.name] = replace(frame, blocks=tuple(self.blocks))

    # -- blocks ----------------------------------------------------------------------------------

    def label(self) -> Label:
        self.next_label += 1
        return self.next_label - 1

    def start(self, label: Label, note: str, steps: int = 0) -> None:
        self.current = label
        self.note = note
        self.eqns: list[JaxprEqn] = []
        self.steps = steps

    def finish(self, terminator: Terminator, assigns: Sequence[tuple[Var, Atom]] = ()) -> None:
        kept = tuple((var, atom) for var, atom in assigns if var is not atom)
        self.blocks.append(
            Block(self.current, self.note, tuple(self.eqns), kept, terminator, self.steps)
        )

    def new_var(self, aval: Any, varies: bool) -> Var:
        var = _jax.new_var(aval)
        self.varies[var] = varies
        return var

    def flags(self, atoms: Sequence[Atom]) -> list[bool]:
        return [flag_of(self.varies, atom) for atom in atoms]

    def constant(self, var: Var, value: Any) -> Atom:
        held = self.new_var(var.aval, False)
        self.constants.append((held, value))
        return held

    # -- equations -------------------------------------------------------------------------------

    def walk(self, jaxpr: Jaxpr, args: Sequence[Atom], consts: Sequence[Any] = ()) -> list[Atom]:
        """Flatten a jaxpr's equations into the current block and those after it; gives its results."""
        held = [self.constant(v, x) for v, x in zip(jaxpr.constvars, consts, strict=True)]
        return _jax.evaluate(jaxpr, args, self.eqn, consts=held, literal=_jax.itself)

    def eqn(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        if is_throw(eqn):
            if operands[-1].aval.shape:
                self.throw(eqn, operands)
            return operands[: len(eqn.outvars)]
        name = eqn.primitive.name
        out_flags, diverges = self.divergence.eqn(eqn, self.flags(operands))
        # A cheap branch stays a branch until the passes have run: it may be an early exit.
        if not (diverges or (name == "cond" and self.flags(operands)[0])):
            return self.emit(eqn, operands, out_flags)
        if name in _STRUCTURED:
            return _STRUCTURED[name](self, eqn, operands)
        if eqn.primitive is check_p:
            return self.check(eqn, operands)
        if eqn.primitive is accumulate_p:
            self.eqns.append(eqn.replace(invars=list(operands)))
            return []
        if eqn.primitive is call_p:
            function = self.owner.functions[eqn.params["name"]]
            return self.call(self.owner, function, operands)
        found = inside(eqn.replace(invars=list(operands)))
        if found is not None:
            self.steps += eqn.primitive is program_p
            return self.padded(eqn, self.walk(found.jaxpr, found.operands, found.consts))
        return self.nested_program(eqn, operands)

    def emit(
        self, eqn: JaxprEqn, operands: Sequence[Atom], varying: Sequence[bool]
    ) -> Sequence[Atom]:
        """Keep an equation, renamed. What looks at the batch is replaced by its one-lane meaning."""
        found = inside(eqn.replace(invars=list(operands)))
        if found is not None and not _keeps_batching_rule(eqn):
            return self.padded(eqn, self.walk(found.jaxpr, found.operands, found.consts))
        if eqn.effects and any(self.flags(operands)):
            raise TransformError(
                f"{eqn.primitive.name} has an effect (it prints, writes or calls back) and is used in a program whose"
                f" lanes part ways, where it would run for lanes that are not there: {_jax.user_line(eqn)}."
                " Return the value instead, or call the program without vmap."
            )
        outs = [
            self.new_var(var.aval, flag) for var, flag in zip(eqn.outvars, varying, strict=True)
        ]
        (kept,) = _jax.with_eqns(_jax.new_jaxpr((), (), [eqn]), as_on_one_lane).eqns
        self.eqns.append(kept.replace(invars=list(operands), outvars=outs))
        return outs

    def cond(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        parts = _jax.Cond.of(eqn, operands)
        labels = [self.label() for _ in parts.branches]
        join = self.label()
        results = [self.new_var(var.aval, True) for var in eqn.outvars]
        self.finish(Branch(parts.index, tuple(labels)))
        for i, (label, branch) in enumerate(zip(labels, parts.branches, strict=True)):
            self.start(label, f"case {i}" if len(labels) > 2 else ("else", "then")[i])
            outs = self.walk(branch, parts.operands, _jax.attached_consts(branch))
            self.finish(Jump(join), list(zip(results, outs, strict=True)))
        self.start(join, "join")
        return results

    def loop(
        self,
        carried: Sequence[tuple[Var, Atom]],
        test: Callable[[], Atom],
        body: Callable[[], Sequence[Atom]],
    ) -> None:
        head, inner, after = self.label(), self.label(), self.label()
        self.finish(Jump(head), carried)
        self.start(head, "while")
        self.finish(Branch(test(), (after, inner)))
        self.start(inner, "body", steps=1)
        outs = body()
        self.finish(Jump(head), [(var, out) for (var, _), out in zip(carried, outs, strict=True)])
        self.start(after, "after")

    def while_(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        if tests_many(eqn):
            traced = with_one_test(eqn)
            arrays = [
                self.constant(var, value)
                for var, value in zip(traced.jaxpr.invars, traced.captures, strict=False)
            ]
            return self.walk(traced.jaxpr, [*arrays, *operands])
        parts = _jax.While.of(eqn, operands)
        test, body, changed = parts.test, parts.body, parts.changed
        places = [
            self.new_var(var.aval, True) if change else atom
            for var, atom, change in zip(eqn.outvars, parts.init, changed, strict=True)
        ]

        def run_body() -> Sequence[Atom]:
            outs = self.walk(body, [*parts.consts, *places], _jax.attached_consts(body))
            return list(itertools.compress(outs, changed))

        self.loop(
            list(itertools.compress(zip(places, parts.init, strict=True), changed)),  # type: ignore[arg-type]
            lambda: self.walk(test, [*parts.test_consts, *places], _jax.attached_consts(test))[0],
            run_body,
        )
        return places

    def scan(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        parts = _jax.Scan.of(eqn, operands)
        body, length = parts.body, parts.length
        counter = self.new_var(_jax.shaped((), np.dtype("int32")), True)
        places = [self.new_var(var.aval, True) for var in eqn.outvars]
        state, stacks = parts.divided(places)
        stacked = self.inline(lambda: [_jax.zeros(var.aval) for var in stacks], [])

        def run_body() -> Sequence[Atom]:
            def take(i: Any, *arrays: Any) -> list[Any]:
                at = length - 1 - i if parts.reverse else i
                return [at, *(lax.dynamic_index_in_dim(x, at, keepdims=False) for x in arrays)]

            at, *slices = self.inline(take, [counter, *parts.xs])
            outs = self.walk(body, [*parts.consts, *state, *slices], _jax.attached_consts(body))
            new_state, rows = parts.divided(outs)

            def put(i: Any, at: Any, *arrays: Any) -> list[Any]:
                stacks, values = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
                written = [
                    lax.dynamic_update_index_in_dim(s, v, at, 0)
                    for s, v in zip(stacks, values, strict=True)
                ]
                return [i + 1, *written]

            after = self.inline(put, [counter, at, *stacks, *rows])
            return [after[0], *new_state, *after[1:]]

        self.loop(
            [(counter, _int_literal(0)), *zip(places, [*parts.init, *stacked], strict=True)],
            lambda: self.inline(lambda i: [i < length], [counter])[0],
            run_body,
        )
        return places

    def inline(self, fun: Callable[..., Sequence[Any]], operands: Sequence[Atom]) -> list[Atom]:
        """Write the equations of a small JAX function into the current block."""
        traced = _jax.trace(fun, [atom.aval for atom in operands])
        captured = [
            self.constant(v, c) for v, c in zip(traced.jaxpr.invars, traced.captures, strict=False)
        ]
        return self.walk(traced.jaxpr, [*captured, *operands])

    def check(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        outcome, number = eqn.params["outcome"], -1
        if outcome is Outcome.ASSERTION_FAILED:
            number = self.sites.setdefault(site_of(eqn), len(self.sites))
        fail = Fail(number, outcome, eqn.params["waits"])
        if self.explains:
            fail = replace(fail, message=eqn.params["writes"], values=tuple(operands[1:]))
        self.fail_unless(operands[0], fail)
        return []

    def fail_unless(self, holds: Atom, fail: Fail) -> None:
        failed, fine = self.label(), self.label()
        self.finish(Branch(holds, (failed, fine)))
        self.start(failed, "assert")
        self.finish(fail)
        self.start(fine, "after")

    def throw(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> None:
        """A program under an inner `jax.vmap` has lanes of its own: if one of them failed, so has ours."""
        code, site = operands[-2:]
        for number, place in enumerate(eqn.params["sites"]):
            (fine,) = self.inline(
                lambda c, s, n=number: [~((c == int(Outcome.ASSERTION_FAILED)) & (s == n)).any()],
                [code, site],
            )
            self.fail_unless(fine, Fail(self.sites.setdefault(place, len(self.sites))))
        for outcome in (Outcome.STEPS_EXHAUSTED, Outcome.STACK_OVERFLOW, Outcome.TAPE_FULL):
            (fine,) = self.inline(lambda c, o=outcome: [(c != int(o)).all()], [code])
            self.fail_unless(fine, Fail(-1, outcome))

    def call(
        self,
        program: Program,
        function: Function,
        operands: Sequence[Atom],
        captured: Sequence[tuple[Var, Atom]] = (),
    ) -> Sequence[Atom]:
        frame = self.frame(program, function)
        after, fresh = self.label(), self.label()
        places = [self.new_var(var.aval, True) for var in frame.results]
        arguments = (*captured, *zip(frame.params, operands, strict=True))
        self.finish(Call(frame.name, arguments, after))
        # The results are where the next call will overwrite them: copy them first.
        self.start(after, "returned")
        self.finish(Jump(fresh), list(zip(places, frame.results, strict=True)))
        self.start(fresh, "after")
        return places

    def nested_program(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        """A recursive program called inside this one: its table joins ours."""
        program = eqn.params["program"]
        held = operands[: program.num_captures]
        if (id(program), 0) not in self.captures:
            self.link_captures(program, [self.new_var(atom.aval, True) for atom in held])
        captured = [(self.captures[id(program), i], atom) for i, atom in enumerate(held)]
        entry = program.functions[program.entry]
        return self.padded(
            eqn, self.call(program, entry, operands[program.num_captures :], captured)
        )

    @staticmethod
    def padded(eqn: JaxprEqn, outs: Sequence[Atom]) -> Sequence[Atom]:
        """Add the outcome outputs of a program called inside another: had it failed, we would not be here."""
        code_and_site = (_int_literal(0), _int_literal(-1))
        return [*outs, *code_and_site[: len(eqn.outvars) - len(outs)]]


_STRUCTURED: dict[str, Callable[[_Flattener, JaxprEqn, Sequence[Atom]], Sequence[Atom]]] = {
    "cond": _Flattener.cond,
    "while": _Flattener.while_,
    "scan": _Flattener.scan,
}


def _keeps_batching_rule(eqn: JaxprEqn) -> bool:
    """Whether JAX's own batching of the equation is what we want.

    A `jit` or `custom_jvp` is, unless it hides a write by index, as JAX's own functions for that do: see
    `masked_update`.
    """
    if not is_forward_call(eqn):
        return False
    return not any(is_update(e) for code in _jax.subjaxprs(eqn) for e in code.eqns)


def _int_literal(value: int) -> Literal:
    return Literal(np.int32(value), _jax.shaped((), np.dtype("int32")))
