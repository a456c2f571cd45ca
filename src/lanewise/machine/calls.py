"""What calls do to the slots of a machine that forks: how they begin, come back, and fail.

See `frames.py` for what a slot holds and `fork.py` for when these run. A tile may hold several calls of one parent, so
what is written to parents is written by place, and what is counted is added.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var, stored
from lanewise.blocks.form import Block, Fork
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.machine.advance import Advance
from lanewise.machine.compact import first_lanes
from lanewise.machine.frames import NOWHERE, failed_pc, waiting_pc
from lanewise.machine.state import State

# How many failed slots tell their parents at a time.
TOLD = 16


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
    given: list[Any],
    most: Any,
    advance: Advance,
) -> tuple[State, Any]:
    """Make calls of the fork at the end of a block, at most so many for each slot; which slots have made all."""
    block = linked.order[pc]
    assert isinstance(block, Block) and isinstance(block.terminator, Fork)
    calls, frames = block.terminator.calls, state.frames
    width = mask.shape[0]
    begun = own.of(frames.launched)
    ends = jnp.minimum(begun + most, len(calls))
    wants = jnp.concatenate(
        [mask & (begun <= place) & (place < ends) for place in range(len(calls))]
    )
    free = (state.pc == linked.halt) & (jnp.arange(state.pc.shape[0]) >= frames.lanes)
    found = first_lanes(free, wants.shape[0])
    rank = jnp.cumsum(wants, dtype=jnp.int32) - 1
    slots = jnp.where(wants, found[jnp.maximum(rank, 0)], state.pc.shape[0])
    state = _with_arguments(state, linked, calls, given, slots, advance, width)

    def repeated(rows: Any) -> Any:
        return jnp.tile(rows, len(calls))

    def new(array: Any, rows: Any) -> Any:
        return array.at[slots].set(rows, mode="drop")

    entries = [linked.pc_of[linked.program.functions[call.callee].entry] for call in calls]
    done = mask & (ends == len(calls))
    made = mask * (ends - begun)
    depth = new(state.depth, repeated(own.of(state.depth)) + 1)
    goes_to = linked.pc_after(block.terminator.target)
    frames = frames.with_(
        parent=new(frames.parent, repeated(own.slots)),
        place=new(frames.place, jnp.repeat(jnp.arange(len(calls), dtype=jnp.int32), width)),
        pending=new(own.put(frames.pending, own.of(frames.pending) + made, mask), 0),
        resume=own.put(frames.resume, goes_to, done),
        root=new(frames.root, repeated(own.of(frames.root))),
        launched=new(own.put(frames.launched, jnp.where(done, 0, ends), mask), 0),
        failed=new(frames.failed, NOWHERE),
    )
    pc = new(state.pc, jnp.repeat(jnp.asarray(entries, jnp.int32), width))
    deepest = jnp.maximum(state.deepest, jnp.where(wants, depth[slots % depth.shape[0]], 0).max())
    state = state.with_(
        pc=own.put(pc, waiting_pc(linked), done),
        depth=depth,
        deepest=deepest if advance.counting else state.deepest,
        code=new(state.code, int(Outcome.DONE)),
        site=new(state.site, -1),
        frames=frames,
    )
    return state, done


def _with_arguments(
    state: State,
    linked: Linked,
    calls: Any,
    given: list[Any],
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
    frames = state.frames
    parent, place = own.of(frames.parent), own.of(frames.place)
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
    state = state.with_(registers=tuple(registers), pc=own.put(state.pc, linked.halt, mask))
    return _counted_down(state, linked, parent, called)


def _counted_down(state: State, linked: Linked, parent: Any, called: Any) -> State:
    """Parents whose last call is back go on, or fail if one of their calls has."""
    slots = state.pc.shape[0]
    frames = state.frames
    to = jnp.where(called, parent, slots)
    near = jnp.minimum(to, slots - 1)
    pending = frames.pending.at[to].add(-1, mode="drop")
    back = called & (pending[near] == 0) & (state.pc[near] == waiting_pc(linked))
    failed = frames.failed[near] != NOWHERE
    at, bad = jnp.where(back, to, slots), jnp.where(back & failed, to, slots)
    following = jnp.where(failed, failed_pc(linked), frames.resume[near])
    return state.with_(
        pc=state.pc.at[at].set(following, mode="drop"),
        code=state.code.at[bad].set(frames.code[near], mode="drop"),
        site=state.site.at[bad].set(frames.site[near], mode="drop"),
        frames=frames.with_(pending=pending),
    )


def failures_told(state: State, linked: Linked) -> State:
    """Slots that have failed tell their parents, and those theirs where no other call is pending."""
    slots = state.pc.shape[0]

    def turn(state: State) -> State:
        tile = first_lanes(state.pc == failed_pc(linked), TOLD)
        own = Tile(tile, jnp.minimum(tile, slots - 1))
        mask, frames = tile < slots, state.frames
        parent, place = own.of(frames.parent), own.of(frames.place)
        called = mask & (parent >= 0)
        to = jnp.where(called, parent, slots)
        failed = frames.failed.at[to].min(place, mode="drop")
        first = called & (failed[jnp.minimum(to, slots - 1)] == place)
        frames = frames.with_(
            failed=failed,
            code=own.to(frames.code, parent, own.of(state.code), first),
            site=own.to(frames.site, parent, own.of(state.site), first),
        )
        state = state.with_(frames=frames, pc=own.put(state.pc, linked.halt, mask))
        return _counted_down(state, linked, parent, called)

    return lax.while_loop(lambda s: (s.pc == failed_pc(linked)).any(), turn, state)


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
