"""A machine that becomes narrower as its lanes end.

Where there are no more examples than lanes, nothing takes the place of a lane that has ended, and a block run for all
lanes costs as much for the few that are left. So when the lanes that run fit into a narrower machine they move there:
one `while_loop` for each width, each until the lanes that run fit into the next; the rows go back when all have ended.
A lane does not see it: what a block computes for it does not depend on its row.

It pays where the lanes' work decides the time of a tick, not what a tick costs whatever its width. Every width is
compiled, so there are few of them. On a CPU such blocks run tile by tile (`compact.py`), which adapts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lanewise.blocks.link import Linked
from lanewise.core.options import Options
from lanewise.machine import observe
from lanewise.machine.compact import first_lanes
from lanewise.machine.lanes import lanes_of, put_lanes
from lanewise.machine.schedule import dear_for, num_dear
from lanewise.machine.state import State, has_fuel, running
from lanewise.machine.ticking import begin, run_ticks

# A machine has this share of the lanes of the one before, and there are at most this many. On an H200 three machines,
# each a third as wide, run as fast as six that narrow by 0.6, and compile in a half to a third of the time.
NARROWER = 1 / 3
MOST_WIDTHS = 3
# Widths are multiples of this, which matrix products like.
ROUND = 256
FEWEST_LANES = 2048


def widths_for(linked: Linked, lanes: int, schedule: str) -> tuple[int, ...]:
    """The widths of the machines, the first as wide as there are lanes; only that one where narrowing does not pay."""
    if not linked.profile.narrows or not dear_for(linked, lanes, schedule):
        return (lanes,)
    found = [lanes]
    while len(found) < MOST_WIDTHS:
        width = -(-int(found[-1] * NARROWER) // ROUND) * ROUND
        if width < FEWEST_LANES or width >= found[-1]:
            break
        found.append(width)
    return tuple(found)


def run_shrinking(
    linked: Linked, state: State, options: Options, schedule: str, widths: Sequence[int]
) -> State:
    """Tick until no lane can go on, with machines of these widths one after the other."""
    if len(widths) == 1:
        return run_ticks(linked, state, widths[0], options, schedule)
    state, _ = begin(linked, state, widths[0], options, schedule)
    return _run(linked, state, options, schedule, widths)


def _run(
    linked: Linked, state: State, options: Options, schedule: str, widths: Sequence[int]
) -> State:
    width, *narrower = widths
    _, tick = begin(linked, state, width, options, schedule, entered=True)
    few = narrower[0] if narrower else 0

    def goes_on(state: State) -> Any:
        return (running(state, linked).sum(dtype=jnp.int32) > few) & has_fuel(state)

    state = observe.watched_loop(
        goes_on, tick, state, lambda state: state, lambda _, state: state, linked.halt, 0
    )
    if not narrower:
        return state
    # Without fuel more lanes run than fit: those that do not stay, and the others come back.
    rows = first_lanes(running(state, linked), few)
    dear = num_dear(linked, few, schedule)
    inner = lanes_of(state, jnp.minimum(rows, width - 1)).with_(
        waited=jnp.zeros((dear,), state.waited.dtype), spent=jnp.zeros((dear,), state.spent.dtype)
    )
    inner = inner.with_(pc=jnp.where(rows < width, inner.pc, linked.halt))
    inner = _run(linked, inner, options, schedule, narrower)
    return put_lanes(state, rows, inner).with_(
        uniforms=inner.uniforms,
        deepest=inner.deepest,
        ticks=inner.ticks,
        counters=inner.counters,
        watch=inner.watch,
        fuel=inner.fuel,
    )
