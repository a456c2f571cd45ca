"""Calls that do not wait for one another leave a block together, as one `Fork`.

`left = f(a); right = f(b)` is two calls in order, but nothing of the second waits for the first: neither its arguments
nor whether it is made. On a machine that keeps each call in a frame of its own (`machine/fork.py`) both can run at the
same time, and so can the calls that they make: a recursion that branches has work for many lanes inside one example.

The pass works on simplified blocks. First every call becomes a fork of one, whose results go to variables of the caller
(its *inbox*: one variable for each result of each place in a fork, shared by all forks of functions with the same
results). Then, where a block ends in a fork, the block after it does too, no other block leads there, and the second
fork's arguments can be computed without the first one's results, the two become one: the equations that lead to the
arguments move up, all others move down below the fork. What a block between two calls adds to accumulators stays
where it is, and moves down: sums have no order.

A frame reads its own variables only. What a function reads that it is not given (the captured values of a program
called inside another) is given to it by every call, and handed on by the functions in between.

Calls of a loop (`for child in children: total += f(child)`) leave turn by turn, without waiting (`spawn.py`), and so do
calls in branches of their own (`regions.py`).

What it does not do: calls around an assertion stay in order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Var
from lanewise.blocks.analysis import constant_variables, live_in, live_out
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Call,
    Fail,
    Fork,
    Forked,
    Jump,
    Label,
    Pass,
    Return,
    Spawn,
    TailCall,
    arguments_of,
    each_function,
    joined,
    predecessors,
    reads,
    substitute_block,
    substitute_inputs,
    verify_if_asked,
)
from lanewise.blocks.lane_state import with_lane_state
from lanewise.blocks.link import Linked, link_frames
from lanewise.blocks.regions import spawned_regions
from lanewise.blocks.simplify import drop_dead_code, merge_blocks
from lanewise.blocks.spawn import spawned_loops
from lanewise.core.profile import CPU, Profile
from lanewise.core.push import push_p

Variables = frozenset[Var]


class Inbox:
    """The variables that results of calls go to, by the results and the place of the call in its fork."""

    def __init__(self) -> None:
        self._places: dict[tuple[tuple[Var, ...], int], tuple[Var, ...]] = {}

    def at(self, results: tuple[Var, ...], place: int) -> tuple[Var, ...]:
        found = self._places.get((results, place))
        if found is None:
            found = tuple(_jax.new_var(var.aval) for var in results)
            self._places[results, place] = found
        return found

    @property
    def variables(self) -> Variables:
        return frozenset(var for own in self._places.values() for var in own)


def forked(program: BlockProgram, check: Pass = verify_if_asked) -> BlockProgram:
    """The same program with a fork for each call, and one for calls that do not wait for one another.

    `check` runs after each step: the verifier in tests, and where the environment asks for it.
    """
    inbox = Inbox()
    program = check(drop_dead_code(check(with_lane_state(_never_waiting(program)))))
    program = check(_handed_on(check(_each_call_forks(program, inbox))))
    program = check(drop_dead_code(check(merge_blocks(program))))

    @each_function
    def join(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
        return _joined_forks(program, function, inbox)

    program = check(drop_dead_code(check(join(program))))
    program = check(drop_dead_code(check(spawned_loops(program, inbox.variables))))
    program = check(drop_dead_code(check(spawned_regions(program, inbox.variables))))
    program = check(drop_dead_code(check(_returning_at_once(program))))
    return check(_inbox_emptied(check(_handed_on(program)), inbox))


def widest_fork(program: BlockProgram) -> float:
    """How many calls the widest fork makes; 0 without forks, infinity if some are spawned one by one."""
    ends = (block.terminator for _, block in program.all_blocks())
    return math.inf if any(isinstance(end, Spawn) for end in ends) else most_in_a_block(program)


def most_in_a_block(program: BlockProgram) -> int:
    """How many calls a block makes that waits for them, at the most."""
    ends = (block.terminator for _, block in program.all_blocks())
    return max((len(end.calls) for end in ends if isinstance(end, Fork)), default=0)


@functools.lru_cache(maxsize=512)
def link_forked(
    program: BlockProgram, varying: tuple[bool, ...], profile: Profile = CPU
) -> Linked | None:
    """The program linked for a machine that forks; None where no two calls can be made at the same time."""
    found = forked(program)
    return link_frames(found, varying, profile) if widest_fork(found) > 1 else None


def _each_call_forks(program: BlockProgram, inbox: Inbox) -> BlockProgram:
    """Every call as a fork of one. A block of its own stores the results where they were before."""
    fresh = _first_label(program)
    functions = {}
    for name, function in program.functions.items():
        blocks: list[Block] = []
        for block in function.blocks:
            if not isinstance(block.terminator, Call):
                blocks.append(block)
                continue
            callee, arguments, target = (
                block.terminator.callee,
                block.terminator.arguments,
                block.terminator.target,
            )
            results = program.functions[callee].results
            own = inbox.at(results, 0)
            fork = Fork((Forked(callee, arguments, own),), fresh)
            back = tuple(zip(results, own, strict=True))
            blocks += [
                block.with_(terminator=fork),
                Block(fresh, "returned", (), back, Jump(target)),
            ]
            fresh += 1
        functions[name] = replace(function, blocks=tuple(blocks))
    return replace(program, functions=functions)


@each_function
def _never_waiting(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """A lane that finds a tape full fails at once, and the host runs all lanes again with a longer one."""
    del program
    return [
        block.with_(terminator=replace(block.terminator, waits=False))
        if isinstance(block.terminator, Fail)
        else block
        for block in function.blocks
    ]


def _first_label(program: BlockProgram) -> Label:
    return 1 + max(block.label for _, block in program.all_blocks())


# -- what a function reads that it is not given --------------------------------------------------------


def _handed_on(program: BlockProgram) -> BlockProgram:
    """The same program whose forks give each function all that it reads, but for what never changes."""
    while True:
        found = _needs(program)
        # In order of appearance, so that the program does not change from run to run.
        seen = dict.fromkeys(var for _, block in program.all_blocks() for var in reads(block))
        needs = {name: [var for var in seen if var in own] for name, own in found.items()}
        functions = {
            name: replace(
                function, blocks=tuple(_giving(block, needs) for block in function.blocks)
            )
            for name, function in program.functions.items()
        }
        changed = any(
            a is not b
            for name, function in functions.items()
            for a, b in zip(function.blocks, program.functions[name].blocks, strict=True)
        )
        program = replace(program, functions=functions)
        if not changed:
            return program


def _needs(program: BlockProgram) -> dict[str, Variables]:
    """For each function what it reads, itself or after a tail call, and is not given as a parameter."""
    fixed = constant_variables(program) | frozenset(program.state)
    needs: dict[str, Variables] = {}
    for name, function in program.functions.items():
        entry = function.blocks[0]
        at_start = live_in(entry, live_out(program, function)[entry.label])
        needs[name] = at_start - fixed - frozenset(function.params)
    changed = True
    while changed:
        changed = False
        for name, function in program.functions.items():
            for block in function.blocks:
                if isinstance(block.terminator, TailCall):
                    given = {var for var, _ in block.terminator.arguments}
                    more = needs[block.terminator.callee] - given - frozenset(function.params)
                    if not more <= needs[name]:
                        needs[name] |= more
                        changed = True
    return needs


def _giving(block: Block, needs: dict[str, list[Var]]) -> Block:
    if not isinstance(block.terminator, Fork | Spawn):
        return block
    calls = []
    for call in block.terminator.calls:
        given = {var for var, _ in call.arguments}
        missing = (var for var in needs[call.callee] if var not in given)
        calls.append(replace(call, arguments=(*call.arguments, *((v, v) for v in missing))))
    if all(len(a.arguments) == len(b.arguments) for a, b in zip(calls, block.terminator.calls)):
        return block
    return block.with_(terminator=replace(block.terminator, calls=tuple(calls)))


# -- two forks as one --------------------------------------------------------------------------------


def _joined_forks(program: BlockProgram, function: BlockFunction, inbox: Inbox) -> Sequence[Block]:
    blocks = {block.label: block for block in function.blocks}
    before = predecessors(function.blocks)

    def alone(label: Label) -> bool:
        return label != function.entry and len(before[label]) == 1

    for label in list(blocks):
        while label in blocks:
            first = blocks[label]
            if not isinstance(first.terminator, Fork) or not alone(first.terminator.target):
                break
            second = blocks[first.terminator.target]
            if second.label == label or not isinstance(second.terminator, Fork):
                break
            after = blocks[second.terminator.target]
            if after.label in (label, second.label) or not alone(after.label):
                break
            made = _as_one(program, first, second, after, inbox)
            if made is None:
                break
            del blocks[after.label]
            for block in made:
                blocks[block.label] = block
            before = predecessors(blocks.values())
    return list(blocks.values())


def _as_one(
    program: BlockProgram, first: Block, second: Block, after: Block, inbox: Inbox
) -> tuple[Block, Block] | None:
    """Two blocks that fork one after the other as one, and all that comes after; None if the second must wait."""
    assert isinstance(first.terminator, Fork) and isinstance(second.terminator, Fork)
    late = {var for call in first.terminator.calls for var in call.results}
    needed = {a for _, a in arguments_of(second.terminator) if isinstance(a, Var)}
    up: list[JaxprEqn] = []
    for eqn in reversed(second.eqns):
        if needed.intersection(eqn.outvars):
            if eqn.effects or eqn.primitive is push_p:
                return None
            up.insert(0, eqn)
            needed.difference_update(eqn.outvars)
            needed.update(a for a in eqn.invars if isinstance(a, Var))
    if needed & late:
        return None
    env: dict[Var, Atom] = dict(first.assigns)
    stored = dict(first.assigns)
    eqns = list(first.eqns)
    for eqn in up:
        outs = [_jax.new_var(var.aval) for var in eqn.outvars]
        eqns.append(substitute_inputs(env, eqn).replace(outvars=outs))
        env.update(zip(eqn.outvars, outs, strict=True))
        stored.update(zip(eqn.outvars, outs, strict=True))
    calls, moved = _placed(program, first.terminator, second.terminator, env, inbox)
    moved_up = {id(eqn) for eqn in up}
    rest = second.with_(
        eqns=tuple(eqn for eqn in second.eqns if id(eqn) not in moved_up),
        terminator=Jump(after.label),
    )
    whole = first.with_(
        eqns=tuple(eqns),
        assigns=tuple((var, atom) for var, atom in stored.items() if var is not atom),
        terminator=Fork(calls, second.label),
    )
    return whole, joined(rest, substitute_block(moved, after))


def _placed(
    program: BlockProgram, first: Fork, second: Fork, env: dict[Var, Atom], inbox: Inbox
) -> tuple[tuple[Forked, ...], dict[Var, Atom]]:
    """The calls of two forks as those of one, and where results of the second are now."""
    calls = list(first.calls)
    moved: dict[Var, Atom] = {}
    for call in second.calls:
        own = inbox.at(program.functions[call.callee].results, len(calls))
        moved.update(zip(call.results, own, strict=True))
        arguments = tuple(
            (var, env.get(atom, atom) if isinstance(atom, Var) else atom)
            for var, atom in call.arguments
        )
        calls.append(Forked(call.callee, arguments, own))
    return tuple(calls), moved


@each_function
def _returning_at_once(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Blocks that go on to one that only hands results over return themselves: there a frame would wait once more."""
    del program
    ends = {
        b.label: b
        for b in function.blocks[1:]
        if isinstance(b.terminator, Return) and not (b.eqns or b.steps)
    }
    return [
        joined(b, ends[b.terminator.target])
        if isinstance(b.terminator, Jump) and b.terminator.target in ends and b.label not in ends
        else b
        for b in function.blocks
    ]


def _inbox_emptied(program: BlockProgram, inbox: Inbox) -> BlockProgram:
    """The same program where no block both reads results and forks.

    A fork for whose calls there is not enough room makes them one after the other, and runs its block for each: what
    the block reads must not change meanwhile.
    """
    fresh = _first_label(program)
    functions = {}
    for name, function in program.functions.items():
        blocks: list[Block] = []
        for block in function.blocks:
            found = [var for var in reads(block) if var in inbox.variables]
            if not isinstance(block.terminator, Fork) or not found:
                blocks.append(block)
                continue
            taken = {var: _jax.new_var(var.aval) for var in found}
            copy = tuple((new, old) for old, new in taken.items())
            blocks += [
                block.with_(eqns=(), assigns=copy, terminator=Jump(fresh)),
                substitute_block(dict(taken), block).with_(label=fresh, steps=0),
            ]
            fresh += 1
        functions[name] = replace(function, blocks=tuple(blocks))
    return replace(program, functions=functions)
