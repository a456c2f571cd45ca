"""The schedule `sweep`: all cheap blocks in program order, and expensive ones when it pays.

Each block runs for the lanes that are at it when its turn comes, so that a lane runs a whole loop iteration in one
tick. Expensive blocks run behind a guard.

When an expensive block pays. Lanes gather at an expensive block while the others run on. A lane that waits loses a
tick, and a tick is worth what the machine spends in it, shared by the live lanes; a run costs the same for one lane as
for all. So the block runs when the waiting, summed over lanes and ticks, has cost what the run costs: the ski-rental
rule, weighted by lanes. With lanes arriving at a steady rate this waits `sqrt(2 K c)` ticks, where lanes come by every
`K` ticks and a run costs `c` ticks, which is where the cost of waiting and the cost of running half-empty balance. When
no block would run, the expensive block with the most lanes runs at once.

On a GPU a guard costs more, and expensive blocks that lanes run in every iteration have none, or one for all of them:
see `worth.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.blocks.link import Linked
from lanewise.blocks.text import print_program
from lanewise.core.errors import InternalError
from lanewise.core.one_function import as_one_function
from lanewise.machine.advance import Advance
from lanewise.machine.compact import can_be_packed, run_one_tile, run_tiles, tile_width
from lanewise.machine.state import State, Tick
from lanewise.machine.worth import around, expensive_blocks, swept_blocks

# The lanes that gather at the fullest of several alternatives, over those at each if all were as full.
CROWDED = 1.0


# Alternatives that together cost no more than this many ticks all run in each: lanes then need fewer ticks.
FREE_TICKS = 3


def sweep(advance: Advance) -> Tick:
    """One tick of the sweep."""
    linked, lanes = advance.linked, advance.lanes
    refuse_lost_lanes(linked, swept_blocks(linked))
    expensive = expensive_blocks(linked, lanes)
    cheap_cost = linked.profile.tick_operations + sum(
        _run_cost(linked, pc, lanes) for pc in range(linked.halt) if pc not in expensive
    )
    if not expensive:
        return lambda state: _sweep_all(advance, state)
    if linked.profile.host_reads_guards:
        always, one_of = around(linked, expensive)
        if always:
            expensive = tuple(pc for pc in expensive if pc not in always)
        all_of_them = lanes * sum(linked.costs[pc].operations for pc in one_of)
        if one_of and all_of_them <= FREE_TICKS * linked.profile.tick_operations:
            expensive = tuple(pc for pc in expensive if pc not in one_of)
        elif one_of and all(can_be_packed(linked, pc) for pc in one_of):
            return lambda state: _sweep_alternatives(advance, state, sorted(one_of))
        if not expensive:
            return lambda state: _sweep_all(advance, state)
    return running_expensive(advance, expensive, cheap_cost, functools.partial(_run_cheap, advance))


def running_expensive(
    advance: Advance,
    expensive: tuple[int, ...],
    cheap_cost: float,
    run_cheap: Callable[[State, int], State],
) -> Tick:
    """One tick that runs expensive blocks when it pays, and `run_cheap` in place of the others, for `cheap_cost`."""
    linked, lanes = advance.linked, advance.lanes
    places = jnp.asarray(expensive, jnp.int32)
    tiles = [tile_width(linked, pc, lanes) or lanes for pc in expensive]
    widths = jnp.asarray(tiles, jnp.int32)
    prices = jnp.asarray(
        [_run_cost(linked, pc, width) for pc, width in zip(expensive, tiles, strict=True)],
        jnp.float32,
    )
    order = jnp.arange(len(expensive))

    def decide(pc: Any, waited: Any, spent: Any) -> list[Any]:
        here = (pc[:, None] == places).sum(0, dtype=jnp.int32)
        live = ((pc >= 0) & (pc < linked.halt)).sum(dtype=jnp.int32)
        price = prices * ((here + widths - 1) // widths)
        # What a tick costs beside each block, by what ran in the last one.
        beside = cheap_cost + spent.sum() - spent
        due = (waited + here) * beside >= price * live
        forced = (here.sum() == live) & ~(due & (here > 0)).any()
        most_lanes = order == jnp.argmax(here) if len(expensive) > 1 else True
        run = (here > 0) & (due | (forced & most_lanes))
        return [jnp.where(run, 0, waited + here), jnp.where(run, price, 0.0), *run]

    def tick(state: State) -> State:
        # A state has room for the account of every expensive block, with a guard or without.
        account = state.waited[: len(expensive)], state.spent[: len(expensive)]
        waited, spent, *run = as_one_function(decide, state.pc, *account)
        state = state.with_(
            waited=lax.dynamic_update_slice(state.waited, waited, (0,)),
            spent=lax.dynamic_update_slice(state.spent, spent, (0,)),
        )
        for pc in swept_blocks(linked):
            if pc not in expensive:
                state = run_cheap(state, pc)
                continue
            place = expensive.index(pc)
            if tiles[place] < lanes:
                state = run_tiles(advance, state, pc, tiles[place], run[place])
            else:
                state = _when(linked, run[place], functools.partial(advance.run, pc=pc), state)
        return state

    return tick


def _when(linked: Linked, flag: Any, run: Callable[[State], State], state: State) -> State:
    """`run(state)` if the flag holds.

    On a CPU a loop of at most one turn: XLA keeps the state of a loop in place, and copies operands that a `cond`
    returns unchanged. On a GPU a loop reads its flag twice, which costs more than the copies.
    """
    if linked.profile.host_reads_guards:
        return lax.cond(flag, run, lambda s: s, state)
    _, state = lax.while_loop(
        lambda carry: carry[0], lambda carry: (jnp.array(False), run(carry[1])), (flag, state)
    )
    return state


def _sweep_alternatives(advance: Advance, state: State, alternatives: list[int]) -> State:
    """All other blocks, and in place of the last of these, the one with the most lanes, for a tile of them."""
    places = jnp.asarray(alternatives, jnp.int32)
    width = min(advance.lanes, int(advance.lanes * CROWDED / len(alternatives)) + 1)
    for pc in swept_blocks(advance.linked):
        if pc not in alternatives:
            state = advance.run(state, pc)
        elif pc == alternatives[-1]:
            here = (state.pc[:, None] == places).sum(0, dtype=jnp.int32)
            runs = [
                functools.partial(run_one_tile, advance, pc=i, width=width) for i in alternatives
            ]
            state = lax.switch(jnp.argmax(here), runs, state)
    return state


def _run_cheap(advance: Advance, state: State, pc: int) -> State:
    """Run a block for the lanes that are there; one that moves much data only if there are any."""
    run = functools.partial(advance.run, pc=pc)
    linked, profile = advance.linked, advance.linked.profile
    moved = advance.lanes * linked.moves[pc]
    if profile.host_reads_guards or moved < profile.guard_operations:
        return run(state)
    return _when(linked, (state.pc == pc).any(), run, state)


def _sweep_all(advance: Advance, state: State) -> State:
    for pc in swept_blocks(advance.linked):
        state = _run_cheap(advance, state, pc)
    return state


def refuse_lost_lanes(linked: Linked, run: Collection[int]) -> None:
    """Raise if a lane can come to a block that a tick never runs: the machine would tick forever."""
    lost = linked.destinations - {*run, linked.halt}
    if lost:
        places = ", ".join(map(str, sorted(lost)))
        raise InternalError(
            f"lanes come to pc {places}, which no tick runs", print_program(linked.program)
        )


def _run_cost(linked: Linked, pc: int, width: int) -> float:
    """What it costs to run a block at a width, in lane operations."""
    cost = linked.costs[pc]
    return linked.profile.block_operations + cost.shared + width * cost.operations
