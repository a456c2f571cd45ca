"""Blocks put in one row: the machine's view of a program.

Linking numbers all functions' blocks in program order (the number is the pc), gives every call a block of its own to
come back to where values must be popped, and decides storage. Before that, variables that only copy each other get one
place (`coalesce.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lanewise._jax import Var
from lanewise.blocks.analysis import (
    CallStorage,
    Storage,
    constant_variables,
    storage,
    writes,
)
from lanewise.blocks.coalesce import coalesce, within_functions
from lanewise.blocks.form import (
    Block,
    BlockProgram,
    Branch,
    Call,
    Fail,
    Fork,
    Jump,
    Label,
    Return,
    Spawn,
    arguments_of,
    callees,
    is_called,
    successors,
)
from lanewise.core.primitives.facts import Cost, cost_with_shared
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
        ends = (getattr(item, "terminator", None) for item in self.order)
        return any(isinstance(end, Fork | Spawn) for end in ends)

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
        """The pcs of blocks that do nothing but end the lane: a lane that would go there has ended."""
        entry = self.program.entry_function
        if is_called(self.program, entry.name):
            return frozenset()
        return frozenset(
            self.pc_of[block.label]
            for block in entry.blocks[1:]
            if isinstance(block.terminator, Return)
            and not (block.eqns or block.assigns or block.steps)
        )

    @cached_property
    def waiting(self) -> frozenset[Label]:
        """The blocks that end a lane for lack of room on a tape that may grow: no lane goes there."""
        return frozenset(
            item.label
            for item in self.order
            if isinstance(item, Block)
            and isinstance(item.terminator, Fail)
            and item.terminator.waits
        )

    def writes_shared(self, block: Block) -> bool:
        """Whether a block writes a variable that is kept once for all lanes."""
        written = {*writes(block)} & {*self.storage.live_out[block.label]}
        written |= {var for var, atom in arguments_of(block.terminator) if var is not atom}
        return not written.isdisjoint(self.uniforms)

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
        """Whether all that diverges is one loop of one block: lanes cannot get ahead of each other in it."""
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
    program = within_functions(program, tuple(varying))
    order = tuple(block for _, block in program.all_blocks())
    pc_of = {block.label: pc for pc, block in enumerate(order)}
    return Linked(program, storage(program, varying), order, pc_of, {}, profile)
