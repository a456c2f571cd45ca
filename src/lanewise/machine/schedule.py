"""Which block next: one tick under each schedule.

* `lowest`: the block with the lowest pc that any lane is at (Radul et al. 2019).
* `most`: the block most lanes are at.
* `sweep`: all cheap blocks in program order, each for the lanes that are at it when its turn comes, so that a lane
  goes through a whole loop iteration in one tick; dear blocks run behind a guard, and only when it pays.
* `meet`: each lane runs by itself, in one kernel, up to a block with matrix work, where lanes run together.

When a dear block pays (sweep). Lanes gather at a dear block while the others run on. A lane that waits loses a tick,
and a tick is worth what the machine spends in it, shared by the live lanes; a run costs the same for one lane as for
all. So the block runs when the waiting, summed over lanes and ticks, has cost what the run costs: the ski-rental rule,
weighted by lanes. With lanes arriving at a steady rate this waits `sqrt(2 K c)` ticks, where lanes come by every `K`
ticks and a run costs `c` ticks, which is where the cost of waiting and the cost of running half-empty balance. When no
block would run, the dear block with the most lanes runs at once.

On a GPU a guard costs more, and dear blocks that lanes cannot go round without have none, or one for all of them: see
`around.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise.blocks.cost import holds_while
from lanewise.blocks.text import print_program
from lanewise.errors import InternalError, OptionError
from lanewise.machine.advance import Advance
from lanewise.machine.around import around
from lanewise.machine.compact import can_be_packed, run_one_tile, run_tiles, tile_width
from lanewise.machine.link import Linked
from lanewise.machine.state import State, running
from lanewise.one_function import as_one_function

if TYPE_CHECKING:
    from lanewise.machine.kernel.emit import Emitted

Tick = Callable[[State], State]

# What a `cond` costs, in lane operations: below it a block is run for whoever is there. A GPU does far more work in
# the time the host takes to read a predicate.
GUARD_OPERATIONS = {"cpu": 100_000, "gpu": 300_000_000}
# The fixed cost of any block, in the same unit.
BLOCK_OPERATIONS = {"cpu": 2_000, "gpu": 100_000_000}
# A block is worth meeting at if a lane's products in it take this many operations.
MEETING_PRODUCTS = 10_000
# The lanes that gather at the fullest of several alternatives, over those at each if all were as full.
CROWDED = 1.0
# Alternatives that together cost no more than so many ticks all run in each: lanes then need fewer ticks.
FREE_TICKS = 3
# And of a tick: deciding what runs.
TICK_OPERATIONS = {"cpu": 10_000, "gpu": 3_000_000_000}


def lowest(advance: Advance) -> Tick:
    """One tick of the lowest-pc schedule."""

    def tick(state: State) -> State:
        here = jnp.where(running(state, advance.linked), state.pc, advance.linked.halt)
        return _run_one(advance, state, here.min(initial=advance.linked.halt))

    return tick


def most(advance: Advance) -> Tick:
    """One tick of the most-lanes schedule."""

    def tick(state: State) -> State:
        return _run_one(
            advance, state, jnp.argmax(lanes_at(state, advance.linked)).astype(jnp.int32)
        )

    return tick


def _run_one(advance: Advance, state: State, pc: Any) -> State:
    branches = [lambda s, i=i: advance.run(s, i) for i in range(advance.linked.halt)]
    return lax.switch(pc, branches, state)


def lanes_at(state: State, linked: Linked) -> Any:
    """How many lanes are at each block."""
    return (state.pc[:, None] == jnp.arange(linked.halt)).sum(0, dtype=jnp.int32)


def meet(advance: Advance) -> Tick:
    """One tick of lanes that meet: each by itself to the next dear block, then those for the lanes that are there."""
    # Kernels are dear to import: only for who writes one.
    from lanewise.machine.kernel.between import run_between

    linked, lanes = advance.linked, advance.lanes
    dear = meeting_blocks(linked)
    between = kernel_between(linked, advance.max_steps, advance.counting)
    if isinstance(between, str):
        raise OptionError(f'schedule="meet" cannot run this program: {between}. Use "auto".')
    tick_cost = float(tick_operations())
    run_dear = _running_dear(advance, dear, tick_cost, lambda state, pc: state)

    def tick(state: State) -> State:
        state = run_between(between, state, lanes, advance.counting)
        if len(dear) == 1 and tile_width(linked, dear[0], lanes) is None:
            return advance.run(state, dear[0])
        return run_dear(state)

    return tick


def meeting_blocks(linked: Linked) -> tuple[int, ...]:
    """The blocks at which lanes meet: those whose work together is another than the work of each by itself."""
    return tuple(
        pc
        for pc, cost in enumerate(linked.costs)
        if pc != linked.entered_once and cost.products >= MEETING_PRODUCTS
    )


@functools.lru_cache(maxsize=64)
def kernel_between(linked: Linked, max_steps: int | None, counting: bool) -> Emitted | str:
    """The kernel that runs lanes between meetings, or why there is none."""
    if not meeting_blocks(linked):
        return "it has no block with enough matrix work for lanes to meet at"
    # A program under an inner `jax.vmap` is expanded by what runs programs, which stands above.
    from lanewise.machine.execute import expand
    from lanewise.machine.kernel.between import available, emit_between
    from lanewise.machine.kernel.rules import Unsupported

    if not available():
        return "kernels cannot be made here"
    try:
        return emit_between(
            linked,
            meeting_blocks(linked),
            expand=expand,
            max_steps=max_steps,
            counting=counting,
        )
    except Unsupported as refusal:
        return f"{refusal.operation or 'its state'}: {refusal.why}"


def sweep(advance: Advance) -> Tick:
    """One tick of the sweep."""
    linked, lanes = advance.linked, advance.lanes
    refuse_lost_lanes(linked, swept_blocks(linked))
    dear = dear_blocks(linked, lanes)
    cheap_cost = tick_operations() + sum(
        _run_cost(linked, pc, lanes) for pc in range(linked.halt) if pc not in dear
    )
    if not dear:
        return lambda state: _sweep_all(advance, state)
    if guards_are_dear():
        always, one_of = around(linked, dear)
        if always:
            dear = tuple(pc for pc in dear if pc not in always)
        all_of_them = lanes * sum(linked.costs[pc].operations for pc in one_of)
        if one_of and all_of_them <= FREE_TICKS * tick_operations():
            dear = tuple(pc for pc in dear if pc not in one_of)
        elif one_of and all(can_be_packed(linked, pc) for pc in one_of):
            return lambda state: _sweep_alternatives(advance, state, sorted(one_of))
        if not dear:
            return lambda state: _sweep_all(advance, state)
    return _running_dear(advance, dear, cheap_cost, functools.partial(_run_cheap, advance))


def _running_dear(
    advance: Advance,
    dear: tuple[int, ...],
    cheap_cost: float,
    run_cheap: Callable[[State, int], State],
) -> Tick:
    """One tick that runs dear blocks when it pays, and `run_cheap` in the places of the others, for `cheap_cost`."""
    linked, lanes = advance.linked, advance.lanes
    places = jnp.asarray(dear, jnp.int32)
    tiles = [tile_width(linked, pc, lanes) or lanes for pc in dear]
    widths = jnp.asarray(tiles, jnp.int32)
    prices = jnp.asarray(
        [_run_cost(linked, pc, width) for pc, width in zip(dear, tiles, strict=True)], jnp.float32
    )
    order = jnp.arange(len(dear))

    def decide(pc: Any, waited: Any, spent: Any) -> list[Any]:
        here = (pc[:, None] == places).sum(0, dtype=jnp.int32)
        live = ((pc >= 0) & (pc < linked.halt)).sum(dtype=jnp.int32)
        price = prices * ((here + widths - 1) // widths)
        # What a tick costs beside each block, by what ran in the last one.
        beside = cheap_cost + spent.sum() - spent
        due = (waited + here) * beside >= price * live
        forced = (here.sum() == live) & ~(due & (here > 0)).any()
        most_lanes = order == jnp.argmax(here) if len(dear) > 1 else True
        run = (here > 0) & (due | (forced & most_lanes))
        return [jnp.where(run, 0, waited + here), jnp.where(run, price, 0.0), *run]

    def tick(state: State) -> State:
        # A state has room for the account of every dear block, with a guard or without.
        account = state.waited[: len(dear)], state.spent[: len(dear)]
        waited, spent, *run = as_one_function(decide, state.pc, *account)
        state = state.with_(
            waited=lax.dynamic_update_slice(state.waited, waited, (0,)),
            spent=lax.dynamic_update_slice(state.spent, spent, (0,)),
        )
        for pc in swept_blocks(linked):
            if pc not in dear:
                state = run_cheap(state, pc)
                continue
            place = dear.index(pc)
            if tiles[place] < lanes:
                state = run_tiles(advance, state, pc, tiles[place], run[place])
            else:
                state = _when(run[place], functools.partial(advance.run, pc=pc), state)
        return state

    return tick


def _when(flag: Any, run: Callable[[State], State], state: State) -> State:
    """`run(state)` if the flag holds.

    On a CPU a loop of at most one turn: XLA lets a loop keep its state in place, and copies what goes through a `cond`
    untouched. On a GPU a loop reads its flag twice, which costs more than the copies.
    """
    if jax.default_backend() != "cpu":
        return lax.cond(flag, run, lambda s: s, state)
    _, state = lax.while_loop(
        lambda carry: carry[0], lambda carry: (jnp.array(False), run(carry[1])), (flag, state)
    )
    return state


def _sweep_alternatives(advance: Advance, state: State, alternatives: list[int]) -> State:
    """All other blocks, and in the place of the last of these the one with the most lanes, for a tile of them."""
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


def guards_are_dear() -> bool:
    """Whether the host reads a predicate before it goes on: anywhere but on a CPU."""
    return jax.default_backend() != "cpu"


def _run_cheap(advance: Advance, state: State, pc: int) -> State:
    """Run a block for whoever is there; one that moves much, if anyone is."""
    run = functools.partial(advance.run, pc=pc)
    if guards_are_dear() or advance.lanes * advance.linked.moves[pc] < _here(GUARD_OPERATIONS):
        return run(state)
    return _when((state.pc == pc).any(), run, state)


def _sweep_all(advance: Advance, state: State) -> State:
    for pc in swept_blocks(advance.linked):
        state = _run_cheap(advance, state, pc)
    return state


def refuse_lost_lanes(linked: Linked, run: Collection[int]) -> None:
    """Raise if a lane can come to a block that a tick never runs: the machine would tick for ever."""
    lost = linked.destinations - {*run, linked.halt}
    if lost:
        places = ", ".join(map(str, sorted(lost)))
        raise InternalError(
            f"lanes come to pc {places}, which no tick runs", print_program(linked.program)
        )


def swept_blocks(linked: Linked) -> tuple[int, ...]:
    """The blocks of a sweep: none that no lane is ever at, nor an entry that nothing comes back to (it runs before)."""
    never = {linked.entered_once, *linked.bare_ends, *(linked.pc_of[b] for b in linked.waiting)}
    return tuple(pc for pc in range(linked.halt) if pc not in never)


def dear_blocks(linked: Linked, lanes: int) -> tuple[int, ...]:
    """The blocks worth a guard: more work than the guard costs, or a loop that must not run on stale values."""
    work = [cost.shared + lanes * cost.operations for cost in linked.costs]
    items = zip(linked.order, work, strict=True)
    guard = _here(GUARD_OPERATIONS)
    return tuple(
        pc
        for pc, (item, cost) in enumerate(items)
        if pc != linked.entered_once and (cost > guard or holds_while(getattr(item, "eqns", ())))
    )


def _run_cost(linked: Linked, pc: int, width: int) -> float:
    """What it costs to run a block at a width, in lane operations."""
    cost = linked.costs[pc]
    return block_operations() + cost.shared + width * cost.operations


def block_operations() -> int:
    """The fixed cost of running any block here, in lane operations."""
    return _here(BLOCK_OPERATIONS)


def tick_operations() -> int:
    """What a tick costs here whatever runs in it, in lane operations."""
    return _here(TICK_OPERATIONS)


def _here(cost: dict[str, int]) -> int:
    return cost.get(jax.default_backend(), cost["gpu"])


def dear_for(linked: Linked, lanes: int, schedule: str) -> tuple[int, ...]:
    """The blocks that a schedule runs only when it pays."""
    if schedule == "meet":
        return meeting_blocks(linked)
    return dear_blocks(linked, lanes) if schedule == "sweep" else ()


SCHEDULES: dict[str, Callable[[Advance], Tick]] = {
    "lowest": lowest,
    "most": most,
    "sweep": sweep,
    "meet": meet,
}
