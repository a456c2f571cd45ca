"""Expensive blocks for the lanes that are there: packed into tiles of a fixed width, run tile by tile, and put back.

A block costs the same for one lane as for all when it runs at full width. Gathering what it reads from the rows of the
lanes that are at it, and scattering what it writes, costs less than running it for the others too; and a loop over as
many tiles as these lanes need is compiled once for any number. Without lanes it has no turns: the loop is also the
guard.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var, storage_struct
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.form import Block, Call, Return, TailCall, reads
from lanewise.blocks.link import Linked
from lanewise.machine.advance import Advance
from lanewise.machine.state import State
from lanewise.machine.together import lookups

FEWEST_LANES = 16
# What a tile must be worth for each lane of the machine: choosing its lanes reads all of them, longer if they must
# agree.
CHOICE_OPERATIONS = 4e3
AGREEMENT_OPERATIONS = 1e4
# A block is cut into tiles if that leaves at least this many for all lanes.
FEWEST_TILES = 4


def tile_width(linked: Linked, pc: int, lanes: int) -> int | None:
    """How many lanes a tile of this block has; None where it is better run at full width."""
    block = linked.order[pc]
    if not isinstance(block, Block) or not can_be_packed(linked, pc):
        return None
    operations = linked.costs[pc].operations
    if operations <= move_operations(linked, block):
        return None
    least, most = linked.profile.tile_operations, linked.profile.most_tile_bytes
    agree = lookups(block, set(linked.uniforms).__contains__)
    worth = max(least, (AGREEMENT_OPERATIONS if agree else CHOICE_OPERATIONS) * lanes)
    kept = _touched_bytes(linked, block)
    width = FEWEST_LANES
    while width * operations < worth and (width * operations < least or 2 * width * kept <= most):
        width *= 2
    return width if width * FEWEST_TILES <= lanes else None


def move_operations(linked: Linked, block: Block) -> float:
    """What it costs to take a lane out for this block, and to put it back."""
    return linked.profile.move_operations * sum(
        math.prod(var.aval.shape) for var in _touched(linked, block)
    )


def can_be_packed(linked: Linked, pc: int) -> bool:
    """Whether a block leaves the stacks alone, whose rows are frames."""
    block = linked.order[pc]
    if not isinstance(block, Block):
        return False
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


def _touched_bytes(linked: Linked, block: Block) -> int:
    structs = map(storage_struct, _touched(linked, block))
    return sum(math.prod(struct.shape) * struct.dtype.itemsize for struct in structs)


def run_tiles(advance: Advance, state: State, pc: int, width: int, run: Any) -> State:
    """Run a block, if `run` holds, for the lanes that are at it, tile by tile.

    Where lanes must agree to run together (see `together.py`), a tile holds lanes that do, and after the first only
    full tiles run: the other lanes wait for more.
    """
    block = advance.linked.order[pc]
    assert isinstance(block, Block)
    narrow = advance.with_lanes(width)
    agree = bool(lookups(block, advance.uniform_place.__contains__))

    def next_tile(state: State) -> tuple[Any, Any]:
        together, _ = advance.agreeing(state, block, state.pc == pc, width)
        return first_lanes(together, width), together.sum(dtype=jnp.int32)

    def turn(carry: tuple[Any, Any, State]) -> tuple[Any, Any, State]:
        left, tile, state = carry
        state = _run_tile(advance, narrow, state, pc, tile)
        tile, count = next_tile(state)
        left = left - width
        return jnp.where(count < width, 0, left) if agree else left, tile, state

    here = (state.pc == pc).sum(dtype=jnp.int32)
    left = jnp.where(run, here, 0)
    tile, _ = next_tile(state)
    return lax.while_loop(lambda carry: carry[0] > 0, turn, (left, tile, state))[2]


def run_one_tile(advance: Advance, state: State, pc: int, width: int) -> State:
    """Run a block for the first lanes that are at it and agree, at most `width` of them."""
    block = advance.linked.order[pc]
    assert isinstance(block, Block)
    together, _ = advance.agreeing(state, block, state.pc == pc, width)
    return _run_tile(advance, advance.with_lanes(width), state, pc, first_lanes(together, width))


def first_lanes(mask: Any, width: int) -> Any:
    """The first `width` lanes of a mask; where there are fewer, a number no lane has."""
    lanes = mask.shape[0]
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, width)
    no_lane = jnp.full((width,), lanes, jnp.int32)
    return no_lane.at[place].set(jnp.arange(lanes, dtype=jnp.int32), mode="drop")


def _run_tile(advance: Advance, narrow: Advance, state: State, pc: int, tile: Any) -> State:
    """Advance the lanes of a tile; a lane out of range stands for none."""
    linked = advance.linked
    block = linked.order[pc]
    assert isinstance(block, Block)
    touched, written = _touched(linked, block), _written(linked, block)

    def taken(array: Any) -> Any:
        return array.at[tile].get(mode="clip")

    def put(array: Any, rows: Any) -> Any:
        return array.at[tile].set(rows, mode="drop", unique_indices=True)

    before = replace(
        state,
        pc=jnp.where(tile < advance.lanes, pc, linked.halt),
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
