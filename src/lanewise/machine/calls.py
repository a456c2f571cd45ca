"""What calls do to the slots of a machine that forks: how they begin, come back, and fail.

See `frames.py` for what a slot holds and `fork.py` for when these run. A tile may hold several calls of one parent, so
what is written to parents is written by place, and what is counted is added.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var, stored
from lanewise.blocks.form import Block, Fail, Fork, Forked
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.one_function import as_one_function
from lanewise.machine.advance import Advance
from lanewise.machine.choice import calls_of
from lanewise.machine.frames import (
    ENDED,
    NOWHERE,
    Frames,
    column,
    column_number,
    failed_pc,
    first_slots,
    ranks,
    unused_rows,
    waiting_pc,
    with_columns,
)
from lanewise.machine.rows import put, taken
from lanewise.machine.state import State

# How many failed slots report to their parents at a time.
REPORTED = 16


@dataclass(frozen=True)
class Tile:
    """Some slots; `near` are numbers that a slot has, where those of nobody are beyond the last. `rows`: of the table."""

    slots: Any
    near: Any
    rows: Any

    def of(self, array: Any) -> Any:
        """The rows of these slots."""
        return taken(array, self.near)

    def put(self, array: Any, rows: Any, mask: Any) -> Any:
        """An array with these rows, for the slots of the mask."""
        return put(array, jnp.where(mask, self.slots, array.shape[0]), rows)

    def column(self, name: str) -> Any:
        return column(self.rows, name)


def next_tile(state: State, order: Any, begin: Any, number: Any, width: int) -> Tile:
    """The slots from a place of the order on, this many of them but no more than a tile has."""
    slots = state.pc.shape[0]

    def look(order: Any, table: Any, begin: Any, number: Any) -> list[Any]:
        found = lax.dynamic_slice(order, (begin,), (width,))
        found = jnp.where(jnp.arange(width) < number, found, slots)
        near = jnp.minimum(found, slots - 1)
        return [found, near, taken(table, near)]

    return Tile(*as_one_function(look, order, state.frames.table, begin, number))


def launched(
    state: State,
    linked: Linked,
    pc: int,
    own: Tile,
    mask: Any,
    given: Sequence[Any],
    free: Any,
    most: Any,
    advance: Advance,
) -> tuple[State, Any]:
    """Make calls of the fork at the end of a block, at most this many for each slot, in free slots.

    Gives the places of the slots that have made all as well.
    """
    block = linked.order[pc]
    assert isinstance(block, Block) and isinstance(block.terminator, Fork)
    calls, frames, resume = block.terminator.calls, state.frames, block.terminator.target
    width, slots = mask.shape[0], state.pc.shape[0]
    entries = [linked.pc_of[linked.program.functions[call.callee].entry] for call in calls]

    def begin(tile: Any, rows: Any, mask: Any, free: Any, most: Any) -> list[Any]:
        begun = column(rows, "launched")
        ends = jnp.minimum(begun + most, len(calls))
        places = range(len(calls))
        wants = jnp.concatenate([mask & (begun <= i) & (i < ends) for i in places])
        new = jnp.where(wants, taken(free, ranks(wants, linked)), slots)
        done = mask & (ends == len(calls))
        old_rows = with_columns(
            rows,
            pending=column(rows, "pending") + ends - begun,
            resume=linked.pc_after(resume),
            launched=jnp.where(done, 0, ends),
        )
        new_rows = with_columns(
            unused_rows(wants.shape[0]),
            parent=jnp.tile(tile, len(calls)),
            place=jnp.repeat(jnp.arange(len(calls), dtype=jnp.int32), width),
            root=jnp.tile(column(rows, "root"), len(calls)),
            depth=jnp.tile(column(rows, "depth"), len(calls)) + 1,
        )
        pcs = [jnp.where(done, waiting_pc(linked), pc), jnp.repeat(jnp.asarray(entries), width)]
        return [
            new,
            jnp.concatenate([jnp.where(mask, tile, slots), new]),
            jnp.concatenate(pcs).astype(jnp.int32),
            jnp.concatenate([old_rows, new_rows]),
            jnp.where(done, tile, slots),
            jnp.where(wants, column(new_rows, "depth"), 0).max(),
        ]

    new, there, pcs, rows, done, deepest = as_one_function(
        begin, own.slots, own.rows, mask, free, jnp.asarray(most, jnp.int32)
    )
    state = _with_arguments(state, linked, calls, given, new, advance, width)
    state = state.with_(
        pc=put(state.pc, there, pcs), frames=frames.with_(table=put(frames.table, there, rows))
    )
    if advance.counting:
        state = state.with_(deepest=jnp.maximum(state.deepest, deepest))
    return state, done


def _with_arguments(
    state: State,
    linked: Linked,
    calls: Sequence[Forked],
    given: Sequence[Any],
    slots: Any,
    advance: Advance,
    width: int,
) -> State:
    """The state with what each call is given, in its slot."""
    values = iter(given)
    rows: dict[Var, list[tuple[Any, Any]]] = {}
    uniforms = list(state.uniforms)
    for place, call in enumerate(calls):
        at = slots[place * width : (place + 1) * width]
        for var, _ in call.arguments:
            value = stored(next(values), var.aval)
            if var in advance.uniform_place:
                uniforms[advance.uniform_place[var]] = value
            elif var in advance.place and var not in linked.held_by_lanes:
                rows.setdefault(var, []).append((at, value))
    registers = list(state.registers)
    for var, parts in rows.items():
        at = jnp.concatenate([a for a, _ in parts])
        whole = jnp.concatenate([value for _, value in parts])
        place = advance.place[var]
        registers[place] = put(registers[place], at, whole)
    return state.with_(registers=tuple(registers), uniforms=tuple(uniforms))


def delivered(
    state: State,
    linked: Linked,
    own: Tile,
    mask: Any,
    results: tuple[Var, ...],
    after: State,
    advance: Advance,
) -> State:
    """The slots of the mask have returned: their results are their parents', and they are free."""
    found = inboxes(linked).get(results, {})
    state, to = _come_back(state, linked, own, mask, list(found))
    registers = list(state.registers)
    for at, variables in zip(to, found.values(), strict=True):
        for var, result in zip(variables, results, strict=True):
            if var not in advance.place:
                continue  # nobody reads it
            if result in advance.uniform_place:
                value = after.uniforms[advance.uniform_place[result]]
                value = jnp.broadcast_to(value, (*mask.shape, *value.shape))
            else:
                value = after.registers[advance.place[result]]
            registers[advance.place[var]] = put(registers[advance.place[var]], at, value)
    return state.with_(registers=tuple(registers))


def _come_back(
    state: State, linked: Linked, own: Tile, mask: Any, places: Sequence[int]
) -> tuple[State, list[Any]]:
    """Free the slots of the mask. Parents whose last call is back go on, or fail if one of their calls has.

    Gives the parents of calls with these places in their forks as well.
    """
    slots = state.pc.shape[0]

    def leave(tile: Any, rows: Any, mask: Any, pc: Any, table: Any) -> list[Any]:
        parent, place = column(rows, "parent"), column(rows, "place")
        to = jnp.where(mask & (parent >= 0), parent, slots)
        near = jnp.minimum(to, slots - 1)
        theirs = taken(table, near)
        # Several of a tile may have one parent: each counts them all.
        back = (to[:, None] == to).sum(1, dtype=jnp.int32)
        pending = column(theirs, "pending") - back
        last = (to < slots) & (pending == 0) & (taken(pc, near) == waiting_pc(linked))
        failed = column(theirs, "failed") != NOWHERE
        following = jnp.where(failed, failed_pc(linked), column(theirs, "resume"))
        return [
            to,
            with_columns(theirs, pending=pending),
            jnp.concatenate([jnp.where(mask, tile, slots), jnp.where(last, to, slots)]),
            jnp.concatenate([jnp.full(mask.shape, linked.halt, jnp.int32), following]),
            *(jnp.where(place == i, to, slots) for i in places),
        ]

    table = state.frames.table
    to, theirs, there, pcs, *by_place = as_one_function(
        leave, own.slots, own.rows, mask, state.pc, table
    )
    state = state.with_(
        pc=put(state.pc, there, pcs), frames=state.frames.with_(table=put(table, to, theirs))
    )
    return state, by_place


def can_fail(linked: Linked) -> bool:
    """Whether calls may fail, of which their parents are told."""
    ends = (block.terminator for _, block in linked.program.all_blocks())
    return any(isinstance(e, Fail) and e.outcome == Outcome.ASSERTION_FAILED for e in ends)


def failures_reported(state: State, linked: Linked) -> State:
    """Slots that have failed tell their parents, and those theirs where no other call is pending."""
    slots = state.pc.shape[0]

    def turn(state: State) -> State:
        tile = first_slots(state.pc == failed_pc(linked), REPORTED, linked)
        near, table = jnp.minimum(tile, slots - 1), state.frames.table
        own = Tile(tile, near, taken(table, near))
        mask = tile < slots
        parent, place = own.column("parent"), own.column("place")
        to = jnp.where(mask & (parent >= 0), parent, slots)
        table = table.at[to, column_number("failed")].min(place, mode="drop")
        theirs = taken(table, jnp.minimum(to, slots - 1))
        first = column(theirs, "failed") == place
        reported = with_columns(theirs, code=own.column("code"), site=own.column("site"))
        table = put(table, jnp.where(first, to, slots), reported)
        state = state.with_(frames=state.frames.with_(table=table))
        return _come_back(state, linked, own, mask, ())[0]

    def any_failed(state: State) -> Any:
        return as_one_function(lambda pc: [(pc == failed_pc(linked)).any()], state.pc)[0]

    return lax.while_loop(any_failed, turn, state)


def ended_by(frames: Frames, rows: Any, mask: Any, code: int) -> Frames:
    """The examples that the slots of the mask belong to, which have these rows, have ended with this code."""
    root = column(rows, "root")
    theirs = with_columns(taken(frames.table, root), code=code, site=-1, failed=ENDED)
    places = jnp.where(mask, root, frames.table.shape[0])
    return frames.with_(table=put(frames.table, places, theirs))


def without_too_deep(state: State, linked: Linked, number: Any) -> State:
    """The state where the examples of slots that are too deep to fork have ended, if there are this many such."""
    forks = jnp.asarray([calls_of(linked, pc) > 0 for pc in range(linked.halt)] + [False])

    def end(carry: tuple[Any, State]) -> tuple[Any, State]:
        _, state = carry
        table = state.frames.table
        at = jnp.where((state.pc >= 0) & (state.pc < linked.halt), state.pc, linked.halt)
        full = forks[at] & (column(table, "depth") >= state.returns.shape[0])
        frames = ended_by(state.frames, table, full, int(Outcome.STACK_OVERFLOW))
        return jnp.int32(0), state.with_(frames=frames)

    return lax.while_loop(lambda carry: carry[0] > 0, end, (number, state))[1]


@functools.lru_cache(maxsize=512)
def inboxes(linked: Linked) -> dict[tuple[Var, ...], dict[int, tuple[Var, ...]]]:
    """For the results of a function, where they go: by the place of the call in its fork."""
    found: dict[tuple[Var, ...], dict[int, tuple[Var, ...]]] = {}
    for _, block in linked.program.all_blocks():
        if isinstance(block.terminator, Fork):
            for place, call in enumerate(block.terminator.calls):
                results = linked.program.functions[call.callee].results
                found.setdefault(results, {})[place] = call.results
    return found
