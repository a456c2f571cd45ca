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
from lanewise.blocks.form import Block, Fork, Forked
from lanewise.blocks.link import Linked
from lanewise.machine.advance import Advance
from lanewise.machine.frames import (
    NOWHERE,
    Frames,
    column,
    column_number,
    failed_pc,
    first_slots,
    unused_rows,
    waiting_pc,
    with_columns,
)
from lanewise.machine.state import State

# How many failed slots report to their parents at a time.
REPORTED = 16
# In the place of the call that has failed: the example has ended.
ENDED = -1


@dataclass(frozen=True)
class Tile:
    """Some slots; `near` are numbers that a slot has, where those of nobody are beyond the last."""

    slots: Any
    near: Any

    def of(self, array: Any) -> Any:
        """The rows of these slots."""
        return array[self.near]

    def put(self, array: Any, rows: Any, mask: Any) -> Any:
        """An array with these rows, for the slots of the mask."""
        return self.to(array, self.slots, rows, mask)

    @staticmethod
    def to(array: Any, slots: Any, rows: Any, mask: Any) -> Any:
        """The same at other slots, all different where the mask holds."""
        places = jnp.where(mask, slots, array.shape[0])
        return array.at[places].set(rows, mode="drop")


def launched(
    state: State,
    linked: Linked,
    pc: int,
    own: Tile,
    mask: Any,
    given: Sequence[Any],
    most: Any,
    advance: Advance,
) -> tuple[State, Any]:
    """Make calls of the fork at the end of a block, at most this many for each slot; which slots have made all."""
    block = linked.order[pc]
    assert isinstance(block, Block) and isinstance(block.terminator, Fork)
    calls, frames = block.terminator.calls, state.frames
    width, slots = mask.shape[0], state.pc.shape[0]
    rows = own.of(frames.table)
    begun = column(rows, "launched")
    ends = jnp.minimum(begun + most, len(calls))
    wants = jnp.concatenate(
        [mask & (begun <= place) & (place < ends) for place in range(len(calls))]
    )
    free = (state.pc == linked.halt) & (jnp.arange(slots) >= frames.lanes)
    found = first_slots(free, wants.shape[0], linked)
    takers = first_slots(wants, wants.shape[0], linked)
    taken = jnp.full(wants.shape, slots, jnp.int32).at[takers].set(found, mode="drop")
    state = _with_arguments(state, linked, calls, given, taken, advance, width)

    def repeated(values: Any) -> Any:
        return jnp.tile(values, len(calls))

    new = with_columns(
        unused_rows(wants.shape[0]),
        parent=repeated(own.slots),
        place=jnp.repeat(jnp.arange(len(calls), dtype=jnp.int32), width),
        root=repeated(column(rows, "root")),
        depth=repeated(column(rows, "depth")) + 1,
    )
    done = mask & (ends == len(calls))
    old = with_columns(
        rows,
        pending=column(rows, "pending") + ends - begun,
        resume=linked.pc_after(block.terminator.target),
        launched=jnp.where(done, 0, ends),
    )
    entries = [linked.pc_of[linked.program.functions[call.callee].entry] for call in calls]
    there = jnp.concatenate([jnp.where(mask, own.slots, slots), taken])
    pcs = jnp.concatenate(
        [jnp.where(done, waiting_pc(linked), pc), jnp.repeat(jnp.asarray(entries), width)]
    ).astype(jnp.int32)
    state = state.with_(
        pc=state.pc.at[there].set(pcs, mode="drop"),
        frames=frames.with_(
            table=frames.table.at[there].set(jnp.concatenate([old, new]), mode="drop")
        ),
    )
    if advance.counting:
        deepest = jnp.where(wants, column(new, "depth"), 0).max()
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
        registers[place] = registers[place].at[at].set(whole, mode="drop")
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
    rows = own.of(state.frames.table)
    parent, place = column(rows, "parent"), column(rows, "place")
    called = mask & (parent >= 0)
    registers = list(state.registers)
    for at, variables in inboxes(linked).get(results, {}).items():
        for var, result in zip(variables, results, strict=True):
            if var not in advance.place:
                continue  # nobody reads it
            if result in advance.uniform_place:
                value = after.uniforms[advance.uniform_place[result]]
                value = jnp.broadcast_to(value, (*mask.shape, *value.shape))
            else:
                value = after.registers[advance.place[result]]
            whole = registers[advance.place[var]]
            registers[advance.place[var]] = own.to(whole, parent, value, called & (place == at))
    state = state.with_(registers=tuple(registers))
    return _come_back(state, linked, own, mask, parent, called)


def _come_back(
    state: State, linked: Linked, own: Tile, mask: Any, parent: Any, called: Any
) -> State:
    """Free the slots of the mask. Parents whose last call is back go on, or fail if one of their calls has."""
    slots = state.pc.shape[0]
    to = jnp.where(called, parent, slots)
    near = jnp.minimum(to, slots - 1)
    table = state.frames.table.at[to, column_number("pending")].add(-1, mode="drop")
    rows = table[near]
    back = called & (column(rows, "pending") == 0) & (state.pc[near] == waiting_pc(linked))
    failed = column(rows, "failed") != NOWHERE
    following = jnp.where(failed, failed_pc(linked), column(rows, "resume"))
    there = jnp.concatenate([jnp.where(mask, own.slots, slots), jnp.where(back, to, slots)])
    pcs = jnp.concatenate([jnp.full(mask.shape, linked.halt, jnp.int32), following])
    return state.with_(
        pc=state.pc.at[there].set(pcs, mode="drop"), frames=state.frames.with_(table=table)
    )


def failures_reported(state: State, linked: Linked) -> State:
    """Slots that have failed tell their parents, and those theirs where no other call is pending."""
    slots = state.pc.shape[0]

    def turn(state: State) -> State:
        tile = first_slots(state.pc == failed_pc(linked), REPORTED, linked)
        own = Tile(tile, jnp.minimum(tile, slots - 1))
        mask, table = tile < slots, state.frames.table
        rows = own.of(table)
        parent, place = column(rows, "parent"), column(rows, "place")
        called = mask & (parent >= 0)
        to = jnp.where(called, parent, slots)
        table = table.at[to, column_number("failed")].min(place, mode="drop")
        theirs = table[jnp.minimum(to, slots - 1)]
        first = called & (column(theirs, "failed") == place)
        reported = with_columns(theirs, code=column(rows, "code"), site=column(rows, "site"))
        table = own.to(table, parent, reported, first)
        state = state.with_(frames=state.frames.with_(table=table))
        return _come_back(state, linked, own, mask, parent, called)

    return lax.while_loop(lambda s: (s.pc == failed_pc(linked)).any(), turn, state)


def ended_by(frames: Frames, own: Tile, rows: Any, mask: Any, code: int) -> Frames:
    """The examples that the slots of the mask belong to have ended with this code."""
    root = column(rows, "root")
    theirs = with_columns(frames.table[root], code=code, site=-1, failed=ENDED)
    return frames.with_(table=own.to(frames.table, root, theirs, mask))


def without_ended(state: State, linked: Linked) -> State:
    """The state without the calls of examples that have ended."""
    table = state.frames.table
    ended = column(table, "failed")[: state.frames.lanes] == ENDED
    gone = ended[column(table, "root")]
    return state.with_(pc=jnp.where(gone, linked.halt, state.pc))


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
