"""Tiles of a machine that forks: how many slots they have, and what a block takes out of its slot and puts back."""

from __future__ import annotations

import functools

from lanewise._jax import Var
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.form import Block, Return, TailCall, arguments_of, reads
from lanewise.blocks.link import Linked
from lanewise.machine.advance import sliced_alone
from lanewise.machine.banks import places
from lanewise.machine.pushes import without_pushes
from lanewise.machine.worth import MEETING_PRODUCTS

# How many slots, and elements of them, a tile of a cheap block has at most, and the widths of an expensive one.
CHEAP_WIDTH, CHEAP_ELEMENTS = 256, 1 << 15
FEWEST, MOST = 16, 1024
# An arena of many slots has this many for each slot of a tile, while its tiles are no wider than that: with more work
# there are more slots at a block, and a tile costs several microseconds beside what it computes.
SLOTS_A_WIDTH, WIDER = 32, 64


def tile_width(linked: Linked, pc: int, slots: int) -> int:
    """How many slots a tile of a block has."""
    operations = linked.costs[pc].operations
    fewest = FEWEST
    while fewest < WIDER and 2 * fewest * SLOTS_A_WIDTH <= slots:
        fewest *= 2
    if linked.costs[pc].products >= MEETING_PRODUCTS:
        width = fewest
        while width < MOST and width * operations < linked.profile.tile_operations:
            width *= 2
        return min(width, slots)
    # Slots that are not there are moved, too.
    width = CHEAP_WIDTH
    while width > fewest and width * moved(linked, pc) > CHEAP_ELEMENTS:
        width //= 2
    return min(width, slots)


@functools.lru_cache(maxsize=4096)
def kept(linked: Linked, pc: int) -> frozenset[Var]:
    """The registers of a slot that a block writes, or must have: the results where it returns."""
    block = linked.order[pc]
    assert isinstance(block, Block)
    found = set(writes_in_order(block)) & linked.storage.live_out[block.label]
    if isinstance(block.terminator, TailCall):
        found |= {var for var, _ in block.terminator.arguments}
    if isinstance(block.terminator, Return):
        found |= set(linked.program.functions[function_of(linked, pc)].results)
    return frozenset(found & set(linked.registers)) - linked.held_by_lanes


@functools.lru_cache(maxsize=4096)
def wanted_by(linked: Linked, pc: int) -> tuple[Var, ...]:
    """The variables of a slot that a block reads, or gives."""
    touched = {*reads(without_pushes(linked, pc)[0]), *kept(linked, pc)}
    return tuple(var for var in places(linked) if var in touched)


@functools.lru_cache(maxsize=4096)
def moved(linked: Linked, pc: int) -> int:
    """How many elements a slot moves to run a block, and back."""
    block, pushes = without_pushes(linked, pc)
    taken = set(reads(block)).intersection(linked.registers) - linked.held_by_lanes
    given = [var for var, _ in arguments_of(block.terminator)]
    moved = [*taken, *kept(linked, pc), *given, *(push.entries for push in pushes)]
    return sum(atom.aval.size for atom in moved)


@functools.lru_cache(maxsize=4096)
def sliced(linked: Linked, pc: int) -> frozenset[Var]:
    """What lanes hold that a block reads slices of: no slot takes the whole of it."""
    block, _ = without_pushes(linked, pc)
    found = linked.held_by_lanes.intersection(reads(block))
    return frozenset(var for var in found if sliced_alone(block, var))


@functools.lru_cache(maxsize=4096)
def function_of(linked: Linked, pc: int) -> str:
    block = linked.order[pc]
    return next(f.name for f, other in linked.program.all_blocks() if other is block)
