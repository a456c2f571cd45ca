"""The carrier `ticks`: all lanes at once on XLA, one block (or one sweep of blocks) at a time.

The machine is one `lax.while_loop` over the state with a scalar predicate, "can any lane go on", so it runs inside
`jit`, under `shard_map` and inside other loops. This is program-counter autobatching (Radul et al. 2019), except for
what a tick runs (see `schedule.py`) and what it touches: blocks read and write only the registers they need,
values that are the same for all lanes are held once, stack slots and indexed writes are scattered in place.

Lanes that have ended idle. With more examples than lanes, `refill.py` stops the machine at times (`Pause`) to give them
new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise._jax import Var, loaded
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.one_function import as_one_function
from lanewise.core.options import Options
from lanewise.core.outcomes import blank
from lanewise.machine import observe
from lanewise.machine.advance import Advance
from lanewise.machine.held import totals_of
from lanewise.machine.schedule import SCHEDULES, before_meeting, expensive_for
from lanewise.machine.state import (
    State,
    Tick,
    any_running,
    burned,
    busy_lanes,
    has_fuel,
    outcome_codes,
)

# An answer with this many elements or more is copied only if a lane has failed.
LARGE_ANSWER = 1 << 18


class Pause(NamedTuple):
    """When the machine stops before all lanes have ended.

    `idle`: idle lanes have together waited this many ticks. `few`: no more lanes than this run. `ticks`: this many
    ticks have passed.
    """

    idle: Any = jnp.inf
    few: Any = 0
    ticks: Any = jnp.inf


def run_ticks(linked: Linked, state: State, lanes: int, options: Options, schedule: str) -> State:
    """Tick until no lane can go on: all have ended, or wait for room on their stacks."""
    state, tick = begin(linked, state, lanes, options, schedule)
    return observe.watched_loop(
        lambda state: any_running(state, linked),
        tick,
        state,
        lambda state: state,
        lambda _, state: state,
        linked.halt,
        0,
    )


def run_until(
    linked: Linked,
    state: State,
    lanes: int,
    options: Options,
    schedule: str,
    pause: Pause,
    waiting: Any = 0,
) -> tuple[State, Any]:
    """Tick until no lane can go on or a pause is due; also returns the waiting of idle lanes, and the ticks.

    `waiting`: how many examples are in no lane yet, for observers.
    """
    state, tick = begin(linked, state, lanes, options, schedule, waiting=waiting)
    slots = bool(state.frames)

    def account(pc: Any, spent: Any) -> list[Any]:
        busy = ((pc >= 0) & (pc < linked.halt)).sum(dtype=jnp.int32).astype(jnp.float32)
        if slots:
            # Where frames are lanes, the lanes that have an example; none if nothing can go on.
            there = (pc[:lanes] != linked.halt).sum(dtype=jnp.int32).astype(jnp.float32)
            busy = jnp.where(busy > 0, there, 0)
        return [spent + jnp.stack([lanes - busy, jnp.float32(1)]), busy]

    def turn(carry: Any) -> Any:
        state, spent, _ = carry
        state = tick(state)
        return state, *as_one_function(account, state.pc, spent)

    def goes_on(carry: Any) -> Any:
        state, spent, busy = carry
        paused = (busy <= pause.few) | (spent[0] >= pause.idle) | (spent[1] >= pause.ticks)
        return ~paused & has_fuel(state)

    nothing = jnp.zeros((2,), jnp.float32)
    _, busy = account(state.pc, nothing)
    state, spent, _ = observe.watched_loop(
        goes_on,
        turn,
        (state, nothing, busy),
        lambda carry: carry[0],
        lambda carry, state: (state, *carry[1:]),
        linked.halt,
        waiting,
    )
    return state, spent


def begin(
    linked: Linked,
    state: State,
    lanes: int,
    options: Options,
    schedule: str,
    *,
    entered: bool = False,
    waiting: Any = 0,
) -> tuple[State, Tick]:
    """The state after all that precedes the first tick (unless lanes have `entered`), and what a tick does."""
    counting = options.stats or options.recorded
    watching = bool(state.watch)
    advance = Advance(
        linked,
        lanes,
        max_steps=options.max_steps,
        counting=counting,
        expensive=expensive_for(linked, lanes, schedule),
    )
    tick = SCHEDULES[schedule](advance)

    def counted(state: State) -> State:
        state = burned(state)
        if not (counting or watching):
            return tick(state)
        state = state.with_(ticks=state.ticks + 1)
        busy = busy_lanes(state, linked)
        if counting:
            room = jnp.stack([busy, jnp.float32(lanes)])
            state = state.with_(counters=state.counters.at[-2:].add(room))
        state = tick(state)
        return observe.ticked(state, linked.halt, busy, waiting) if watching else state

    if schedule == "meet" and not entered:
        state = before_meeting(linked, state)
    if schedule in ("sweep", "meet") and linked.entered_once is not None and not entered:
        state = advance.run(state, linked.entered_once)
    return state, counted


def answers(linked: Linked, state: State) -> tuple[list[Any], Any, Any]:
    """The results of all lanes and the sums over them, outcome codes and sites; a lane that failed answers a blank."""
    code = outcome_codes(state)
    values = dict(zip(linked.registers, state.registers, strict=True))
    return results(linked, values, state, code), code, state.site


def results(linked: Linked, values: Mapping[Var, Any], state: State, code: Any) -> list[Any]:
    """The results from these values, one of each for each code, or from what all share; blank where one failed.

    Then the sums that all lanes have added to.
    """
    failed = code != int(Outcome.DONE)
    uniforms = dict(zip(linked.uniforms, state.uniforms, strict=True))
    found = []
    for var in linked.program.entry_function.results:
        if var in uniforms:
            value = jnp.broadcast_to(uniforms[var], (*code.shape, *uniforms[var].shape))
        else:
            value = values[var]
        found.append(loaded(_blank_where(linked, failed, value), var.aval))
    sums = zip(totals_of(linked, state.sums), linked.program.sums, strict=True)
    return [*found, *(value.astype(aval.dtype) for value, aval in sums)]


def _blank_where(linked: Linked, failed: Any, value: Any) -> Any:
    """Answers, blank where a lane has failed."""

    def blanked(value: Any) -> Any:
        bad = jnp.asarray(blank(value.dtype), value.dtype)
        return jnp.where(lax.expand_dims(failed, range(1, value.ndim)), bad, value)

    if linked.profile.host_reads_guards or value.size < LARGE_ANSWER:
        return blanked(value)
    # Tapes: where no lane has failed they are not copied. A loop of at most one turn leaves them in place.
    start = (failed.any(), value)
    turn = lax.while_loop(lambda c: c[0], lambda c: (jnp.array(False), blanked(c[1])), start)
    return turn[1]


def statistics(state: State, steps: Any = None) -> list[Any]:
    """The counters, in the order of `Stats`; `steps` is the sum over all examples, if there were more than lanes."""
    steps = state.steps.sum(dtype=jnp.float32) if steps is None else steps
    return [state.ticks, *state.counters, steps, state.deepest]
