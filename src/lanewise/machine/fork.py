"""The schedule `fork`: calls that do not wait for one another run at the same time, each in a slot of its own.

A tick runs every cheap block, for the slots that are at it, tile by tile. When no slot is left at any of them the
expensive block (one with matrix work) with the most slots runs. So slots gather at matrix work from everywhere in the
recursion, whatever their depth and whichever example they belong to: one example with a wide recursion is as good as a
batch. This is what the agenda of DyNet (Neubig et al. 2017) does for a graph that is known; here the graph comes to be
as values decide.

A fork takes free slots for its calls, writes their arguments and puts them at their functions' entries; its own slot
waits. A return writes the results to the parent's slot, at the variables of its place, frees its own, and counts the
parent's pending calls down; the last one back lets the parent go on. Nothing is pushed or popped.

A full arena. Where there is room for some of the slots that want to fork, the deepest do: their calls end first, and
make room. Where there is room for none, outside `jit`, everyone parks and the host makes the arena larger. Where it is
as large as it gets, the machine keeps one way down in reserve: `capacity` slots that forks otherwise leave alone. When
nothing else can run, the deepest slot that wants to fork makes one call, out of the reserve, and so on: depth first, as
a stack would. That always ends: while a slot at depth d does so, all slots deeper than d are calls of its own, made one
after the other, and no way down is longer than the reserve. A slot that needs more frames than that on one way down
fails, whatever others do. Its block runs again for each of its calls, which is why a block that forks reads no results
(`blocks/fork.py`), adds to sums once, and stores what it writes with the last one.

Failure. An assertion that does not hold ends its call. That tells its parent, which ends when all its calls are back,
with what the first of them by place has said: what the program would have met first in order. Who has taken too many
steps, or needs more frames or records than there is room for, ends the whole example at once: a recursion without end
would have the machine make twice as many frames at each depth. So an example that fails an assertion and runs out of
room as well may say either.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.form import Block, Fail, Fork, Return, TailCall, arguments_of, reads
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.machine.advance import Advance, sliced_alone
from lanewise.machine.banks import Write, places, written
from lanewise.machine.calls import (
    Tile,
    can_fail,
    delivered,
    ended_by,
    failures_reported,
    launched,
    next_tile,
    without_too_deep,
)
from lanewise.machine.choice import Choice, calls_of, choose
from lanewise.machine.frames import failed_pc, with_columns
from lanewise.machine.pushes import pushed, without_pushes
from lanewise.machine.rows import put, taken
from lanewise.machine.state import State, Tick
from lanewise.machine.together import FEWEST_GROUPS
from lanewise.machine.worth import MEETING_PRODUCTS, swept_blocks

# How many slots, and elements of them, a tile of a cheap block has at most, and the widths of an expensive one.
CHEAP_WIDTH, CHEAP_ELEMENTS = 256, 1 << 15
FEWEST, MOST = 16, 1024
# An arena of many slots has this many for each slot of a tile, while its tiles are no wider than that: with more work
# there are more slots at a block, and a tile costs several microseconds beside what it computes.
SLOTS_A_WIDTH, WIDER = 32, 64


def fork(advance: Advance) -> Tick:
    """One tick of a machine whose frames are lanes."""
    linked = advance.linked
    pcs = [*swept_blocks(linked), *([] if linked.entered_once is None else [linked.entered_once])]
    expensive = [pc for pc in pcs if linked.costs[pc].products >= MEETING_PRODUCTS]
    cheap = sorted(set(pcs) - set(expensive))
    runs = {pc: _Run(advance, pc) for pc in pcs}

    def tick(state: State) -> State:
        slots = state.pc.shape[0]
        widest = max(run.width(slots) * max(run.calls, 1) for run in runs.values())
        state, choice, too_deep = choose(state, linked, cheap, expensive, widest)
        state = without_too_deep(state, linked, too_deep)
        for pc in [*cheap, *expensive]:
            state = runs[pc].all_chosen(state, choice)
        return failures_reported(state, linked) if can_fail(linked) else state

    return tick


def tile_width(linked: Linked, pc: int, slots: int) -> int:
    """How many slots a tile of a block has."""
    operations = linked.costs[pc].operations
    fewest = FEWEST
    while fewest < WIDER and 2 * fewest * SLOTS_A_WIDTH <= slots:
        fewest *= 2
    if linked.costs[pc].products >= MEETING_PRODUCTS:
        width = fewest
        while width < MOST and width * operations < linked.profile.tile_operations:
            width *= 2
        return min(width, slots)
    # Whoever is not there is moved as well.
    width = CHEAP_WIDTH
    while width > fewest and width * _moved(linked, pc) > CHEAP_ELEMENTS:
        width //= 2
    return min(width, slots)


@dataclass(frozen=True)
class _Run:
    """How slots run one block."""

    advance: Advance
    pc: int

    @property
    def linked(self) -> Linked:
        return self.advance.linked

    @property
    def block(self) -> Block:
        block = self.linked.order[self.pc]
        assert isinstance(block, Block)
        return block

    @property
    def calls(self) -> int:
        """How many calls the block makes."""
        return calls_of(self.linked, self.pc)

    def width(self, slots: int) -> int:
        return tile_width(self.linked, self.pc, slots)

    def all_chosen(self, state: State, choice: Choice) -> State:
        """Run the block for all slots that are chosen, tile by tile."""
        width = self.width(state.pc.shape[0])

        def turn(carry: tuple[Any, State]) -> tuple[Any, State]:
            return self._run(carry[1], choice, carry[0], width)

        # The loop is the guard as well, and lets XLA keep the state in place.
        number = choice.number[self.pc]
        return lax.while_loop(lambda carry: carry[0] < number, turn, (jnp.int32(0), state))[1]

    def _run(self, state: State, choice: Choice, done: Any, width: int) -> tuple[Any, State]:
        advance, linked, block = self.advance.with_lanes(width), self.linked, self.block
        own, done = next_tile(state, linked, self._wanted, choice, self.pc, done, width)
        there = own.slots < state.pc.shape[0]
        root, by_row = own.column("root"), _sliced(linked, self.pc)
        advance = advance.of_tile(by_row, root)
        before = self._taken(state, own, there)
        mask, shared = advance.agreeing(before, block, there, max(width // FEWEST_GROUPS, 1))
        first = mask & (own.column("launched") == 0)
        state, mask = self._bounded(state, own, mask, first)
        block, pushes = without_pushes(linked, self.pc)
        state, known = pushed(state, pushes, before, self.block, root, mask, advance)
        after, given = advance.execute(before, block, mask, shared, mask & first, known)
        after = advance.count(after, mask, self.pc)
        state = state.with_(
            uniforms=after.uniforms, sums=after.sums, counters=after.counters, watch=after.watch
        )
        to, writes = jnp.where(mask, own.slots, state.pc.shape[0]), []
        match block.terminator:
            case Fork():
                state, to, writes = launched(
                    state, linked, self.pc, own, mask, given, choice, done, advance
                )
            case Return():
                results = linked.program.functions[_function_of(linked, self.pc)].results
                state, writes = delivered(state, linked, own, mask, results, after, advance)
            case Fail(site, outcome):
                return done, _failed(state, linked, own, mask, int(outcome), site)
            case _:
                after = advance.leave(after, block, mask, given)
                state = state.with_(uniforms=after.uniforms, pc=put(state.pc, to, after.pc))
        banks = written(state.frames.banks, [*self._stores(after, to), *writes])
        return done, state.with_(frames=state.frames.with_(banks=banks))

    def _bounded(self, state: State, own: Tile, mask: Any, first: Any) -> tuple[State, Any]:
        """Count steps; slots that have too many fail, and do not run."""
        block, most = self.block, self.advance.max_steps
        if block.steps and (most is not None or self.advance.counting):
            root = own.column("root")
            to = jnp.where(first, root, state.pc.shape[0])
            steps = state.steps.at[to].add(block.steps, mode="drop")
            state = state.with_(steps=steps)
            if most is not None:
                spent = mask & (taken(steps, root) > most)
                code = int(Outcome.STEPS_EXHAUSTED)
                state = state.with_(frames=ended_by(state.frames, own.rows, spent, code))
                mask = mask & ~spent
        return state, mask

    @property
    def _wanted(self) -> list[Var]:
        """The variables of a slot that the block reads, or gives."""
        touched = {*reads(without_pushes(self.linked, self.pc)[0]), *_kept(self.linked, self.pc)}
        return [var for var in places(self.linked) if var in touched]

    def _taken(self, state: State, own: Tile, there: Any) -> State:
        """The state of a tile."""
        linked, by_row = self.linked, _sliced(self.linked, self.pc)
        touched = set(reads(without_pushes(linked, self.pc)[0]))
        registers = tuple(
            own.values[var]
            if var in own.values
            else array
            if var not in touched or var in by_row
            else taken(array, own.column("root"))
            for var, array in zip(linked.registers, state.registers, strict=True)
        )
        return state.with_(
            pc=jnp.where(there, self.pc, linked.halt), registers=registers, frames=()
        )

    def _stores(self, after: State, to: Any) -> list[Write]:
        """What the tile has written, for these slots."""
        where, place = places(self.linked), self.advance.place
        kept = _kept(self.linked, self.pc)
        return [
            Write(*where[v], to, after.registers[place[v]])
            for v in self.linked.registers
            if v in kept
        ]


def _failed(state: State, linked: Linked, own: Tile, mask: Any, code: int, site: int) -> State:
    """The slots of the mask have failed; what is no assertion ends the whole example."""
    if code != int(Outcome.ASSERTION_FAILED):
        return state.with_(
            pc=own.put(state.pc, jnp.full(mask.shape, linked.halt, jnp.int32), mask),
            frames=ended_by(state.frames, own.rows, mask, code),
        )
    rows = with_columns(own.rows, code=code, site=site)
    return state.with_(
        pc=own.put(state.pc, jnp.full(mask.shape, failed_pc(linked), jnp.int32), mask),
        frames=state.frames.with_(table=own.put(state.frames.table, rows, mask)),
    )


@functools.lru_cache(maxsize=4096)
def _kept(linked: Linked, pc: int) -> frozenset[Var]:
    """The registers of a slot that a block writes, or must have: the results where it returns."""
    block = linked.order[pc]
    assert isinstance(block, Block)
    found = set(writes_in_order(block)) & linked.storage.live_out[block.label]
    if isinstance(block.terminator, TailCall):
        found |= {var for var, _ in block.terminator.arguments}
    if isinstance(block.terminator, Return):
        found |= set(linked.program.functions[_function_of(linked, pc)].results)
    return frozenset(found & set(linked.registers)) - linked.held_by_lanes


@functools.lru_cache(maxsize=4096)
def _moved(linked: Linked, pc: int) -> int:
    """How many elements a slot moves to run a block, and back."""
    block, pushes = without_pushes(linked, pc)
    taken = set(reads(block)).intersection(linked.registers) - linked.held_by_lanes
    given = [var for var, _ in arguments_of(block.terminator)]
    moved = [*taken, *_kept(linked, pc), *given, *(push.entries for push in pushes)]
    return sum(atom.aval.size for atom in moved)


@functools.lru_cache(maxsize=4096)
def _sliced(linked: Linked, pc: int) -> frozenset[Var]:
    """What lanes hold that a block reads slices of: no slot takes the whole of it."""
    block, _ = without_pushes(linked, pc)
    found = linked.held_by_lanes.intersection(reads(block))
    return frozenset(var for var in found if sliced_alone(block, var))


@functools.lru_cache(maxsize=4096)
def _function_of(linked: Linked, pc: int) -> str:
    block = linked.order[pc]
    return next(f.name for f, other in linked.program.all_blocks() if other is block)
