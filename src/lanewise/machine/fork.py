"""The schedule `fork`: calls that do not wait for one another run at the same time, each in a slot of its own.

A tick runs every cheap block, for the slots that are at it when the tick begins, tile by tile. When no slot is at any
of them the expensive block (one with matrix work) with the most slots runs (`choice.py`). So slots gather at matrix
work from everywhere in the recursion, whatever their depth and whichever example they belong to: one example with a
wide recursion is as good as a batch. The agenda of DyNet (Neubig et al. 2017) does this for a known graph; here values
decide the graph as it runs.

A fork takes free slots for its calls, writes their arguments and puts them at their functions' entries; its own slot
waits. A return writes the results to the parent's slot, at the variables of its place, frees its own, and counts the
parent's pending calls down; the last one back lets the parent go on. Nothing is pushed or popped.

A full arena. Where there is room for some of the slots that want to fork, the deepest do: their calls end first, and
make room. Where there is room for none, outside `jit`, all slots park and the host makes the arena larger. Where it is
as large as it gets, the machine keeps one way down in reserve: `capacity` slots that forks otherwise leave alone. When
nothing else can run, the deepest slot that wants to fork makes one call, out of the reserve, and so on: depth first, as
with a stack. That always ends: while a slot at depth d does so, all slots deeper than d are calls of its own, made one
after the other, and no way down is longer than the reserve. A slot that needs more frames than that on one way down
fails, whatever others do. Its block runs again for each of its calls, which is why a block that forks reads no results
(`blocks/fork.py`), adds to sums once, and stores what it writes with the last one.

Calls of loops (`blocks/spawn.py`) hold their slots until they are collected. Where nothing can run for lack of room,
slots that have spawned calls collect those first; only then one slot goes on alone, or the host makes room. It makes
all calls of one turn out of the reserve, which is as many times as large.

Failure. An assertion that does not hold ends its call. That is reported to its parent, which ends when all its calls
are back, with the failure of the first of them by place: the one that the program would have met first in order. A call
that has taken too many steps, or needs more frames or records than there is room for, ends the whole example at once: a
recursion without end would have the machine make twice as many frames at each depth. So an example that both fails an
assertion and runs out of room may report either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.blocks.form import Block, Collect, Fail, Fork, Return, Spawn, reads
from lanewise.blocks.link import Linked
from lanewise.machine.advance import Advance
from lanewise.machine.banks import Write, places, written
from lanewise.machine.calls import (
    Tile,
    Turn,
    can_fail,
    delivered,
    failed,
    failures_reported,
    launched,
    next_tile,
    stepped,
    without_too_deep,
)
from lanewise.machine.choice import Choice, calls_of, cheap_and_expensive, choose
from lanewise.machine.pushes import pushed, without_pushes
from lanewise.machine.rows import put, taken
from lanewise.machine.spawned import collected, spawned
from lanewise.machine.state import State, Tick
from lanewise.machine.tiles import kept, sliced, tile_width
from lanewise.machine.together import FEWEST_GROUPS


def fork(advance: Advance) -> Tick:
    """One tick of a machine whose frames are lanes."""
    linked = advance.linked
    cheap, expensive = cheap_and_expensive(linked)
    runs = {pc: _Run(advance, pc) for pc in (*cheap, *expensive)}

    def tick(state: State) -> State:
        slots = state.pc.shape[0]
        widest = max(run.width(slots) * max(run.calls, 1) for run in runs.values())
        state, choice, too_deep = choose(state, linked, cheap, expensive, widest)
        state = without_too_deep(state, linked, too_deep)
        for pc in [*cheap, *expensive]:
            state = runs[pc].all_chosen(state, choice)
        return failures_reported(state, linked) if can_fail(linked) else state

    return tick


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

        # The loop is also the guard, and lets XLA keep the state in place.
        number = choice.number[self.pc]
        return lax.while_loop(lambda carry: carry[0] < number, turn, (jnp.int32(0), state))[1]

    def _run(self, state: State, choice: Choice, done: Any, width: int) -> tuple[Any, State]:
        advance, linked, block = self.advance.with_lanes(width), self.linked, self.block
        own, done = next_tile(state, linked, choice, self.pc, done, width)
        there = own.slots < state.pc.shape[0]
        root, by_row = own.column("root"), sliced(linked, self.pc)
        advance = advance.of_tile(by_row, root)
        before = self._taken(state, own, there)
        mask, shared = advance.agreeing(before, block, there, max(width // FEWEST_GROUPS, 1))
        first = mask & (own.column("launched") == 0)
        state, mask = stepped(state, own, block.steps, mask, first, advance)
        block, pushes = without_pushes(linked, self.pc)
        state, known = pushed(state, pushes, before, self.block, root, mask, advance)
        after, given = advance.execute(before, block, mask, shared, mask & first, known)
        after = advance.count(after, mask, self.pc)
        state = state.with_(
            uniforms=after.uniforms, sums=after.sums, counters=after.counters, watch=after.watch
        )
        turn = Turn(advance, self.pc, own, mask, choice, done)
        to, writes = jnp.where(mask, own.slots, state.pc.shape[0]), []
        match block.terminator:
            case Fork():
                state, to, writes = launched(state, turn, given)
            case Spawn():
                state, writes = spawned(state, turn, given)
            case Collect():
                state, writes = collected(state, turn)
            case Return():
                state, writes = delivered(state, turn, after)
            case Fail(site, outcome):
                return done, failed(state, turn, int(outcome), site)
            case _:
                after = advance.leave(after, block, mask, given)
                state = state.with_(uniforms=after.uniforms, pc=put(state.pc, to, after.pc))
        banks = written(state.frames.banks, [*self._stores(after, to), *writes])
        return done, state.with_(frames=state.frames.with_(banks=banks))

    def _taken(self, state: State, own: Tile, there: Any) -> State:
        """The state of a tile."""
        linked, by_row = self.linked, sliced(self.linked, self.pc)
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
        written_by = kept(self.linked, self.pc)
        return [
            Write(*where[v], to, after.registers[place[v]])
            for v in self.linked.registers
            if v in written_by
        ]
