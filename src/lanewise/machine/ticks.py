"""The carrier `ticks`: all lanes at once on XLA, one block (or one sweep of blocks) at a time.

The machine is one `lax.while_loop` over the state with a scalar predicate, "can any lane go on", so it runs inside
`jit`, under `shard_map` and inside other loops. This is program-counter autobatching as Radul et al. (2019) have it,
but for what a tick runs (see `schedule.py`) and what it touches: blocks read and write only the registers they need,
values that are the same for all lanes are held once, stack slots and indexed writes are scattered in place.

What it does not do: lanes that end early idle until the last one ends (refill and shrinking are not here yet).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise.errors import Outcome
from lanewise.machine.advance import Advance
from lanewise.machine.link import Linked
from lanewise.machine.schedule import SCHEDULES
from lanewise.machine.state import COUNTERS, State, any_running, loaded
from lanewise.options import Options


def run_ticks(linked: Linked, state: State, lanes: int, options: Options, schedule: str) -> State:
    """Tick until no lane can go on: all have ended, or wait for room on their stacks."""
    counting = options.stats
    advance = Advance(linked, lanes, max_steps=options.max_steps, counting=counting)
    tick = SCHEDULES[schedule](advance)

    def body(state: State) -> State:
        state = tick(state)
        return state.with_(ticks=state.ticks + 1) if counting else state

    if schedule == "sweep" and linked.entered_once is not None:
        state = advance.run(state, linked.entered_once)
    return lax.while_loop(lambda state: any_running(state, linked), body, state)


def answers(linked: Linked, state: State, lanes: int) -> tuple[list[Any], Any, Any]:
    """The results of all lanes, outcome codes and sites; a lane that failed answers NaN, or zero."""
    code = jnp.where(state.pc < 0, int(Outcome.STACK_OVERFLOW), state.code)
    failed = code != int(Outcome.DONE)
    place = {var: i for i, var in enumerate(linked.registers)}
    uniform_place = {var: i for i, var in enumerate(linked.uniforms)}
    values = []
    for var in linked.program.entry_function.results:
        if var in uniform_place:
            kept = state.uniforms[uniform_place[var]]
            value = jnp.broadcast_to(kept, (lanes, *kept.shape))
        else:
            value = state.registers[place[var]]
        bad = jnp.asarray(blank(value.dtype), value.dtype)
        value = jnp.where(lax.expand_dims(failed, range(1, value.ndim)), bad, value)
        values.append(loaded(value, var.aval))
    return values, code, state.site


def blank(dtype: Any) -> Any:
    """What a failed lane answers."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0


def statistics(state: State) -> list[Any]:
    """The counters, in the order of `Stats`."""
    runs, advanced, offered, _ = (state.counters[i] for i in range(len(COUNTERS)))
    return [state.ticks, runs, advanced, offered, state.steps.sum(dtype=jnp.float32), state.deepest]
