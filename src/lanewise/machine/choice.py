"""Which slots of a machine that forks run in a tick, block by block.

All of it is decided at once, from where slots are when the tick begins: they are sorted by block, and how many of each
block run follows from their numbers and from how much room there is for calls. On a CPU that is one function of machine
code for every program; if each block had its own choice, XLA would compile one for each block.

Of the slots of a block, the deepest come first. Where there is room for some of the slots that want to fork, only these
do: their calls end first, and make room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise.blocks.form import Block, Fork, Spawn
from lanewise.blocks.link import Linked
from lanewise.core.one_function import as_one_function
from lanewise.machine.frames import ENDED, column, failed_pc, held_pc, reserve, spawns
from lanewise.machine.state import State
from lanewise.machine.worth import MEETING_PRODUCTS, swept_blocks


class Choice(NamedTuple):
    """What runs in a tick. `order` has slots by block and behind them the free ones, then numbers that no slot has.

    For each block, `begin` is where its slots begin in the order, `number` how many of them run, and `free` where the
    free slots begin that its calls take. `alone`: one slot runs, and makes one call out of the reserve.
    """

    order: Any
    begin: dict[int, Any]
    number: dict[int, Any]
    free: dict[int, Any]
    alone: Any


class _Sorted(NamedTuple):
    """Slots by kind: where each kind begins, how many it has, how many of them are deepest, and how deep."""

    order: Any
    begin: Any
    number: Any
    deepest: Any
    depth: Any


def calls_of(linked: Linked, pc: int) -> int:
    """How many calls a block makes."""
    item = linked.order[pc]
    end = item.terminator if isinstance(item, Block) else None
    return len(end.calls) if isinstance(end, Fork | Spawn) else 0


def cheap_and_expensive(linked: Linked) -> tuple[list[int], list[int]]:
    """The blocks that run whenever a slot is at them, and those at which slots gather."""
    once = [] if linked.entered_once is None else [linked.entered_once]
    pcs = sorted({*swept_blocks(linked), *once})
    expensive = [pc for pc in pcs if linked.costs[pc].products >= MEETING_PRODUCTS]
    return [pc for pc in pcs if pc not in expensive], expensive


def choose(
    state: State, linked: Linked, cheap: Sequence[int], expensive: Sequence[int], widest: int
) -> tuple[State, Choice, Any]:
    """The state as the tick begins, what runs, and how many slots are too deep to fork, for good.

    Every cheap block runs; if no slot is at any of them, the expensive one with the most slots. If nothing can run for
    lack of room, all park for the host, or, where it makes none, one slot goes on alone. `widest`: the order is
    longer by this than there are slots.
    """
    pcs = [*cheap, *expensive]
    capacity, lanes = state.returns.shape[0], state.frames.lanes
    halt = linked.halt
    calls = {pc: calls_of(linked, pc) for pc in pcs}
    joins = _joins(linked)

    def decide(pc: Any, table: Any, final: Any) -> list[Any]:
        pc = _without_ended(pc, table, lanes, linked)
        depth = column(table, "depth")
        goes_on = (pc >= 0) & (pc < halt)
        number_of_calls = jnp.asarray([calls_of(linked, i) for i in range(halt)] + [0], jnp.int32)
        full = (depth >= capacity) & (number_of_calls[jnp.where(goes_on, pc, halt)] > 0)
        goes_on = goes_on & ~full
        free = (pc == halt) & (jnp.arange(pc.shape[0]) >= lanes)
        kind = jnp.where(goes_on, pc, jnp.where(free, halt, halt + 1))
        found = _sorted(kind, depth, halt + 2, linked)
        room = jnp.maximum(found.number[halt] - jnp.where(final, reserve(linked, capacity), 0), 0)
        runs, taken = _runs(found, room, cheap, expensive, calls)
        stuck = (sum(runs.values(), jnp.int32(0)) == 0) & goes_on.any()
        if joins:
            # A slot that cannot spawn more collects what there is.
            to = jnp.asarray([joins.get(i, -1) for i in range(halt + 1)], jnp.int32)
            to = to[jnp.where(goes_on, pc, halt)]
            collects = stuck & (to >= 0) & (column(table, "first") >= 0)
            pc, stuck = jnp.where(collects, to, pc), stuck & ~collects.any()
        alone = stuck & final
        there = found.number[:halt] > 0
        chosen = jnp.argmax(jnp.where(there, found.depth[:halt], -1))
        parks = (full | (goes_on & stuck)) & ~final
        return [
            jnp.where(parks, -1 - pc, pc),
            jnp.concatenate([found.order, jnp.full((widest,), pc.shape[0], jnp.int32)]),
            *(found.begin[i] for i in pcs),
            *(jnp.where(alone & (chosen == i), 1, runs[i]) for i in pcs),
            *(found.begin[halt] + taken[i] for i in pcs),
            alone,
            (full & final).sum(dtype=jnp.int32),
        ]

    given = as_one_function(decide, state.pc, state.frames.table, state.frames.final)
    pc, order, *numbers, alone, too_deep = given
    begin, number, free = (
        dict(zip(pcs, numbers[i * len(pcs) : (i + 1) * len(pcs)], strict=True)) for i in range(3)
    )
    return state.with_(pc=pc), Choice(order, begin, number, free, alone), too_deep


def _joins(linked: Linked) -> dict[int, int]:
    """For blocks that spawn turn by turn, where the calls they have spawned are collected."""
    ends = ((pc, getattr(item, "terminator", None)) for pc, item in enumerate(linked.order))
    return {
        pc: linked.pc_of[end.join]
        for pc, end in ends
        if isinstance(end, Spawn) and end.join is not None
    }


def _without_ended(pc: Any, table: Any, lanes: int, linked: Linked) -> Any:
    """Where slots are; those of examples that have ended, and results that will not be collected, are free."""
    ended = (column(table, "failed")[:lanes] == ENDED)[column(table, "root")]
    pc = jnp.where(ended, linked.halt, pc)
    if not spawns(linked):
        return pc
    parent = pc[jnp.maximum(column(table, "parent"), 0)]
    gone = (parent == linked.halt) | (parent == failed_pc(linked)) | (parent == held_pc(linked))
    return jnp.where((pc == held_pc(linked)) & gone, linked.halt, pc)


def _runs(
    found: _Sorted,
    room: Any,
    cheap: Sequence[int],
    expensive: Sequence[int],
    calls: Mapping[int, int],
) -> tuple[dict[int, Any], dict[int, Any]]:
    """How many slots run each block, and how many free slots those before it have taken."""
    runs, taken, used = {}, {}, jnp.int32(0)
    for i in cheap:
        taken[i] = used
        runs[i] = _number(found, i, calls[i], room - used)
        used = used + runs[i] * calls[i]
    idle = sum(runs.values(), jnp.int32(0)) == 0
    could = [_number(found, i, calls[i], room) for i in expensive]
    fullest = jnp.argmax(jnp.stack(could)) if could else 0
    for place, i in enumerate(expensive):
        taken[i] = jnp.int32(0)
        runs[i] = jnp.where(idle & (fullest == place), could[place], 0)
    return runs, taken


def _number(found: _Sorted, pc: int, calls: int, room: Any) -> Any:
    """How many slots run a block."""
    here = found.number[pc]
    if not calls:
        return here
    can = room // calls
    return jnp.where(here > can, jnp.minimum(can, found.deepest[pc]), here)


def _sorted(kind: Any, depth: Any, kinds: int, linked: Linked) -> _Sorted:
    walk = _by_sorting if linked.profile.host_reads_guards else _by_counting
    return walk(kind.astype(jnp.int32), depth, kinds)


def _by_sorting(kind: Any, depth: Any, kinds: int) -> _Sorted:
    is_of = kind[:, None] == jnp.arange(kinds)
    number = is_of.sum(0, dtype=jnp.int32)
    deep = jnp.where(is_of, depth[:, None], -1).max(0, initial=-1)
    first = depth == deep[kind]
    order = jnp.argsort(2 * kind + ~first).astype(jnp.int32)
    deepest = (is_of & first[:, None]).sum(0, dtype=jnp.int32)
    return _Sorted(order, jnp.cumsum(number) - number, number, deepest, deep)


def _by_counting(kind: Any, depth: Any, kinds: int) -> _Sorted:
    """Two walks over the slots: one counts, one puts each in its place."""
    slots = kind.shape[0]

    def count(slot: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        number, deep = carry
        own = kind[slot]
        deeper = jnp.maximum(deep[own], depth[slot])
        return _with(number, own, number[own] + 1), _with(deep, own, deeper)

    zeros = jnp.zeros((kinds,), jnp.int32)
    number, deep = lax.fori_loop(0, slots, count, (zeros, zeros - 1))

    def follow(own: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        total, begin = carry
        return total + number[own], _with(begin, own, total)

    _, begin = lax.fori_loop(0, kinds, follow, (jnp.int32(0), zeros))

    def place(slot: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        front, back, order = carry
        own = kind[slot]
        first = depth[slot] == deep[own]
        order = _with(order, jnp.where(first, front[own], back[own]), slot)
        moved = first.astype(jnp.int32)
        return _with(front, own, front[own] + moved), _with(back, own, back[own] - 1 + moved), order

    start = (begin, begin + number - 1, jnp.zeros((slots,), jnp.int32))
    front, _, order = lax.fori_loop(0, slots, place, start)
    return _Sorted(order, begin, number, front - begin, deep)


def _with(array: Any, at: Any, value: Any) -> Any:
    return lax.dynamic_update_slice(array, jnp.asarray(value, array.dtype)[None], (at,))
