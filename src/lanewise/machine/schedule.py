"""Which block next: one tick under each schedule. The table is at the end.

* `lowest`: the block with the lowest pc that any lane is at (Radul et al. 2019).
* `most`: the block most lanes are at.
* `sweep`: all cheap blocks in program order, expensive ones when it pays (`sweep.py`).
* `meet`: each lane on its own up to a block with matrix work, where lanes run together (`meet.py`).
* `fork`: calls at the same time, each in a slot of its own; expensive blocks when all slots wait for one (`fork.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.blocks.link import Linked
from lanewise.machine.advance import Advance
from lanewise.machine.state import State, Tick, running
from lanewise.machine.sweep import sweep
from lanewise.machine.worth import expensive_blocks, meeting_blocks


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


def expensive_for(linked: Linked, lanes: int, schedule: str) -> tuple[int, ...]:
    """The blocks that a schedule runs only when it pays."""
    if schedule == "meet":
        return meeting_blocks(linked)
    return expensive_blocks(linked, lanes) if schedule == "sweep" else ()


def _meet(advance: Advance) -> Tick:
    # Imports the C++ emitter: only where it is needed.
    from lanewise.machine.meet import meet

    return meet(advance)


def before_meeting(linked: Linked, state: State) -> State:
    """The state from which lanes that meet begin."""
    from lanewise.machine.meet import begun

    return begun(linked, state)


def _fork(advance: Advance) -> Tick:
    from lanewise.machine.fork import fork

    return fork(advance)


SCHEDULES: dict[str, Callable[[Advance], Tick]] = {
    "lowest": lowest,
    "most": most,
    "sweep": sweep,
    "meet": _meet,
    "fork": _fork,
}


def num_expensive(linked: Linked, lanes: int, schedule: str) -> int:
    """The number of blocks whose waiting lanes the schedule counts."""
    return len(expensive_for(linked, lanes, schedule))
