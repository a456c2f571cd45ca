"""Blocks as text, for people: `print_program` shows blocks, storage and cost.

Variables have short names, by order of appearance; `v:stack` says that v has a stack.
"""

from __future__ import annotations

import numpy as np

from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.analysis import Storage
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Forked,
    Jump,
    Return,
    Spawn,
    TailCall,
)
from lanewise.core.errors import Outcome
from lanewise.core.primitives.facts import cost_of


class _Names:
    """Short names for variables."""

    def __init__(self) -> None:
        self.names: dict[Var, str] = {}

    def __call__(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return str(np.asarray(atom.val))
        if atom not in self.names:
            self.names[atom] = _letters(len(self.names))
        return self.names[atom]

    def typed(self, var: Var) -> str:
        return f"{self(var)}:{var.aval.str_short()}"


def _letters(number: int) -> str:
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord("a") + digit) + text
    return text


def print_program(program: BlockProgram, storage: Storage | None = None) -> str:
    """The whole program as text."""
    name = _Names()
    parts = []
    if program.inputs:
        parts.append("inputs " + ", ".join(map(name.typed, program.inputs)))
    parts += [_function(function, name, storage) for function in program.functions.values()]
    if storage is not None:
        parts.append(_storage(storage, name))
    return "\n".join(parts)


def _function(function: BlockFunction, name: _Names, storage: Storage | None) -> str:
    params = ", ".join(map(name.typed, function.params))
    results = ", ".join(map(name.typed, function.results))
    body = "\n".join(_block(block, name, storage) for block in function.blocks)
    return f"function {function.name}({params}) -> ({results})\n{body}"


def _block(block: Block, name: _Names, storage: Storage | None) -> str:
    steps = f", {block.steps} step{'s' if block.steps > 1 else ''}" if block.steps else ""
    lines = [f"  block {block.label} ({block.note}): {cost_of(block.eqns)}{steps}"]
    lines += [f"    {_equation(eqn, name)}" for eqn in block.eqns]
    lines += [f"    {name(var)} <- {name(atom)}" for var, atom in block.assigns]
    lines.append(f"    {_terminator(block, name, storage)}")
    return "\n".join(lines)


def _equation(eqn: JaxprEqn, name: _Names) -> str:
    outs = " ".join(map(name.typed, eqn.outvars))
    ins = " ".join(map(name, eqn.invars))
    hint = f"[{eqn.params['name']}]" if isinstance(eqn.params.get("name"), str) else ""
    return f"{outs} = {eqn.primitive.name}{hint} {ins}".strip()


def _terminator(block: Block, name: _Names, storage: Storage | None) -> str:
    match block.terminator:
        case Jump(target):
            return f"jump {target}"
        case Branch(index, targets):
            return f"branch {name(index)} -> {' | '.join(map(str, targets))}"
        case Call(callee, arguments, target):
            given = ", ".join(f"{name(v)} <- {name(a)}" for v, a in arguments)
            saved = ""
            if storage is not None:
                moves = storage.calls[block.label]
                pushed, popped = (
                    " ".join(map(name, vs)) or "nothing" for vs in (moves.push, moves.pop)
                )
                saved = f" [push {pushed}; pop {popped}]"
            return f"call {callee}({given}){saved} then {target}"
        case TailCall(callee, arguments):
            given = ", ".join(f"{name(v)} <- {name(a)}" for v, a in arguments)
            return f"become {callee}({given})"
        case Fork(calls, target):
            return f"fork {'; '.join(_forked(call, name) for call in calls)} then {target}"
        case Spawn(calls, index, targets, join):
            made = "; ".join(_forked(call, name) for call in calls)
            after = " | ".join(map(str, targets))
            first = "" if join is None else f", or first {join}"
            return f"spawn {made} then {name(index)} -> {after}{first}"
        case Collect(copies, target, done):
            taken = "; ".join(", ".join(f"{name(v)} <- {name(a)}" for v, a in c) for c in copies)
            return f"collect {taken} then {target}, or {done}"
        case Return():
            return "return"
        case Fail(site, outcome):
            return (
                f"fail {site}" if outcome is Outcome.ASSERTION_FAILED else f"fail: {outcome.phrase}"
            )


def _forked(call: Forked, name: _Names) -> str:
    given = ", ".join(f"{name(v)} <- {name(a)}" for v, a in call.arguments)
    results = f"{', '.join(map(name, call.results))} <- " if call.results else ""
    return f"{results}{call.callee}({given})"


def _storage(storage: Storage, name: _Names) -> str:
    lines = ["storage"]
    for var in storage.registers:
        uniform = ", uniform" if var in storage.uniform else ""
        lines.append(f"  {name.typed(var)}: {storage.of(var)}{uniform}")
    return "\n".join(lines)
