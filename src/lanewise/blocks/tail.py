"""Tail calls: a call whose result is returned as it is keeps no frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lanewise._jax import Atom, Var
from lanewise.blocks.analysis import reachable_functions
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Call,
    Jump,
    Label,
    Return,
    TailCall,
)
from lanewise.blocks.rewrite import reachable, substitute, substitute_terminator


def tail_calls(program: BlockProgram) -> BlockProgram:
    """A call whose result is returned as it is keeps no frame: tail recursion costs what a loop costs."""
    reach = reachable_functions(program)
    results = _shared_results(program, reach)
    functions = {}
    for name, function in program.functions.items():
        blocks = {block.label: block for block in function.blocks}
        for label, block in blocks.items():
            if isinstance(block.terminator, Call) and _returns_at_once(
                program, function, blocks, block
            ):
                callee = block.terminator.callee
                if name in reach[callee] and results[callee] == results[name]:
                    blocks[label] = block.with_(
                        terminator=TailCall(callee, block.terminator.arguments)
                    )
        functions[name] = replace(function, blocks=reachable(list(blocks.values())))
    return _unify_results(replace(program, functions=functions), results)


def _shared_results(
    program: BlockProgram, reach: dict[str, frozenset[str]]
) -> dict[str, tuple[Var, ...]]:
    """Result variables for each function: those that recurse together and return the same types share them."""
    shared: dict[Any, tuple[Var, ...]] = {}
    found = {}
    for name, function in program.functions.items():
        group = frozenset(other for other in reach[name] if name in reach[other])
        types = tuple((var.aval.shape, str(var.aval.dtype)) for var in function.results)
        found[name] = shared.setdefault((group or name, types), function.results)
    return found


def _unify_results(program: BlockProgram, results: dict[str, tuple[Var, ...]]) -> BlockProgram:
    rename: dict[Var, Atom] = {
        old: new
        for name, function in program.functions.items()
        for old, new in zip(function.results, results[name], strict=True)
        if old is not new
    }
    if not rename:
        return program

    def renamed(block: Block) -> Block:
        eqns = tuple(
            eqn.replace(invars=[substitute(rename, a) for a in eqn.invars]) for eqn in block.eqns
        )
        assigns = tuple((rename.get(v, v), substitute(rename, a)) for v, a in block.assigns)
        return block.with_(
            eqns=eqns, assigns=assigns, terminator=substitute_terminator(block.terminator, rename)
        )  # type: ignore[arg-type]

    functions = {
        name: replace(f, results=results[name], blocks=tuple(renamed(b) for b in f.blocks))
        for name, f in program.functions.items()
    }
    return replace(program, functions=functions)


def _returns_at_once(
    program: BlockProgram, function: BlockFunction, blocks: dict[Label, Block], block: Block
) -> bool:
    """Whether everything after a call only hands the callee's results on."""
    assert isinstance(block.terminator, Call)
    callee = program.functions[block.terminator.callee]
    if len(callee.results) != len(function.results):
        return False
    values: dict[Var, Atom] = {var: var for var in callee.results}
    label: Label = block.terminator.target
    for _ in range(len(blocks)):
        after = blocks[label]
        if after.eqns or after.steps:
            return False
        values |= {var: substitute(values, atom) for var, atom in after.assigns}
        if isinstance(after.terminator, Return):
            handed = [values.get(var) for var in function.results]
            return all(h is r for h, r in zip(handed, callee.results, strict=True))
        if not isinstance(after.terminator, Jump):
            return False
        label = after.terminator.target
    return False
