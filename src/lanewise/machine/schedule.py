"""Which block next: one tick under each schedule.

* `lowest`: the block with the lowest pc that any lane is at (Radul et al. 2019).
* `most`: the block most lanes are at.
* `sweep`: all cheap blocks in program order, each for the lanes that are at it when its turn comes, so that a lane
  goes through a whole loop iteration in one tick; dear blocks run behind a `cond`, and only when it pays.

When a dear block pays (sweep). Lanes gather at a dear block while the cheap ones run on. Let `r` be the cost of one
sweep of the cheap blocks over the cost of the dear one. Waiting one tick costs `r` dear runs; running now with few
lanes wastes the rest of a dear run. So a dear block runs when nearly all live lanes are at it (a share of `1/(1 + r)`),
or when the waiting has cost as much as one run would (the ski-rental rule: at most twice the best in hindsight), or
when no lane is at a cheap block; then the dear block with the most lanes runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.machine.advance import Advance
from lanewise.machine.link import Linked
from lanewise.machine.state import State, running

Tick = Callable[[State], State]

# What a `cond` costs, in lane operations: below it a block is run for whoever is there.
GUARD_OPERATIONS = 20_000
# The fixed cost of any block, in the same unit.
BLOCK_OPERATIONS = 2_000


def lowest(advance: Advance) -> Tick:
    """One tick of the lowest-pc schedule."""

    def tick(state: State) -> State:
        here = jnp.where(running(state, advance.linked), state.pc, advance.linked.halt)
        return _run_one(advance, state, here.min(initial=advance.linked.halt))

    return tick


def most(advance: Advance) -> Tick:
    """One tick of the most-lanes schedule."""

    def tick(state: State) -> State:
        return _run_one(advance, state, jnp.argmax(lanes_at(state, advance.linked)).astype(jnp.int32))

    return tick


def _run_one(advance: Advance, state: State, pc: Any) -> State:
    branches = [lambda s, i=i: advance.run(s, i) for i in range(advance.linked.halt)]
    return lax.switch(pc, branches, state)


def lanes_at(state: State, linked: Linked) -> Any:
    """How many lanes are at each block."""
    return (state.pc[:, None] == jnp.arange(linked.halt)).sum(0, dtype=jnp.int32)


def sweep(advance: Advance) -> Tick:
    """One tick of the sweep."""
    linked = advance.linked
    dear = dear_blocks(linked, advance.lanes)
    if not dear:
        return lambda state: _sweep_cheap(advance, state, ())
    costs = _lane_costs(linked, advance.lanes)
    sweep_cost = sum(cost for pc, cost in enumerate(costs) if pc not in dear)

    def tick(state: State) -> State:
        for pc in range(linked.halt):
            state = _guarded(advance, state, pc, costs[pc], sweep_cost) if pc in dear else advance.run(state, pc)
        return _break_deadlock(advance, state, dear)

    return tick


def _sweep_cheap(advance: Advance, state: State, skip: Sequence[int]) -> State:
    for pc in range(advance.linked.halt):
        if pc not in skip:
            state = advance.run(state, pc)
    return state


def _guarded(advance: Advance, state: State, pc: int, cost: float, sweep_cost: float) -> State:
    here = (state.pc == pc).sum(dtype=jnp.int32)
    live = running(state, advance.linked).sum(dtype=jnp.int32)
    ratio = sweep_cost / cost
    waited = state.waiting[pc]
    pays = (here >= live / (1.0 + ratio)) | (waited * ratio >= 1.0)
    run = (here > 0) & pays
    state = lax.cond(run, lambda s: advance.run(s, pc), lambda s: s, state)
    after = jnp.where(run | (here == 0), 0, waited + 1)
    return state.with_(waiting=state.waiting.at[pc].set(after))


def _break_deadlock(advance: Advance, state: State, dear: Sequence[int]) -> State:
    """If every live lane is at a dear block and none ran, run the one with the most lanes."""
    linked = advance.linked
    pcs = jnp.asarray(dear, jnp.int32)
    counts = (state.pc[:, None] == pcs).sum(0, dtype=jnp.int32)
    waiting = counts.sum()
    stuck = (waiting > 0) & (waiting == running(state, linked).sum(dtype=jnp.int32))
    chosen = jnp.where(stuck, jnp.argmax(counts).astype(jnp.int32), len(dear))
    branches = [lambda s, pc=pc: advance.run(s, pc) for pc in dear]
    return lax.switch(chosen, [*branches, lambda s: s], state)


def dear_blocks(linked: Linked, lanes: int) -> tuple[int, ...]:
    """The blocks worth a guard: more work than the guard costs, or a loop that must not run on stale values."""
    costs = _lane_costs(linked, lanes)
    return tuple(pc for pc, cost in enumerate(costs) if cost > GUARD_OPERATIONS)


def _lane_costs(linked: Linked, lanes: int) -> list[float]:
    return [BLOCK_OPERATIONS + lanes * cost.operations for cost in linked.costs]


SCHEDULES: dict[str, Callable[[Advance], Tick]] = {"lowest": lowest, "most": most, "sweep": sweep}
