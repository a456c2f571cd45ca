"""Passes over blocks; `simplify` lists them in order.

After flattening, a `break` is a flag that a later branch tests. `thread_jumps` follows constants: a block that leaves
a flag with a known value and goes on to a block that only tests it jumps straight to where the test leads, so early
exits become jumps, and the flag dies. Loop rotation is the same operation: a loop's test is copied to the end of its
body, so that an iteration is one block. `select_cheap_branches` then turns branches around little work into selects.

Two passes are about calls. `tail_calls`: a call whose result is returned as it is keeps no frame. `inherit`: a program
called inside another takes what it closes over, the data a density is of for example, as parameters. Such a parameter
would be copied at each call and, though all lanes share the input, be spread over the lanes, since lanes are called at
different times. Where every call gives a parameter the same input, or hands its own value on, it *is* that input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.blocks.analysis import (
    constants_at_start,
    constants_leaving,
    known_value,
    live_out,
    reachable_functions,
)
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Jump,
    Label,
    Pass,
    Return,
    TailCall,
    defined,
    each_function,
    joined,
    predecessors,
    reachable,
    retarget,
    substitute,
    substitute_block,
    successors,
    terminator_atoms,
    verify_if_asked,
)
from lanewise.blocks.select import fold_short_circuits, select_cheap_branches
from lanewise.core.primitives.facts import cost_of

# Code copied to the end of another block (a loop's test, say) may cost a lane no more than this.
COPY_OPERATIONS = 256
# A way out of a branch gets a block of its own only past a test of a flag: more blocks cost more than one test.
FLAG_OPERATIONS = 8
ROUNDS = 8


def simplify(
    program: BlockProgram, check: Pass = verify_if_asked, *, selects: bool = True
) -> BlockProgram:
    """All passes; `check` runs after each: the verifier in tests, and where the environment asks for it.

    Exits are threaded until none is left before any branch becomes a select: a flag that a select reads stays. A
    carrier with real branches wants no `selects`.
    """
    program = check(tail_calls(check(inherit(program))))
    for passes in (THREADING, (*THREADING, *SELECTING)) if selects else (THREADING,):
        for _ in range(ROUNDS):
            before = _shape(program)
            for step in passes:
                program = check(step(program))
            if _shape(program) == before:
                break
    return check(drop_uncalled(program))


def _shape(program: BlockProgram) -> tuple[Any, ...]:
    return tuple(
        (name, len(f.blocks), sum(len(b.eqns) + len(b.assigns) for b in f.blocks))
        for name, f in program.functions.items()
    )


# -- passes ------------------------------------------------------------------------------------------


def drop_uncalled(program: BlockProgram) -> BlockProgram:
    """Drop functions whose calls are gone: nothing but themselves would seem to write their parameters."""
    called = reachable_functions(program)[program.entry]
    return replace(program, functions={n: f for n, f in program.functions.items() if n in called})


@each_function
def merge_blocks(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Join a block to its only successor where that has no other predecessor; skip empty blocks."""
    blocks = {block.label: block for block in function.blocks}
    empty = {
        b.label: b.terminator.target
        for b in function.blocks
        if isinstance(b.terminator, Jump)
        and not (b.eqns or b.assigns or b.steps)
        and b.label != function.entry
    }

    def final(label: Label) -> Label:
        seen = set()
        while label in empty and label not in seen:
            seen.add(label)
            label = empty[label]
        return label

    skip = {label: final(label) for label in empty if final(label) not in empty}
    blocks = {
        label: b.with_(terminator=retarget(b.terminator, skip)) for label, b in blocks.items()
    }
    blocks = {b.label: b for b in reachable(list(blocks.values()))}
    preds = predecessors(blocks.values())
    for label in list(blocks):
        while label in blocks and isinstance(end := blocks[label].terminator, Jump):
            target = end.target
            if target in (label, function.entry) or len(preds[target]) != 1:
                break
            blocks[label] = joined(blocks[label], blocks.pop(target))
            for after in successors(blocks[label]):
                preds[after] = [label if p == target else p for p in preds[after]]
    return list(blocks.values())


@each_function
def thread_jumps(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Follow constants over jumps: where a block decides its successor's branch, go straight there.

    Also rotates loops: a loop's cheap test is copied behind each jump to it, so that its block goes away.
    """
    blocks = {block.label: block for block in function.blocks}
    heads = _loop_heads(function)
    for label in list(blocks):
        for _ in range(ROUNDS):
            block = blocks[label]
            if not isinstance(block.terminator, Jump):
                break
            target = blocks[block.terminator.target]
            if target.label in (label, function.entry) or not isinstance(
                target.terminator, Branch | Jump
            ):
                break
            if cost_of(target.eqns).operations > COPY_OPERATIONS:
                break
            together = _decided(joined(block, target))
            decides = isinstance(target.terminator, Branch) and isinstance(
                together.terminator, Jump
            )
            rotates = (
                target.label in heads
                and label not in heads
                and isinstance(target.terminator, Branch)
            )
            leads_on = isinstance(target.terminator, Jump) and _leads_to_decision(blocks, together)
            if not (decides or rotates or leads_on):
                break
            blocks[label] = together
    # A branch's side that only carries a constant to a test is threaded too: give the edge a block of its own.
    return [_decided(block) for block in blocks.values()]


@each_function
def thread_branches(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """The same for the ways out of a branch: a way that decides the next test gets a block of its own."""
    known = constants_at_start(program, function)
    blocks = {block.label: block for block in function.blocks}
    heads = _loop_heads(function)
    fresh = _first_free_label(program, function)
    out: list[Block] = []
    for block in function.blocks:
        ways: list[Block] = []
        if isinstance(block.terminator, Branch) and block.label in known:
            turned: dict[Label, Label] = {}
            for target, leaving in constants_leaving(program, block, known[block.label]):
                test = blocks[target]
                if (
                    not isinstance(test.terminator, Branch)
                    or target in (block.label, function.entry)
                    or target in heads
                    or cost_of(test.eqns).operations > FLAG_OPERATIONS
                ):
                    continue
                way = _decided(_with_constants(test, leaving))
                if isinstance(way.terminator, Jump):
                    turned[target] = fresh
                    ways.append(joined(way.with_(label=fresh, eqns=(), assigns=(), steps=0), way))
                    fresh += 1
            block = block.with_(terminator=retarget(block.terminator, turned))
        out += [block, *ways]
    return out


def _first_free_label(program: BlockProgram, function: BlockFunction) -> Label:
    """A label from which on a pass over this function may count: no two functions count over the same."""
    taken = 1 + max(block.label for _, block in program.all_blocks())
    for other in program.functions.values():
        if other is function:
            break
        taken += sum(len(successors(block)) for block in other.blocks)
    return taken


def _leads_to_decision(blocks: dict[Label, Block], block: Block) -> bool:
    """Whether the constants a block leaves decide the branch after its jump."""
    assert isinstance(block.terminator, Jump)
    target = blocks[block.terminator.target]
    if (
        not isinstance(target.terminator, Branch)
        or cost_of(target.eqns).operations > COPY_OPERATIONS
    ):
        return False
    return isinstance(_decided(joined(block, target)).terminator, Jump)


def _loop_heads(function: BlockFunction) -> set[Label]:
    """Blocks that a later block jumps back to."""
    position = {block.label: i for i, block in enumerate(function.blocks)}
    return {
        target
        for i, block in enumerate(function.blocks)
        for target in successors(block)
        if position[target] <= i
    }


def _decided(block: Block) -> Block:
    """The block with its branch turned into a jump, if its own equations and constants decide it."""
    if not isinstance(block.terminator, Branch):
        return block
    index, targets = block.terminator.index, block.terminator.targets
    if len(set(targets)) == 1:
        return block.with_(terminator=Jump(targets[0]))
    value = known_value(index, block.eqns)
    return block if value is None else block.with_(terminator=Jump(targets[int(value)]))


@each_function
def propagate_constants(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Put constants in place of the variables that hold them on every way to a block."""
    known = constants_at_start(program, function)
    return [
        _decided(_with_constants(block, known[block.label]))
        for block in function.blocks
        if block.label in known
    ]


def _with_constants(block: Block, known: dict[Var, Any]) -> Block:
    inside = defined(block)
    env: dict[Var, Atom] = {
        var: Literal(np.asarray(value, var.aval.dtype)[()], _jax.strong(var.aval))
        for var, value in known.items()
        if var not in inside
    }
    return substitute_block(env, block)


@each_function
def drop_dead_code(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Remove stores that are not read and equations that are not needed."""
    alive = live_out(program, function)
    return [_without_dead(block, alive[block.label]) for block in function.blocks]


def _without_dead(block: Block, alive: Any) -> Block:
    assigned = {var for var, _ in block.assigns}
    assigns = tuple((var, atom) for var, atom in block.assigns if var in alive)
    needed = {atom for _, atom in assigns if isinstance(atom, Var)}
    needed |= {atom for atom in terminator_atoms(block.terminator) if isinstance(atom, Var)}
    needed |= {var for var in alive if var not in assigned}
    eqns = []
    for eqn in reversed(block.eqns):
        if eqn.effects or any(var in needed for var in eqn.outvars):
            eqns.append(eqn)
            needed |= {atom for atom in eqn.invars if isinstance(atom, Var)}
    return block.with_(eqns=tuple(reversed(eqns)), assigns=assigns)


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
        block = substitute_block(rename, block)
        return block.with_(assigns=tuple((rename.get(v, v), a) for v, a in block.assigns))

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


def inherit(program: BlockProgram) -> BlockProgram:
    """Read inputs where they are, not through parameters."""
    while env := _inherited(program):
        functions = {
            name: replace(
                function,
                params=tuple(var for var in function.params if var not in env),
                blocks=tuple(_reading_through(block, env) for block in function.blocks),
            )
            for name, function in program.functions.items()
        }
        program = replace(program, functions=functions)
    return program


def _inherited(program: BlockProgram) -> dict[Var, Atom]:
    """The parameters that every call gives one and the same variable that never changes, with that variable."""
    given: dict[Var, set[Var | None]] = {}
    changing: set[Var] = {var for f in program.functions.values() for var in f.results}
    for _, block in program.all_blocks():
        changing.update(defined(block), (var for var, _ in block.assigns))
        if isinstance(block.terminator, Call | TailCall):
            for var, atom in block.terminator.arguments:
                if atom is not var:
                    given.setdefault(var, set()).add(atom if isinstance(atom, Var) else None)
    fixed = {*program.inputs, *(var for var, _ in program.constants)} - changing - given.keys()
    found: dict[Var, Atom] = {}
    for var, atoms in given.items():
        if var not in changing and var not in program.inputs and len(atoms) == 1:
            (atom,) = atoms
            if atom in fixed:
                found[var] = atom
    return found


def _reading_through(block: Block, env: dict[Var, Atom]) -> Block:
    terminator = block.terminator
    if isinstance(terminator, Call | TailCall):
        kept = tuple((var, atom) for var, atom in terminator.arguments if var not in env)
        block = block.with_(terminator=replace(terminator, arguments=kept))
    return substitute_block(env, block)


THREADING: tuple[Pass, ...] = (
    merge_blocks,
    thread_jumps,
    thread_branches,
    propagate_constants,
    merge_blocks,
    drop_dead_code,
)
SELECTING: tuple[Pass, ...] = (
    select_cheap_branches,
    merge_blocks,
    fold_short_circuits,
    merge_blocks,
    drop_dead_code,
)
