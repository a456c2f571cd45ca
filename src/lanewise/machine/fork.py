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
from lanewise.machine.calls import (
    Tile,
    delivered,
    ended_by,
    failures_reported,
    launched,
    without_ended,
)
from lanewise.machine.frames import column, failed_pc, first_slots, with_columns
from lanewise.machine.pushes import pushed, without_pushes
from lanewise.machine.state import State, Tick, running
from lanewise.machine.together import FEWEST_GROUPS
from lanewise.machine.worth import MEETING_PRODUCTS, swept_blocks

# How many slots, and elements of them, a tile of a cheap block has at most, and the widths of an expensive one.
CHEAP_WIDTH, CHEAP_ELEMENTS = 256, 1 << 15
FEWEST, MOST = 16, 1024
# How many slots are chosen for tiles at a time.
CHOSEN = 1024


def fork(advance: Advance) -> Tick:
    """One tick of a machine whose frames are lanes."""
    linked = advance.linked
    pcs = [*swept_blocks(linked), *([] if linked.entered_once is None else [linked.entered_once])]
    expensive = [pc for pc in pcs if linked.costs[pc].products >= MEETING_PRODUCTS]
    cheap = sorted(set(pcs) - set(expensive))
    runs = {pc: _Run(advance, pc) for pc in pcs}

    def tick(state: State) -> State:
        state = state.with_(frames=state.frames.with_(ran=jnp.int32(0)))
        # Before anything moves: where nothing could, one slot may.
        chosen = _deepest(state, linked)
        for pc in cheap:
            state = runs[pc].all_there(state, chosen, True)
        if expensive:
            could = [runs[pc].number(state, chosen) for pc in cheap]
            idle = functools.reduce(jnp.add, could, jnp.int32(0)) == 0
            there = jnp.stack([runs[pc].number(state, chosen) for pc in expensive])
            fullest = jnp.argmax(there)
            for place, pc in enumerate(expensive):
                state = runs[pc].all_there(state, chosen, idle & (fullest == place))
        state = without_ended(failures_reported(state, linked), linked)
        return _parked_if_stuck(state, linked)

    return tick


def _deepest(state: State, linked: Linked) -> Any:
    """The slot that may make a call out of the reserve; a number that no slot has, unless the machine was stuck."""
    depth = jnp.where(running(state, linked), column(state.frames.table, "depth"), -1)
    return jnp.where(state.frames.stuck, jnp.argmax(depth), state.pc.shape[0]).astype(jnp.int32)


def _parked_if_stuck(state: State, linked: Linked) -> State:
    """The state after a tick: if nothing has run, all park for the host, or one slot goes on in the next."""
    goes_on = running(state, linked)
    stuck = (state.frames.ran == 0) & goes_on.any()
    parks = stuck & ~state.frames.final & goes_on
    return state.with_(
        pc=jnp.where(parks, -1 - state.pc, state.pc),
        frames=state.frames.with_(stuck=stuck & state.frames.final),
    )


def tile_width(linked: Linked, pc: int, slots: int) -> int:
    """How many slots a tile of a block has."""
    operations = linked.costs[pc].operations
    # Whoever is not there is moved as well.
    width = CHEAP_WIDTH
    while width > FEWEST and width * _moved(linked, pc) > CHEAP_ELEMENTS:
        width //= 2
    if linked.costs[pc].products >= MEETING_PRODUCTS:
        width = FEWEST
        while width < MOST and width * operations < linked.profile.tile_operations:
            width *= 2
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
        end = self.block.terminator
        return len(end.calls) if isinstance(end, Fork) else 0

    def room(self, state: State) -> Any:
        """How many slots may fork here."""
        frames = state.frames
        free = (state.pc[frames.lanes :] == self.linked.halt).sum(dtype=jnp.int32)
        reserve = jnp.where(frames.final, state.returns.shape[0], 0)
        return jnp.maximum(free - reserve, 0) // max(self.calls, 1)

    def number(self, state: State, chosen: Any) -> Any:
        """How many slots run if the block does."""
        here = (state.pc == self.pc).sum(dtype=jnp.int32)
        if not self.calls:
            return here
        alone = (state.pc.at[chosen].get(mode="fill", fill_value=-1) == self.pc).astype(jnp.int32)
        return jnp.maximum(jnp.minimum(here, self.room(state)), alone)

    def all_there(self, state: State, chosen: Any, flag: Any) -> State:
        """Run the block, if the flag holds, for all slots that are at it and have room."""
        slots = state.pc.shape[0]
        width = tile_width(self.linked, self.pc, slots)
        # To choose slots takes a look at all of them, whatever their number.
        many = width * max(min(CHOSEN, slots) // width, 1)

        def turn(carry: tuple[Any, State]) -> tuple[Any, State]:
            left, state = carry
            found, alone = self._chosen(state, chosen, left, many)

            def run_tile(carry: tuple[Any, State]) -> tuple[Any, State]:
                begin, state = carry
                tile = lax.dynamic_slice(found, (begin,), (width,))
                return begin + width, self._run(state, tile, alone)

            if many == width:
                return left - many, self._run(state, found, alone)
            end = jnp.minimum(left, many)
            begun = (jnp.int32(0), state)
            return left - many, lax.while_loop(lambda c: c[0] < end, run_tile, begun)[1]

        left = jnp.where(flag, self.number(state, chosen), 0)
        # A loop is the guard as well, and lets XLA keep the state in place.
        return lax.while_loop(lambda carry: carry[0] > 0, turn, (left, state))[1]

    def _chosen(self, state: State, chosen: Any, left: Any, many: int) -> tuple[Any, Any]:
        """The slots that run next, and whether it is one that makes one call out of the reserve."""
        slots = state.pc.shape[0]
        here = state.pc == self.pc
        if not self.calls:
            return first_slots(here, many, self.linked), False
        short = here.sum(dtype=jnp.int32) > left
        depth = column(state.frames.table, "depth")
        deepest = jnp.where(here, depth, -1).max(initial=-1)
        found = first_slots(here & (~short | (depth == deepest)), many, self.linked)
        found = jnp.where(jnp.arange(many) < left, found, slots)
        alone = self.room(state) == 0
        only = jnp.full((many,), slots, jnp.int32).at[0].set(chosen)
        return jnp.where(alone, only, found), alone

    def _run(self, state: State, tile: Any, alone: Any) -> State:
        advance, linked, block = self.advance.with_lanes(tile.shape[0]), self.linked, self.block
        slots = state.pc.shape[0]
        # The chosen slot may have left by now.
        tile = jnp.where(state.pc.at[tile].get(mode="fill", fill_value=-1) == self.pc, tile, slots)
        own = Tile(tile, jnp.minimum(tile, slots - 1))
        rows = own.of(state.frames.table)
        by_row = _sliced(linked, self.pc)
        advance = advance.reading(by_row, column(rows, "root"))
        before = self._taken(state, own, column(rows, "root"), by_row)
        mask, shared = advance.agreeing(
            before, block, tile < slots, max(tile.shape[0] // FEWEST_GROUPS, 1)
        )
        first = mask & (column(rows, "launched") == 0)
        ran = state.frames.ran + (tile < slots).sum(dtype=jnp.int32)
        state = state.with_(frames=state.frames.with_(ran=ran))
        state, mask = self._bounded(state, own, rows, mask, first)
        block, pushes = without_pushes(linked, self.pc)
        state, known = pushed(
            state, pushes, before, self.block, column(rows, "root"), mask, advance
        )
        after, given = advance.execute(before, block, mask, shared, mask & first, known)
        after = advance.count(after, mask, self.pc)
        state = state.with_(
            uniforms=after.uniforms, sums=after.sums, counters=after.counters, watch=after.watch
        )
        if isinstance(block.terminator, Fork):
            most = jnp.where(alone, 1, self.calls)
            state, done = launched(state, linked, self.pc, own, mask, given, most, advance)
            return self._stored(state, after, own, done)
        if isinstance(block.terminator, Return):
            state = self._stored(state, after, own, mask)
            results = linked.program.functions[_function_of(linked, self.pc)].results
            return delivered(state, linked, own, mask, results, after, advance)
        if isinstance(block.terminator, Fail):
            code, site = int(block.terminator.outcome), block.terminator.site
            return _failed(state, linked, own, rows, mask, code, site)
        left = advance.leave(after, block, mask, given)
        state = state.with_(uniforms=left.uniforms, pc=own.put(state.pc, left.pc, mask))
        return self._stored(state, left, own, mask)

    def _bounded(
        self, state: State, own: Tile, rows: Any, mask: Any, first: Any
    ) -> tuple[State, Any]:
        """Count steps and depth; slots that have too many fail, or wait for room, and do not run."""
        block, linked, most = self.block, self.linked, self.advance.max_steps
        if block.steps and (most is not None or self.advance.counting):
            root = column(rows, "root")
            to = jnp.where(first, root, state.pc.shape[0])
            steps = state.steps.at[to].add(block.steps, mode="drop")
            state = state.with_(steps=steps)
            if most is not None:
                spent = mask & (steps[root] > most)
                state = _failed(state, linked, own, rows, spent, int(Outcome.STEPS_EXHAUSTED))
                mask = mask & ~spent
        if self.calls:
            full = mask & (column(rows, "depth") >= state.returns.shape[0])
            overflows = full & state.frames.final
            state = _failed(state, linked, own, rows, overflows, int(Outcome.STACK_OVERFLOW))
            state = state.with_(pc=own.put(state.pc, -1 - self.pc, full & ~overflows))
            mask = mask & ~full
        return state, mask

    def _taken(self, state: State, own: Tile, root: Any, by_row: frozenset[Var]) -> State:
        """The state of a tile: what the block reads, and what it gives."""
        linked = self.linked
        own_reads = reads(without_pushes(linked, self.pc)[0])
        touched = set(own_reads) | _kept(linked, self.pc)
        registers = tuple(
            array
            if var not in touched or var in by_row
            else array[root]
            if var in linked.held_by_lanes
            else own.of(array)
            for var, array in zip(linked.registers, state.registers, strict=True)
        )
        return state.with_(
            pc=jnp.where(own.slots < state.pc.shape[0], self.pc, linked.halt),
            registers=registers,
            frames=(),
        )

    def _stored(self, state: State, after: State, own: Tile, mask: Any) -> State:
        """The state with what the tile has written."""
        written = _kept(self.linked, self.pc)
        rows = zip(self.linked.registers, state.registers, after.registers, strict=True)
        return state.with_(
            registers=tuple(
                own.put(array, new, mask) if var in written else array for var, array, new in rows
            )
        )


def _failed(
    state: State, linked: Linked, own: Tile, rows: Any, mask: Any, code: int, site: int = -1
) -> State:
    """The slots of the mask have failed; what is no assertion ends the whole example."""
    if code != int(Outcome.ASSERTION_FAILED):
        return state.with_(frames=ended_by(state.frames, own, rows, mask, code))
    rows = with_columns(rows, code=code, site=site)
    return state.with_(
        pc=own.put(state.pc, failed_pc(linked), mask),
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
