"""Dear blocks for few lanes: the lanes that are at the block are packed into a narrow machine, run, and put back.

A block costs the same for one lane as for all when it runs at full width. When few lanes wait for it, taking what it
reads out of their rows and putting what it writes back costs less than running it for the others too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from lanewise._jax import Var
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.form import Block, Call, Return, TailCall, reads
from lanewise.machine.advance import Advance
from lanewise.machine.link import Linked
from lanewise.machine.state import State

# A narrow machine has this many times fewer lanes than the next wider one, and never fewer than the least.
NARROWING = 4
FEWEST_LANES = 16
MOST_WIDTHS = 3
# Every width is compiled, so a run for all lanes must cost enough for that to pay: a millisecond or so.
COMPACTED_OPERATIONS = 5e7
# What an element costs to take out of a row or put back, in operations.
MOVE_OPERATIONS = 8.0


def widths_for(linked: Linked, pc: int, lanes: int) -> tuple[int, ...]:
    """The widths a block is worth compiling for, narrowest first; the last is all lanes."""
    block = linked.order[pc]
    if not isinstance(block, Block) or not _can_be_packed(linked, block):
        return (lanes,)
    operations = linked.costs[pc].operations
    moved = sum(math.prod(var.aval.shape) for var in _touched(linked, block))
    if (
        operations < NARROWING * MOVE_OPERATIONS * moved
        or lanes * operations < COMPACTED_OPERATIONS
    ):
        return (lanes,)
    widths = [lanes // NARROWING**i for i in range(MOST_WIDTHS)]
    return tuple(width for width in reversed(widths) if width >= FEWEST_LANES) or (lanes,)


def _can_be_packed(linked: Linked, block: Block) -> bool:
    """Whether it leaves the stacks alone, whose rows are frames."""
    leaves_frame = isinstance(block.terminator, Return) and linked.has_calls
    return not isinstance(block.terminator, Call) and not leaves_frame


def _written(linked: Linked, block: Block) -> set[Var]:
    kept = set(linked.registers)
    found = set(writes_in_order(block)) & linked.storage.live_out[block.label]
    if isinstance(block.terminator, TailCall):
        found |= {var for var, _ in block.terminator.arguments}
    return found & kept


def _touched(linked: Linked, block: Block) -> set[Var]:
    return (set(reads(block)) & set(linked.registers)) | _written(linked, block)


def run_packed(advance: Advance, state: State, pc: int, width: int) -> State:
    """`advance.run(state, pc)` when no more than `width` lanes are at the block."""
    if width == advance.lanes:
        return advance.run(state, pc)
    linked = advance.linked
    block = linked.order[pc]
    assert isinstance(block, Block)
    (lanes,) = jnp.nonzero(state.pc == pc, size=width, fill_value=advance.lanes)
    touched, written = _touched(linked, block), _written(linked, block)

    def taken(array: Any) -> Any:
        return array.at[lanes].get(mode="clip")

    narrow = Advance(linked, width, max_steps=advance.max_steps, counting=advance.counting)
    before = replace(
        state,
        pc=jnp.where(lanes < advance.lanes, pc, linked.halt),
        registers=tuple(
            taken(array) if var in touched else array
            for var, array in zip(linked.registers, state.registers, strict=True)
        ),
        steps=taken(state.steps),
        code=taken(state.code),
        site=taken(state.site),
        depth=taken(state.depth),
    )
    after = narrow.run(before, pc)

    def put(array: Any, rows: Any) -> Any:
        return array.at[lanes].set(rows, mode="drop", unique_indices=True)

    return replace(
        after,
        pc=put(state.pc, after.pc),
        registers=tuple(
            put(array, rows) if var in written else array
            for var, array, rows in zip(
                linked.registers, state.registers, after.registers, strict=True
            )
        ),
        steps=put(state.steps, after.steps) if after.steps is not before.steps else state.steps,
        code=put(state.code, after.code) if after.code is not before.code else state.code,
        site=put(state.site, after.site) if after.site is not before.site else state.site,
        depth=state.depth,
    )
