"""Blocks put in one row: the machine's view of a program.

Linking numbers all functions' blocks in program order (the number is the pc), gives every call a block of its own to
come back to where values must be popped, and decides storage. Before that, variables that only copy each other get one
place (`coalesce`).

A loop inside a loop, or a branch inside a loop, hands its whole state from variable to variable. For a machine that
keeps every variable for every lane each copy is a masked write. Two variables may share a place unless one is written
while the other still holds a different value that is needed (Chaitin 1982). Only copies are reasons to share. All of a
block's writes happen at its end, after all its reads, so variables can only be in each other's way there.

A function that takes a state and gives it on (a buffer it writes to, say) takes it in a parameter and gives it in a
result. Where neither is in the other's way these two share a place as well, in the whole program, and so a recursion
hands its state from call to call without a copy. What the first call gives back in the end is left where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.blocks.analysis import (
    CallStorage,
    Storage,
    constant_variables,
    identical,
    live_in,
    live_out,
    storage,
    uniform_variables,
    writes_in_order,
)
from lanewise.blocks.equations import Cost, before_updates, bytes_of, cost_with_shared
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Fail,
    Fork,
    Jump,
    Label,
    Return,
    arguments_of,
    callees,
    defined,
    given_back,
    reads,
    substitute,
    substitute_terminator,
    successors,
)
from lanewise.core.profile import CPU, Profile


@dataclass(frozen=True, eq=False)
class Linked:
    """A program ready to run: `order[pc]` is a block, or the return point of the call in `returns_of[pc]`."""

    program: BlockProgram
    storage: Storage
    order: tuple[Block | ReturnPoint, ...]
    pc_of: dict[Label, int]
    return_pc: dict[Label, int]
    profile: Profile

    @property
    def halt(self) -> int:
        """The pc of a lane that has ended."""
        return len(self.order)

    @cached_property
    def registers(self) -> tuple[Var, ...]:
        """Variables kept for each lane between blocks."""
        return tuple(var for var in self.storage.registers if var not in self.storage.uniform)

    @cached_property
    def uniforms(self) -> tuple[Var, ...]:
        """Variables kept once for all lanes."""
        return tuple(var for var in self.storage.registers if var in self.storage.uniform)

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        uniform = self.storage.uniform
        return tuple(
            cost_with_shared(item.eqns, uniform.__contains__) if isinstance(item, Block) else Cost()
            for item in self.order
        )

    @cached_property
    def moves(self) -> tuple[int, ...]:
        """How many elements of a lane each block writes to registers, or moves to or from stacks, at its end."""
        return tuple(self._moves(item) for item in self.order)

    def _moves(self, item: Block | ReturnPoint) -> int:
        if isinstance(item, ReturnPoint):
            return sum(var.aval.size for var in item.moves.pop)
        written = {var for var, _ in item.assigns} | {var for e in item.eqns for var in e.outvars}
        written &= self.storage.live_out[item.label]
        written |= {var for var, atom in arguments_of(item.terminator) if var is not atom}
        moved = [var for var in written if var not in self.storage.uniform]
        if isinstance(item.terminator, Call):
            moved += self.storage.calls[item.label].push
        return sum(var.aval.size for var in moved)

    @cached_property
    def has_calls(self) -> bool:
        return bool(self.storage.calls) or self.forks

    @cached_property
    def forks(self) -> bool:
        """Whether each call has a frame of its own, in the place of stacks."""
        return any(isinstance(getattr(item, "terminator", None), Fork) for item in self.order)

    @cached_property
    def held_by_lanes(self) -> frozenset[Var]:
        """Registers that nothing writes: where frames are lanes, those of an example share them."""
        return (constant_variables(self.program) | {*self.program.state}) & {*self.registers}

    @cached_property
    def straight(self) -> bool:
        """Whether the program is one block: nothing diverges."""
        return len(self.order) == 1 and isinstance(self.order[0].terminator, Return)  # type: ignore[union-attr]

    @cached_property
    def entered_once(self) -> int | None:
        """The pc of the entry, if no block and no call leads back to it."""
        entry = self.program.entry_function
        blocks = [item for item in self.order if isinstance(item, Block)]
        again = any(entry.entry in successors(b) for b in blocks) or any(
            entry.name in callees(b.terminator) for b in blocks
        )
        return None if again else self.pc_of[entry.entry]

    @cached_property
    def bare_ends(self) -> frozenset[int]:
        """The pcs of blocks that do nothing but end the lane: who would go there has ended."""
        entry = self.program.entry_function
        if _is_called(self.program, entry.name):
            return frozenset()
        return frozenset(
            self.pc_of[block.label]
            for block in entry.blocks[1:]
            if isinstance(block.terminator, Return)
            and not (block.eqns or block.assigns or block.steps)
        )

    @cached_property
    def waiting(self) -> frozenset[Label]:
        """The blocks that end a lane for want of room on a tape that may grow: no lane goes there."""
        return frozenset(
            item.label
            for item in self.order
            if isinstance(item, Block)
            and isinstance(item.terminator, Fail)
            and item.terminator.waits
        )

    def pc_after(self, target: Label) -> int:
        """The pc of a lane that goes to `target`."""
        pc = self.pc_of[target]
        return self.halt if pc in self.bare_ends else pc

    def pc_after_call(self, call: Label) -> int:
        """The pc of a lane that comes back from the call at the end of block `call`."""
        pc = self.return_pc[call]
        return self.halt if pc in self.bare_ends else pc

    @cached_property
    def destinations(self) -> frozenset[int]:
        """The pcs of all places that a block, a call or a return leaves a lane at."""
        functions = self.program.functions
        found: set[int] = set()
        for item in self.order:
            if isinstance(item, ReturnPoint):
                found.add(self.pc_after(item.target))
                continue
            found.update(self.pc_after(t) for t in successors(item) if t not in self.waiting)
            found.update(self.pc_of[functions[name].entry] for name in callees(item.terminator))
            if isinstance(item.terminator, Call):
                found.add(self.pc_after_call(item.label))
        return frozenset(found)

    @cached_property
    def one_loop(self) -> bool:
        """Whether all there is to diverge is one loop of one block: lanes cannot get ahead of each other in it."""
        back = [
            (pc, self.pc_of[target])
            for pc, item in enumerate(self.order)
            if isinstance(item, Block)
            for target in successors(item)
            if self.pc_of[target] <= pc
        ]
        plain_ends = all(
            isinstance(b.terminator, Jump | Branch | Return)
            for b in self.order
            if isinstance(b, Block)
        )
        return plain_ends and not self.has_calls and len(back) == 1 and back[0][0] == back[0][1]


@dataclass(frozen=True, eq=False)
class ReturnPoint:
    """Where a call comes back: pops what the frame had saved, then goes on at `target`."""

    call: Label
    moves: CallStorage
    target: Label

    @property
    def note(self) -> str:
        return f"return of {self.call}"


def link(program: BlockProgram, varying: Sequence[bool], profile: Profile = CPU) -> Linked:
    """Number the blocks and decide storage, when these inputs vary between lanes of a machine with this profile."""
    program = coalesce(program, varying)
    decided = storage(program, varying)
    blocks = [block for _, block in program.all_blocks()]
    points: dict[Label, list[ReturnPoint]] = {}
    for block in blocks:
        if isinstance(block.terminator, Call) and decided.calls[block.label].pop:
            point = ReturnPoint(block.label, decided.calls[block.label], block.terminator.target)
            points.setdefault(point.target, []).append(point)
    order: list[Block | ReturnPoint] = []
    for block in blocks:
        order += points.get(block.label, [])
        order.append(block)
    pc_of = {item.label: pc for pc, item in enumerate(order) if isinstance(item, Block)}
    return_pc = {item.call: pc for pc, item in enumerate(order) if isinstance(item, ReturnPoint)}
    for block in blocks:
        if isinstance(block.terminator, Call) and block.label not in return_pc:
            return_pc[block.label] = pc_of[block.terminator.target]
    return Linked(program, decided, tuple(order), pc_of, return_pc, profile)


def link_frames(program: BlockProgram, varying: Sequence[bool], profile: Profile = CPU) -> Linked:
    """The same for a machine that forks: each frame has registers of its own, and nothing is saved."""
    program = _within_functions(program, tuple(varying))
    order = tuple(block for _, block in program.all_blocks())
    pc_of = {block.label: pc for pc, block in enumerate(order)}
    return Linked(program, storage(program, varying), order, pc_of, {}, profile)


def coalesce(program: BlockProgram, varying_inputs: Iterable[bool]) -> BlockProgram:
    """Give variables that copy each other one place where they are not in each other's way."""
    varying_inputs = tuple(varying_inputs)
    program = _within_functions(program, varying_inputs)
    place = _results_in_parameters(program, uniform_variables(program, varying_inputs))
    if place:
        functions = {}
        for name, function in program.functions.items():
            alive = live_out(program, function)
            functions[name] = replace(
                function,
                results=tuple(place.get(var, var) for var in function.results),
                blocks=tuple(_renamed(b, alive[b.label], place) for b in function.blocks),
            )
        program = _within_functions(replace(program, functions=functions), varying_inputs)
    return _answers_as_called_functions_give_them(program)


def _answers_as_called_functions_give_them(program: BlockProgram) -> BlockProgram:
    """An answer that is what a call gave, copied where the lane ends, is left in that function's result variable."""
    entry = program.entry_function
    if _is_called(program, entry.name):
        return program
    given = {var for f in program.functions.values() if f is not entry for var in f.results}
    stays: dict[Var, Var] = {}
    for result in entry.results:
        ends = [(b, src) for b in entry.blocks for dst, src in b.assigns if dst is result]
        sources = {src for _, src in ends if isinstance(src, Var)}
        if len(sources) == 1 and all(
            isinstance(block.terminator, Return)
            and isinstance(src, Var)
            and src in given
            and src not in writes_in_order(block)
            and (src.aval.shape, src.aval.dtype) == (result.aval.shape, result.aval.dtype)
            for block, src in ends
        ):
            stays[result] = sources.pop()
    read = {var for b in entry.blocks for var in reads(b)}
    stays = {var: src for var, src in stays.items() if var not in read}
    blocks = tuple(
        b.with_(assigns=tuple((dst, src) for dst, src in b.assigns if dst not in stays))
        for b in entry.blocks
    )
    results = tuple(stays.get(var, var) for var in entry.results)
    changed = replace(entry, results=results, blocks=blocks)
    return replace(program, functions={**program.functions, entry.name: changed})


def _within_functions(program: BlockProgram, varying_inputs: Iterable[bool]) -> BlockProgram:
    uniform = uniform_variables(program, varying_inputs)
    functions = {name: _coalesced(program, f, uniform) for name, f in program.functions.items()}
    return replace(program, functions=functions)


def _results_in_parameters(program: BlockProgram, uniform: frozenset[Var]) -> dict[Var, Var]:
    """Results of functions that may have the place of one of their parameters, with that parameter."""
    copies = {
        frozenset((dst, before_updates(block.eqns, src)))
        for _, block in program.all_blocks()
        for dst, src in block.assigns
        if isinstance(src, Var)
    }
    # One that has such a place already keeps it: it is read there as a parameter, too.
    taken = {var for function in program.functions.values() for var in function.params}
    place: dict[Var, Var] = {}
    for name, function in program.functions.items():
        if not _is_called(program, name):
            continue
        alive = live_out(program, function)
        conflicts = _conflicts(program, function, alive, set(function.results) - uniform)
        for result in (var for var in function.results if var not in taken):
            for param in function.params:
                same_type = (result.aval.shape, result.aval.dtype) == (
                    param.aval.shape,
                    param.aval.dtype,
                )
                free = param not in place.values() and not {result, param} & uniform
                apart = param not in conflicts.get(result, set())
                if same_type and free and apart and frozenset((result, param)) in copies:
                    place[result] = param
                    break
    return place


def _coalesced(
    program: BlockProgram, function: BlockFunction, uniform: frozenset[Var]
) -> BlockFunction:
    alive = live_out(program, function)
    others = {
        var
        for f in program.functions.values()
        if f is not function
        for var in (*f.params, *f.results)
    }
    # What others see keeps its name; what is the same for all lanes must stay so. The results of a function that
    # nobody calls are seen at the very end only: an answer may stay where it was computed.
    fixed = {*program.inputs, *function.params, *(v for v, _ in program.constants), *others}
    if _is_called(program, function.name):
        fixed |= set(function.results)
    movable = {var for b in function.blocks for var in writes_in_order(b)} - uniform - others
    conflicts = _conflicts(program, function, alive, movable)
    groups = _Groups(conflicts, fixed)
    copies = [
        (dst, src)
        for block in function.blocks
        for dst, src in (*block.assigns, *_written_copies(program, block, alive[block.label]))
        if isinstance(src, Var) and _may_share(dst, src, movable, function)
    ]
    for dst, src in sorted(copies, key=lambda pair: -bytes_of(pair[0])):
        groups.join(dst, src)
    place = groups.places()
    if not place:
        return function
    return replace(
        function,
        results=tuple(place.get(var, var) for var in function.results),
        blocks=tuple(_renamed(b, alive[b.label], place) for b in function.blocks),
    )


def _written_copies(
    program: BlockProgram, block: Block, alive: frozenset[Var]
) -> list[tuple[Var, Var | None]]:
    """What leaves a block, where it is another variable written at some places: in its place only those are written.

    Only in programs of one function that nobody calls: with calls, generated programs came out wrong on `native`.
    """
    if len(program.functions) > 1 or _is_called(program, program.entry_function.name):
        return []
    stored = {var: var for var in defined(block)} | dict(block.assigns)
    return [(var, before_updates(block.eqns, atom)) for var, atom in stored.items() if var in alive]


def _is_called(program: BlockProgram, name: str) -> bool:
    return any(name in callees(block.terminator) for _, block in program.all_blocks())


def _may_share(dst: Var, src: Var, movable: set[Var], function: BlockFunction) -> bool:
    usable = movable | set(function.params)
    same_type = (dst.aval.shape, dst.aval.dtype) == (src.aval.shape, src.aval.dtype)
    return dst in usable and src in usable and same_type and dst is not src


def _conflicts(
    program: BlockProgram,
    function: BlockFunction,
    alive: dict[int, frozenset[Var]],
    movable: set[Var],
) -> dict[Var, set[Var]]:
    found: dict[Var, set[Var]] = {}

    def against(first: Var, second: Var) -> None:
        found.setdefault(first, set()).add(second)
        found.setdefault(second, set()).add(first)

    entry = function.blocks[0]
    at_start = (live_in(entry, alive[entry.label]) | set(function.params)) & (
        movable | set(function.params)
    )
    for first in at_start:
        for second in at_start:
            if first is not second:
                against(first, second)
    for block in function.blocks:
        if isinstance(block.terminator, Call):
            # The callee writes its results while the frame waits.
            for result in program.functions[block.terminator.callee].results:
                for other in alive[block.label]:
                    against(result, other)
        if isinstance(block.terminator, Fork):
            # So do calls, to the variables that a fork names.
            for result in given_back(program, block.terminator):
                for other in alive[block.label]:
                    against(result, other)
        stored: dict[Var, Any] = {var: var for var in defined(block)} | dict(block.assigns)
        kept = alive[block.label]
        for var in stored:
            if var not in kept:
                continue
            source = stored[var]
            for other in kept:
                if other is not var and not _same(source, stored.get(other, other)):
                    against(var, other)
    return found


def _same(first: Atom, second: Atom) -> bool:
    if isinstance(first, Literal) and isinstance(second, Literal):
        return identical(
            np.asarray(first.val, first.aval.dtype), np.asarray(second.val, second.aval.dtype)
        )
    return first is second


class _Groups:
    """Sets of variables that share a place, with what is in the way of each."""

    def __init__(self, conflicts: dict[Var, set[Var]], fixed: set[Var]) -> None:
        self.conflicts = conflicts
        self.fixed = fixed
        self.members: dict[Var, set[Var]] = {}
        self.group: dict[Var, Var] = {}

    def find(self, var: Var) -> Var:
        return self.group.get(var, var)

    def join(self, first: Var, second: Var) -> None:
        a, b = self.find(first), self.find(second)
        if a is b:
            return
        left, right = self.members.get(a, {a}), self.members.get(b, {b})
        if any(self.conflicts.get(var, set()) & right for var in left):
            return
        if len((left | right) & self.fixed) > 1:
            return
        named = next(iter((left | right) & self.fixed), a)
        self.members[named] = left | right
        for var in left | right:
            self.group[var] = named

    def places(self) -> dict[Var, Var]:
        return {var: named for var, named in self.group.items() if var is not named}


def _renamed(block: Block, alive: frozenset[Var], place: dict[Var, Var]) -> Block:
    """The block with its reads and writes at the shared places; what its equations define stays its own."""
    env: dict[Var, Atom] = dict(place)
    eqns = []
    stored: dict[Var, Atom] = {}
    assigned = {var for var, _ in block.assigns}
    for eqn in block.eqns:
        invars = [substitute(env, atom) for atom in eqn.invars]
        outs = []
        for var in eqn.outvars:
            own = _jax.new_var(var.aval)
            outs.append(own)
            env[var] = own
            if var in alive and var not in assigned:
                stored[place.get(var, var)] = own
        eqns.append(eqn.replace(invars=invars, outvars=outs))
    for var, atom in block.assigns:
        if var in alive:
            stored[place.get(var, var)] = substitute(env, atom)
    assigns = tuple((var, atom) for var, atom in stored.items() if var is not atom)
    return block.with_(
        eqns=tuple(eqns), assigns=assigns, terminator=substitute_terminator(block.terminator, env)
    )
