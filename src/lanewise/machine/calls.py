"""What calls do to the slots of a machine that forks: how they begin, come back, and fail.

See `frames.py` for what a slot holds and `fork.py` for when these run. A tile may hold several calls of one parent, so
what is written to parents is written by place, and what is counted is added.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var, stored
from lanewise.blocks.form import Block, Collect, Fail, Fork, Forked, Terminator
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.one_function import as_one_function
from lanewise.machine.advance import Advance
from lanewise.machine.banks import Write, is_number, places, read
from lanewise.machine.choice import Choice, calls_of
from lanewise.machine.frames import (
    ENDED,
    NOWHERE,
    Frames,
    column,
    column_number,
    failed_pc,
    first_slots,
    held_pc,
    ranks,
    unused_rows,
    waiting_pc,
    with_columns,
)
from lanewise.machine.rows import put, taken
from lanewise.machine.state import State
from lanewise.machine.tiles import function_of, wanted_by

# How many failed slots report to their parents at a time.
REPORTED = 16


@dataclass(frozen=True)
class Tile:
    """Some slots; unused entries are beyond the last. `rows`: of the table, `values`: of their registers."""

    slots: Any
    rows: Any
    values: Mapping[Var, Any]
    # Where the block collects: for each call of a turn the next slot, and what the caller takes from there.
    spawned: Sequence[Any] = ()
    taken: Sequence[Sequence[Any]] = ()

    def put(self, array: Any, rows: Any, mask: Any) -> Any:
        """An array with these rows, for the slots of the mask."""
        return put(array, jnp.where(mask, self.slots, array.shape[0]), rows)

    def column(self, name: str) -> Any:
        return column(self.rows, name)


@dataclass(frozen=True)
class Turn:
    """A block runs for those slots of a tile that are in the mask.

    `done`: how many slots this tile and those before it have taken.
    """

    advance: Advance
    pc: int
    own: Tile
    mask: Any
    choice: Choice
    done: Any

    @property
    def linked(self) -> Linked:
        return self.advance.linked

    @property
    def end(self) -> Terminator:
        block = self.linked.order[self.pc]
        assert isinstance(block, Block)
        return block.terminator


def next_tile(
    state: State, linked: Linked, choice: Choice, pc: int, done: Any, width: int
) -> tuple[Tile, Any]:
    """The next slots that run a block, and the variables it wants; and how many have been taken by then."""
    slots, frames, wanted = state.pc.shape[0], state.frames, wanted_by(linked, pc)
    where = places(linked)
    end = getattr(linked.order[pc], "terminator", None)
    copies = end.copies if isinstance(end, Collect) else ()
    theirs = [[where[var] for _, var in own if var in where] for own in copies]
    # For numbers, all that a slot has: taking a column of them afterwards costs nothing.
    numbers = list(dict.fromkeys(where[var].bank for var in wanted if is_number(var)))
    arrays = [var for var in wanted if not is_number(var)]

    def look(order: Any, begin: Any, number: Any, done: Any, table: Any, *banks: Any) -> list[Any]:
        found = lax.dynamic_slice(order, (begin + done,), (width,))
        found = jnp.where(done + jnp.arange(width) < number, found, slots)
        rows = (taken(banks[bank], found) for bank in numbers)
        values = (read(banks, where[var], found) for var in arrays)
        own = taken(table, jnp.minimum(found, slots - 1))
        spawned, given = column(own, "first"), []
        for wanted in theirs:
            at = jnp.where(spawned >= 0, spawned, slots)
            given += [at, *(read(banks, place, at) for place in wanted)]
            spawned = column(taken(table, jnp.minimum(at, slots - 1)), "next")
        return [found, own, done + width, *rows, *values, *given]

    # One function reads everything before anything is written: otherwise XLA writes to a copy of the whole array.
    chosen = (choice.order, choice.begin[pc], choice.number[pc], done)
    found, rows, done, *given = as_one_function(look, *chosen, frames.table, *frames.banks)
    given, more = given[: len(numbers) + len(arrays)], iter(given[len(numbers) + len(arrays) :])
    values = dict(zip(arrays, given[len(numbers) :], strict=True))
    for var in wanted:
        if is_number(var):
            values[var] = given[numbers.index(where[var].bank)][:, where[var].column]
    calls = [(next(more), [next(more) for _ in wanted]) for wanted in theirs]
    return Tile(found, rows, values, [at for at, _ in calls], [own for _, own in calls]), done


class Begun(NamedTuple):
    """Calls that begin: their slots, call by call; where callers and they go on, with which rows; and how deep."""

    new: Any
    there: Any
    pcs: Any
    rows: Any
    deepest: Any


def launched(state: State, turn: Turn, given: Sequence[Any]) -> tuple[State, Any, list[Write]]:
    """Make calls of the fork at the end of a block.

    Returns which slots have made all, and what to write to those of the calls.
    """
    linked, pc, own, choice, end = turn.linked, turn.pc, turn.own, turn.choice, turn.end
    assert isinstance(end, Fork)
    calls, width, slots = end.calls, turn.mask.shape[0], state.pc.shape[0]
    entries = [linked.pc_of[linked.program.functions[call.callee].entry] for call in calls]

    def begin(
        tile: Any, rows: Any, mask: Any, order: Any, free: Any, alone: Any, before: Any
    ) -> list[Any]:
        start = free + len(calls) * (before - width)
        free = lax.dynamic_slice(order, (start,), (len(calls) * width,))
        begun = column(rows, "launched")
        ends = jnp.minimum(begun + jnp.where(alone, 1, len(calls)), len(calls))
        turns = range(len(calls))
        wants = jnp.concatenate([mask & (begun <= i) & (i < ends) for i in turns])
        new = jnp.where(wants, taken(free, ranks(wants, linked)), slots)
        done = mask & (ends == len(calls))
        old_rows = with_columns(
            rows,
            pending=column(rows, "pending") + ends - begun,
            resume=linked.pc_after(end.target),
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
            jnp.where(wants, column(new_rows, "depth"), 0).max(),
            jnp.where(done, tile, slots),
        ]

    chosen = (choice.order, choice.free[pc], choice.alone, turn.done)
    *found, made = as_one_function(begin, own.slots, own.rows, turn.mask, *chosen)
    state, writes = begun(state, turn, calls, given, Begun(*found))
    return state, made, writes


def begun(
    state: State, turn: Turn, calls: Sequence[Forked], given: Sequence[Any], found: Begun
) -> tuple[State, list[Write]]:
    """The state where calls begin, and what each is given, for its slot; what all calls are given is not a slot's."""
    advance, width = turn.advance, turn.mask.shape[0]
    values, where = iter(given), places(turn.linked)
    writes, uniforms = [], list(state.uniforms)
    for number, call in enumerate(calls):
        own = found.new[number * width : (number + 1) * width]
        for var, _ in call.arguments:
            value = stored(next(values), var.aval)
            if var in advance.uniform_place:
                uniforms[advance.uniform_place[var]] = value
            elif var in where:
                writes.append(Write(*where[var], own, value))
    frames = state.frames
    state = state.with_(
        pc=put(state.pc, found.there, found.pcs),
        uniforms=tuple(uniforms),
        frames=frames.with_(table=put(frames.table, found.there, found.rows)),
    )
    if advance.counting:
        state = state.with_(deepest=jnp.maximum(state.deepest, found.deepest))
    return state, writes


def delivered(state: State, turn: Turn, after: State) -> tuple[State, list[Write]]:
    """The slots of the mask have returned, and are free; and what to write to their parents: their results."""
    advance, linked, mask = turn.advance, turn.linked, turn.mask
    inboxes = _inboxes(linked, linked.program.functions[function_of(linked, turn.pc)].results)
    state, columns = _come_back(state, linked, turn.own, mask, [i.columns for i in inboxes])
    writes = []
    for inbox, (at, to) in zip(inboxes, columns, strict=True):
        if inbox.result in advance.uniform_place:
            value = after.uniforms[advance.uniform_place[inbox.result]]
            value = jnp.broadcast_to(value, (*mask.shape, *value.shape))
        else:
            value = after.registers[advance.place[inbox.result]]
        writes.append(Write(inbox.bank, at, to, value))
    return state, writes


def _come_back(
    state: State, linked: Linked, own: Tile, mask: Any, columns: Sequence[tuple[int, ...]]
) -> tuple[State, list[tuple[Any, Any]]]:
    """Free the slots of the mask, or hold them if they were spawned.

    Parents whose last call is back go on, or fail if one of their calls has.

    Given columns of inboxes by the place of a call in its fork, returns that of each slot, and its parent if it reads
    it.
    """
    slots = state.pc.shape[0]

    def leave(tile: Any, rows: Any, mask: Any, pc: Any, table: Any) -> list[Any]:
        parent, place = column(rows, "parent"), column(rows, "place")
        to = jnp.where(mask & (parent >= 0), parent, slots)
        near = jnp.minimum(to, slots - 1)
        theirs = taken(table, near)
        # Several slots of a tile may have one parent: each counts them all.
        back = (to[:, None] == to).sum(1, dtype=jnp.int32)
        pending = column(theirs, "pending") - back
        last = (to < slots) & (pending == 0) & (taken(pc, near) == waiting_pc(linked))
        failed = column(theirs, "failed") != NOWHERE
        following = jnp.where(failed, failed_pc(linked), column(theirs, "resume"))
        spawned = column(rows, "spawned") > 0
        own = jnp.where(spawned, held_pc(linked), linked.halt).astype(jnp.int32)
        inbox = jnp.where(spawned, slots, to)
        return [
            to,
            with_columns(theirs, pending=pending),
            jnp.concatenate([jnp.where(mask, tile, slots), jnp.where(last, to, slots)]),
            jnp.concatenate([own, following]),
            *(part for each in columns for part in _inbox_of(each, place, inbox)),
        ]

    def _inbox_of(columns: tuple[int, ...], place: Any, to: Any) -> list[Any]:
        column = jnp.asarray(columns, jnp.int32)[jnp.clip(place, 0, len(columns) - 1)]
        column = jnp.where(place < len(columns), column, -1)
        return [jnp.maximum(column, 0), jnp.where(column >= 0, to, slots)]

    table = state.frames.table
    to, theirs, there, pcs, *found = as_one_function(
        leave, own.slots, own.rows, mask, state.pc, table
    )
    state = state.with_(
        pc=put(state.pc, there, pcs), frames=state.frames.with_(table=put(table, to, theirs))
    )
    return state, list(zip(found[::2], found[1::2], strict=True))


def failed(state: State, turn: Turn, code: int, site: int) -> State:
    """The slots of the mask have failed; any failure but an assertion ends the whole example."""
    linked, own, mask = turn.linked, turn.own, turn.mask
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


def stepped(
    state: State, own: Tile, steps: int, mask: Any, first: Any, advance: Advance
) -> tuple[State, Any]:
    """Count steps of the slots that run a block for the first time; those that have too many fail, and do not run."""
    most = advance.max_steps
    if not steps or not (most is not None or advance.counting):
        return state, mask
    root = own.column("root")
    to = jnp.where(first, root, state.pc.shape[0])
    counted = state.steps.at[to].add(steps, mode="drop")
    state = state.with_(steps=counted)
    if most is None:
        return state, mask
    spent = mask & (taken(counted, root) > most)
    frames = ended_by(state.frames, own.rows, spent, int(Outcome.STEPS_EXHAUSTED))
    return state.with_(frames=frames), mask & ~spent


def can_fail(linked: Linked) -> bool:
    """Whether calls may fail, which has to be reported to their parents."""
    ends = (block.terminator for _, block in linked.program.all_blocks())
    return any(isinstance(e, Fail) and e.outcome == Outcome.ASSERTION_FAILED for e in ends)


def failures_reported(state: State, linked: Linked) -> State:
    """Slots that have failed report it to their parents, and those to theirs where no other call is pending."""
    slots = state.pc.shape[0]

    def turn(state: State) -> State:
        tile = first_slots(state.pc == failed_pc(linked), REPORTED, linked)
        table = state.frames.table
        own = Tile(tile, taken(table, jnp.minimum(tile, slots - 1)), {})
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
    to = jnp.where(mask, root, frames.table.shape[0])
    return frames.with_(table=put(frames.table, to, theirs))


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


class _Inbox(NamedTuple):
    """Where a result of a function goes: a bank, and a column for each place of a call in its fork, or -1."""

    result: Var
    bank: int
    columns: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _inboxes(linked: Linked, results: tuple[Var, ...]) -> tuple[_Inbox, ...]:
    """Where results go that some block reads."""
    by_place: dict[int, tuple[Var, ...]] = {}
    for _, block in linked.program.all_blocks():
        if isinstance(block.terminator, Fork):
            for place, call in enumerate(block.terminator.calls):
                if linked.program.functions[call.callee].results == results:
                    by_place[place] = call.results
    where = places(linked)
    found = []
    for i, result in enumerate(results):
        read_at = {at: where[own[i]] for at, own in by_place.items() if own[i] in where}
        if read_at:
            columns = (
                read_at[at].column if at in read_at else -1 for at in range(1 + max(by_place))
            )
            (bank,) = {place.bank for place in read_at.values()}
            found.append(_Inbox(result, bank, tuple(columns)))
    return tuple(found)
