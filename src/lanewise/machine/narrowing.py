"""A machine that becomes narrower as its lanes end.

Where there are no more examples than lanes, nothing takes the place of a lane that has ended, and a block run for all
lanes costs as much for the few that are left. So when the lanes that run fit into a narrower machine they move there:
one `while_loop` for each width, each until the lanes that run fit into the next; the rows go back when all have ended.
This does not change a lane's results: what a block computes for it does not depend on its row.

It pays where the lanes' work decides the time of a tick, not what a tick costs whatever its width. Every width is
compiled, and XLA measures its matrix products again, so there is one narrower machine; the more work a tick has, the
narrower. On a CPU such blocks run tile by tile (`compact.py`), which adapts, too.

On an H200, 65,536 lanes, NUTS on a logistic regression, an early exit and a mixture of experts take this many
milliseconds (and compile in this many times the seconds of `jax.vmap`): to a quarter 98 (1.5), 3.7 (1.7), 7.7 (2.4);
to an eighth 87 (1.8), 3.5 (2.0), 7.5 (2.5); to a sixteenth 80 (1.6), 3.6, 8.2; twice, each time to a third, 79 (2.0),
3.2 (2.8), 7.4 (2.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lanewise.blocks.link import Linked
from lanewise.core.options import Options
from lanewise.machine import observe
from lanewise.machine.compact import first_lanes
from lanewise.machine.schedule import expensive_for, num_expensive
from lanewise.machine.state import State, has_fuel, lanes_of, put_lanes, running
from lanewise.machine.ticking import begin, run_ticks

# The narrower machine has this share of the lanes, or this one if a tick costs less than the work in it even then.
NARROW = 1 / 4
NARROWEST = 1 / 16
# Widths are multiples of this, for which matrix products are fast.
ROUND = 256
FEWEST_LANES = 2048


def widths_for(linked: Linked, lanes: int, schedule: str) -> tuple[int, ...]:
    """The widths of the machines, the first as wide as there are lanes; only that one where narrowing does not pay."""
    expensive = expensive_for(linked, lanes, schedule)
    if not linked.profile.narrows or not expensive:
        return (lanes,)
    # A lane runs one of its expensive blocks at a time.
    work = max(linked.costs[pc].operations for pc in expensive)
    share = NARROWEST if lanes * NARROW * work > linked.profile.tick_operations else NARROW
    width = -(-int(lanes * share) // ROUND) * ROUND
    width = max(width, FEWEST_LANES)
    return (lanes, width) if width <= lanes * NARROW else (lanes,)


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
    # Without fuel more lanes run than fit: those that do not fit stay, and the others come back.
    rows = first_lanes(running(state, linked), few)
    expensive = num_expensive(linked, few, schedule)
    inner = lanes_of(state, jnp.minimum(rows, width - 1)).with_(
        waited=jnp.zeros((expensive,), state.waited.dtype),
        spent=jnp.zeros((expensive,), state.spent.dtype),
    )
    inner = inner.with_(pc=jnp.where(rows < width, inner.pc, linked.halt))
    inner = _run(linked, inner, options, schedule, narrower)
    return put_lanes(state, rows, inner).with_(
        uniforms=inner.uniforms,
        sums=inner.sums,
        deepest=inner.deepest,
        ticks=inner.ticks,
        counters=inner.counters,
        watch=inner.watch,
        fuel=inner.fuel,
    )
