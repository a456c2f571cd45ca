"""State that a recursion hands from call to call, as variables that an example has once.

The forward sweep of a gradient puts records on tapes. In its code the tapes are values: every call takes them and gives
them back (`Function.threads`), so every call seems to wait for the one before it. All that is done to them is `push`
(`core/push.py`), which calls may do in any order. Here the tapes become *lane state*: one variable for each, which all
frames of an example share, is read by no block, and is changed by `push` alone. What passed them on is removed:
parameters, results, arguments and copies. They begin as zeros.

What it does not do: the tapes of a program called inside another. Each call of that has tapes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lanewise import _jax
from lanewise._jax import JaxprEqn, Literal, Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Call,
    TailCall,
    arguments_of,
    callees,
    terminator_atoms,
)
from lanewise.core.push import push_p

State = dict[Var, Var]
"""For each variable that holds state, the one that stands for all of them."""


def with_lane_state(program: BlockProgram) -> BlockProgram:
    """The same program with its threaded state as lane state; itself if it has none, or uses it in another way."""
    threaded = [f.threads for f in program.functions.values() if f.threads]
    if not threaded:
        return program
    places = [_jax.new_var(var.aval) for var, _ in threaded[0]]
    state = _followed(program, places)
    if not all(_is_usual(block, state) for _, block in program.all_blocks()):
        return program
    if not all(_keeps_it(program, function, state) for function in program.functions.values()):
        return program
    functions = {name: _without(function, state) for name, function in program.functions.items()}
    return replace(program, functions=functions, state=tuple(places))


def _followed(program: BlockProgram, places: list[Var]) -> State:
    """All variables that state goes through."""
    state: State = {}
    for function in program.functions.values():
        for place, (param, result) in zip(places, function.threads, strict=False):
            state[param] = state[function.results[result]] = place
    changed = True
    while changed:
        changed = False
        for one, other in _same_state(program):
            for var, like in ((one, other), (other, one)):
                if like in state and var not in state:
                    state[var] = state[like]
                    changed = True
    return state


def _same_state(program: BlockProgram) -> Iterator[tuple[Var, Var]]:
    """Pairs of variables that hold the same state, if one of them holds any."""
    for _, block in program.all_blocks():
        for var, atom in block.assigns:
            if isinstance(atom, Var):
                yield var, atom
        for eqn in block.eqns:
            if eqn.primitive is push_p:
                yield from (
                    (a, b) for a, b in zip(eqn.invars[:2], eqn.outvars[:2]) if isinstance(a, Var)
                )


def _keeps_it(program: BlockProgram, function: BlockFunction, state: State) -> bool:
    """Whether a function gives state as state alone: only a caller with the whole run may have it as a value."""
    handed = {i for _, i in function.threads}
    as_values = any(var in state for i, var in enumerate(function.results) if i not in handed)
    return not as_values or (
        function.name == program.entry
        and not any(function.name in callees(b.terminator) for _, b in program.all_blocks())
    )


def _is_usual(block: Block, state: State) -> bool:
    """Whether a block does nothing with state but hand it on, push to it, and begin with nothing."""
    for eqn in block.eqns:
        reads = [a for a in eqn.invars if isinstance(a, Var) and a in state]
        if eqn.primitive is push_p:
            own = [a for a in eqn.invars[:2] if isinstance(a, Var) and a in state]
            if len(own) != 2 or len(reads) != 2 or isinstance(block.terminator, Call):
                return False
        elif reads:
            return False
    pairs = arguments_of(block.terminator)
    handed = sum(isinstance(atom, Var) and atom in state for var, atom in pairs if var in state)
    read = sum(isinstance(a, Var) and a in state for a in terminator_atoms(block.terminator))
    return read == handed


def _without(function: BlockFunction, state: State) -> BlockFunction:
    handed = {i for _, i in function.threads}
    results = tuple(
        state.get(var, var) for i, var in enumerate(function.results) if i not in handed
    )
    return replace(
        function,
        params=tuple(var for var in function.params if var not in state),
        results=results,
        blocks=tuple(_block_without(block, state) for block in function.blocks),
        threads=(),
    )


def _block_without(block: Block, state: State) -> Block:
    eqns: list[JaxprEqn] = []
    for eqn in block.eqns:
        if eqn.primitive is push_p:
            tape, top, entries = eqn.invars
            assert not isinstance(tape, Literal) and not isinstance(top, Literal)
            _, _, at, fits = eqn.outvars
            gone = [_jax.new_var(var.aval) for var in eqn.outvars[:2]]
            eqns.append(
                eqn.replace(invars=[state[tape], state[top], entries], outvars=[*gone, at, fits])
            )
        elif not any(var in state for var in eqn.outvars):
            eqns.append(eqn)
    terminator = block.terminator
    if isinstance(terminator, Call | TailCall):
        kept = tuple((var, atom) for var, atom in terminator.arguments if var not in state)
        terminator = replace(terminator, arguments=kept)
    return block.with_(
        eqns=tuple(eqns),
        assigns=tuple((var, atom) for var, atom in block.assigns if var not in state),
        terminator=terminator,
    )
