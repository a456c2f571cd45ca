"""Calls that are spawned, and how their results are collected (`blocks/spawn.py`).

The calls of a parent that it has not collected are a list through the table of slots: the parent has the first and the
last, each call the next. A call that is back is part of it still, and holds its slot. All of a turn's calls are made at
once: a list has whole turns only, so that what was spawned can be collected at any time between two turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.blocks.form import Collect, Spawn
from lanewise.core.one_function import as_one_function
from lanewise.machine.banks import Write, places
from lanewise.machine.calls import Begun, Turn, begun
from lanewise.machine.frames import (
    NOWHERE,
    column,
    column_number,
    failed_pc,
    ranks,
    unused_rows,
    waiting_pc,
    with_columns,
)
from lanewise.machine.rows import put, taken
from lanewise.machine.state import State


def spawned(state: State, turn: Turn, given: Sequence[Any]) -> tuple[State, list[Write]]:
    """Make the calls at the end of a block and go on; returns what to write to their slots."""
    linked, pc, own, choice, end = turn.linked, turn.pc, turn.own, turn.choice, turn.end
    assert isinstance(end, Spawn)
    number, width, slots = len(end.calls), turn.mask.shape[0], state.pc.shape[0]
    entries = [linked.pc_of[linked.program.functions[call.callee].entry] for call in end.calls]
    ways = [linked.pc_of[target] for target in end.targets]

    def begin(
        tile: Any, rows: Any, mask: Any, index: Any, order: Any, free: Any, before: Any
    ) -> list[Any]:
        free = lax.dynamic_slice(order, (free + number * (before - width),), (number * width,))
        wants = jnp.tile(mask, number)
        new = jnp.where(wants, taken(free, ranks(wants, linked)), slots)
        by_call = new.reshape(number, width)
        first, last, made = (column(rows, name) for name in ("first", "last", "made"))
        old_rows = with_columns(
            rows,
            pending=column(rows, "pending") + number,
            first=jnp.where(first < 0, by_call[0], first),
            last=by_call[-1],
            made=made + number,
        )
        new_rows = with_columns(
            unused_rows(number * width),
            parent=jnp.tile(tile, number),
            place=(made + jnp.arange(number, dtype=jnp.int32)[:, None]).reshape(-1),
            root=jnp.tile(column(rows, "root"), number),
            depth=jnp.tile(column(rows, "depth"), number) + 1,
            spawned=1,
            next=jnp.concatenate([by_call[1:].reshape(-1), jnp.full((width,), -1, jnp.int32)]),
        )
        following = jnp.asarray(ways, jnp.int32)[index.astype(jnp.int32)]
        return [
            new,
            jnp.concatenate([jnp.where(mask, tile, slots), new]),
            jnp.concatenate([following, jnp.repeat(jnp.asarray(entries, jnp.int32), width)]),
            jnp.concatenate([old_rows, new_rows]),
            jnp.where(wants, column(new_rows, "depth"), 0).max(),
            jnp.where(mask & (last >= 0), last, slots),
            by_call[0],
        ]

    chosen = (choice.order, choice.free[pc], turn.done)
    *found, last, first = as_one_function(begin, own.slots, own.rows, turn.mask, given[-1], *chosen)
    state, writes = begun(state, turn, end.calls, given, Begun(*found))
    # Separately: the slot that was last may be in the tile, too, and spawn calls of its own.
    table = state.frames.table.at[last, column_number("next")].set(first, mode="drop")
    return state.with_(frames=state.frames.with_(table=table)), writes


def collected(state: State, turn: Turn) -> tuple[State, list[Write]]:
    """Take what the calls of the next turn have left, and free their slots; returns what to write.

    A slot with calls that are not back waits, and comes here again; one with a call that has failed fails.
    """
    linked, own, mask, end = turn.linked, turn.own, turn.mask, turn.end
    assert isinstance(end, Collect)
    slots, frames = state.pc.shape[0], state.frames

    def take(tile: Any, rows: Any, mask: Any, table: Any, *spawned: Any) -> list[Any]:
        waits = mask & (column(rows, "pending") > 0)
        fails = mask & ~waits & (column(rows, "failed") != NOWHERE)
        some = column(rows, "first") >= 0
        takes = mask & ~waits & ~fails & some & bool(spawned)
        first = column(rows, "first")
        if spawned:
            rest = column(taken(table, jnp.minimum(spawned[-1], slots - 1)), "next")
            first = jnp.where(takes, rest, first)
        after = with_columns(
            rows,
            resume=jnp.where(waits, turn.pc, column(rows, "resume")),
            first=first,
            last=jnp.where(first < 0, -1, column(rows, "last")),
            made=jnp.where(some, column(rows, "made"), 0),
        )
        following = jnp.where(some, linked.pc_of[end.target], linked.pc_after(end.done))
        following = jnp.where(fails, failed_pc(linked), following)
        following = jnp.where(waits, waiting_pc(linked), following)
        free = [jnp.where(takes, at, slots) for at in spawned]
        halted = jnp.full((len(free) * mask.shape[0],), linked.halt, jnp.int32)
        return [
            jnp.where(mask, tile, slots),
            after,
            jnp.concatenate([jnp.where(mask, tile, slots), *free]),
            jnp.concatenate([following, halted]).astype(jnp.int32),
            jnp.where(takes, tile, slots),
        ]

    tile, rows, there, pcs, to = as_one_function(
        take, own.slots, own.rows, mask, frames.table, *own.spawned
    )
    state = state.with_(
        pc=put(state.pc, there, pcs), frames=frames.with_(table=put(frames.table, tile, rows))
    )
    where, writes = places(linked), []
    for pairs, values in zip(end.copies, own.taken, strict=True):
        found = iter(values)
        for var, theirs in pairs:
            if theirs in where:
                value = next(found)
            else:
                value = state.uniforms[turn.advance.uniform_place[theirs]]
                value = jnp.broadcast_to(value, (*mask.shape, *value.shape))
            if var in where:
                writes.append(Write(*where[var], to, value))
    return state, writes
