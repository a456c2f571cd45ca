"""Calls that return at once: where the callee's first test leads straight to its return, no frame is kept.

Half of the calls of a recursion that calls itself twice are leaves. For such a call, pushing a frame, going to the
callee, coming back and popping costs many times what the callee does. So the callee's first block is copied to the
call: if its test leads to a return, the results are computed there; otherwise the call is made as usual (and tests
again, which costs little: a compiler that sees both tests may drop the second).

This is for a carrier with a program counter for each lane. Where all lanes share their blocks, more blocks cost more
than frames.

What a lane reports stays the same: steps are those of the blocks that were copied, and a block that may call makes sure
of room for a frame (`Block.frame`) whether it then needs one or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Jump,
    Label,
    Return,
    joined,
)
from lanewise.core.primitives.facts import cost_of

# What the copy of a callee's test, and that of a way to its return, may cost a lane.
TEST_OPERATIONS = 16
LEAF_OPERATIONS = 64


def leaf_calls(program: BlockProgram) -> BlockProgram:
    """Copy the first test of a callee, and what leads from there to its return, to every call of it."""
    fresh = itertools.count(1 + max(block.label for _, block in program.all_blocks()))
    functions = {}
    for name, function in program.functions.items():
        blocks: list[Block] = []
        for block in function.blocks:
            blocks += _peeled(program, block, fresh)
        functions[name] = replace(function, blocks=tuple(blocks))
    return replace(program, functions=functions)


def _peeled(program: BlockProgram, block: Block, fresh: Iterator[Label]) -> list[Block]:
    call = block.terminator
    if not isinstance(call, Call):
        return [block]
    callee = program.functions[call.callee]
    first = callee.blocks[0]
    ways = _leaves(callee)
    if not any(ways):
        return [block]
    assert isinstance(first.terminator, Branch)
    kept = {var: _jax.new_var(var.aval) for var, atom in call.arguments if isinstance(atom, Var)}
    given: dict[Var, Atom] = {var: kept.get(var, atom) for var, atom in call.arguments}
    # The test reads what the call gives as it is given; what comes after reads it from where it is stored.
    env = dict(block.assigns) | dict(call.arguments)
    test = _renamed(first, env)
    assert isinstance(test.terminator, Branch)
    real = Block(next(fresh), "call", (), (), replace(call, arguments=tuple(given.items())))
    more, targets = [real], []
    for way in ways:
        if way is None:
            targets.append(real.label)
            continue
        leaf = _renamed(way, given)
        results = dict(leaf.assigns)
        assigns = tuple(
            (var, results.get(var, given.get(var, var)))
            for var in callee.results
            if var in results or var in given
        )
        more.append(leaf.with_(label=next(fresh), assigns=assigns, terminator=Jump(call.target)))
        targets.append(more[-1].label)
    stores = tuple((kept[var], atom) for var, atom in call.arguments if var in kept)
    tested = block.with_(
        eqns=(*block.eqns, *test.eqns),
        assigns=(*block.assigns, *stores),
        terminator=Branch(test.terminator.index, tuple(targets)),
        frame=True,
    )
    return [tested, *more]


def _leaves(function: BlockFunction) -> list[Block | None]:
    """For each way out of the function's first block, what leads to its return as one block, if that is little code."""
    blocks = {block.label: block for block in function.blocks}
    first = function.blocks[0]
    if not isinstance(first.terminator, Branch) or isinstance(first.terminator.index, Literal):
        return []
    if not _is_little(first, TEST_OPERATIONS):
        return []
    return [
        _to_return(first.with_(terminator=Jump(target)), blocks)
        for target in first.terminator.targets
    ]


def _to_return(block: Block, blocks: dict[Label, Block]) -> Block | None:
    seen = set()
    while isinstance(block.terminator, Jump) and block.terminator.target not in seen:
        seen.add(block.terminator.target)
        block = joined(block, blocks[block.terminator.target])
    if not isinstance(block.terminator, Return) or not _is_little(block, LEAF_OPERATIONS):
        return None
    return block


def _is_little(block: Block, operations: int) -> bool:
    return not any(eqn.effects for eqn in block.eqns) and (
        cost_of(block.eqns).operations <= operations
    )


def _renamed(block: Block, env: dict[Var, Atom]) -> Block:
    """A copy of a block that reads these atoms for variables, and defines variables of its own."""
    before = Block(block.label, block.note, (), tuple(env.items()), Jump(block.label))
    return joined(before, block).with_(steps=block.steps)
