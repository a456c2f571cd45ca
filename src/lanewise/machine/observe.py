"""A machine that is watched: what it records and reports while it runs.

A watched machine has more in its state (`Watch`), and so is different code from one that is not: without observers it
costs nothing. It reports two things.

* *How far it is*, for a progress bar and for the clock of a recording: now and then the host is called with the tick
  and the number of examples left. The host answers at which tick to call it again, from the time the last ticks took;
  until then the machine only ticks (`watched_loop`).
* *What it did*, for a recording: how many lanes every block advanced in every tick, how many lanes ran, how deep the
  stacks were, how many examples had been taken and had ended. A run may have any number of ticks, so they are summed in
  `BINS` bins of equally many ticks; when the bins are full, neighbours are added up and a bin is twice as many ticks.
  The recording also has the tick at which each example (of the first `MOST_EXAMPLES`) began and ended. All of it is in
  the state, and passed to the host when the run has ended.

Considered: calling the host at every tick is simple and shows more, but costs more than most ticks do; a ring
of the last ticks forgets how a run began.

Where lanes run on their own (`native`, `kernel`) there are no ticks. There the host is called before and after
(`Whole`), with the steps of each example and the most frames it had pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise.core import events
from lanewise.core.events import (
    MOST_EXAMPLES,
    RunInfo,
    begin_run,
    call_host,
    end_run,
    outcome_counts,
)
from lanewise.machine.state import State, examples_pc

# A power of two, for neighbours are added up.
BINS = 256

# -- by ticks ----------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """What is recorded: in this tick the lanes that each block advanced; and all ticks so far, in bins.

    `sums`: for each bin, for each block the lanes advanced and the ticks in which it ran, then lanes that ran, lanes
    there were, and ticks. `peaks`: the most frames pending, examples taken, examples ended. `stride`: the ticks of a
    bin. `lives`: the ticks at which examples began and ended, and their steps.
    """

    advanced: Any
    sums: Any
    peaks: Any
    stride: Any
    lives: Any


class Watch(NamedTuple):
    """The state of a watched machine: the number of its run, when to call the host, what it records (or nothing).

    `until` is the tick at which to stop: when the host is to be called, or the bins are full.
    """

    number: Any
    due: Any
    until: Any
    examples: Any
    trace: Any


def _first_watch(info: RunInfo, blocks: int, operands: Sequence[Any]) -> Watch:
    """At the beginning of a run of a machine with this many blocks."""
    trace: Any = ()
    if info.recorded:
        kept = min(info.examples, MOST_EXAMPLES)
        trace = Trace(
            advanced=jnp.zeros((blocks,), jnp.float32),
            sums=jnp.zeros((BINS, 2 * blocks + 3), jnp.float32),
            peaks=jnp.zeros((BINS, 3), jnp.int32),
            stride=jnp.int32(1),
            lives=jnp.full((3, kept), -1, jnp.int32),
        )
    # A recording's clock begins with the first tick, not with what comes before it.
    first = jnp.int32(0 if info.recorded else 1)
    return Watch(begin_run(info, operands), first, first, jnp.int32(info.examples), trace)


def watched(state: State, info: RunInfo | None, blocks: int, operands: Sequence[Any]) -> State:
    """The first state of a machine, if it is watched, with what it needs for that."""
    if info is None:
        return state
    lanes = examples_pc(state).shape[0]
    # The ticks at which the examples in lanes began, and ended.
    life = (jnp.zeros((lanes,), jnp.int32), jnp.full((lanes,), -1, jnp.int32))
    return state.with_(
        watch=_first_watch(info, blocks, operands), life=life if info.recorded else ()
    )


def advanced(watch: Any, pc: int, lanes: Any) -> Any:
    """A block has advanced this many lanes."""
    if not watch or not watch.trace:
        return watch
    trace = watch.trace
    return watch._replace(trace=trace._replace(advanced=trace.advanced.at[pc].add(lanes)))


def watched_loop(
    goes_on: Callable[[Any], Any],
    turn: Callable[[Any], Any],
    carry: Any,
    state_of: Callable[[Any], Any],
    with_state: Callable[[Any, Any], Any],
    halt: int,
    waiting: Any,
) -> Any:
    """`lax.while_loop` over something that holds a machine's state, with stops where the machine is watched.

    Then a loop is inside another: one that only ticks, which XLA compiles as it would without observers, until it is
    time to stop.
    """
    if not state_of(carry).watch:
        return lax.while_loop(goes_on, turn, carry)

    def ticks_on(carry: Any) -> Any:
        state = state_of(carry)
        return goes_on(carry) & (state.ticks < state.watch.until)

    def stretch(carry: Any) -> Any:
        carry = lax.while_loop(ticks_on, turn, carry)
        return with_state(carry, _looked_at(state_of(carry), halt, waiting))

    return lax.while_loop(goes_on, stretch, carry)


def _looked_at(state: State, halt: int, waiting: Any) -> State:
    """The state after the host has been called and bins have been emptied, if it was time for that."""
    watch = state.watch
    left = (examples_pc(state) != halt).sum(dtype=jnp.int32) + waiting

    def call() -> Any:
        (due,) = call_host(lambda *args: [events.reach(*args)], 1, watch.number, state.ticks, left)
        return due

    # The end is reported here, in its place: XLA may put off the call that ends a run until other work is done.
    due = until = lax.cond((state.ticks >= watch.due) | (left == 0), call, lambda: watch.due)
    if watch.trace:
        trace = _with_room(watch.trace, state.ticks)
        watch = watch._replace(trace=trace)
        until = jnp.minimum(due, BINS * trace.stride)
    return state.with_(watch=watch._replace(due=due, until=until))


def ticked(state: State, halt: int, busy: Any, waiting: Any) -> State:
    """The state after a tick that began with `busy` lanes running, `waiting` examples not in any lane."""
    watch = state.watch
    if not watch.trace:
        return state
    born, died = state.life
    ended = examples_pc(state) == halt
    left = (~ended).sum(dtype=jnp.int32) + waiting
    deepest = state.deepest if state.frames else state.depth.max(initial=0)
    counts = [deepest, watch.examples - waiting, watch.examples - left]
    trace = _binned(watch.trace, state.ticks, busy, ended.shape[0], jnp.stack(counts))
    died = jnp.where(ended & (died < 0), state.ticks, died)
    return state.with_(watch=watch._replace(trace=trace), life=(born, died))


def _binned(trace: Trace, ticks: Any, busy: Any, lanes: int, peaks: Any) -> Trace:
    """A tick's counts in their bin."""
    place = (ticks - 1) // trace.stride
    ran = (trace.advanced > 0).astype(jnp.float32)
    whole = jnp.stack([busy, jnp.float32(lanes), jnp.float32(1)])
    return trace._replace(
        advanced=jnp.zeros_like(trace.advanced),
        sums=trace.sums.at[place].add(jnp.concatenate([trace.advanced, ran, whole])),
        peaks=trace.peaks.at[place].max(peaks.astype(jnp.int32)),
    )


def _with_room(trace: Trace, ticks: Any) -> Trace:
    """The bins, with neighbours added up if all are full."""

    def halved(carry: Any) -> Any:
        _, sums, tops, stride = carry
        pairs = sums.reshape(BINS // 2, 2, -1).sum(1)
        highest = tops.reshape(BINS // 2, 2, -1).max(1)
        return (
            jnp.array(False),
            jnp.concatenate([pairs, jnp.zeros_like(pairs)]),
            jnp.concatenate([highest, jnp.zeros_like(highest)]),
            2 * stride,
        )

    # A loop of at most one turn: XLA:CPU would copy the operands of a `cond`.
    _, sums, peaks, stride = lax.while_loop(
        lambda carry: carry[0],
        halved,
        (ticks >= BINS * trace.stride, trace.sums, trace.peaks, trace.stride),
    )
    return trace._replace(sums=sums, peaks=peaks, stride=stride)


def given_more(state: State, takes: Any) -> State:
    """The state of a machine whose host has given these lanes an example."""
    if not state.watch:
        return state
    more = takes.sum(dtype=jnp.int32)
    return state.with_(watch=state.watch._replace(examples=state.watch.examples + more))


def restarted(state: State, takes: Any) -> Any:
    """The lives of lanes of which some have taken another example."""
    if not state.life:
        return ()
    born, died = state.life
    return jnp.where(takes, state.ticks, born), jnp.where(takes, -1, died)


def put_away(state: State, places: Any) -> Any:
    """The state after the examples in lanes have been stored under these numbers (beyond the end: none)."""
    if not (state.watch and state.watch.trace):
        return state.watch
    trace = state.watch.trace
    return state.watch._replace(trace=trace._replace(lives=_kept(trace.lives, places, state)))


def _kept(lives: Any, places: Any, state: State) -> Any:
    born, died = state.life
    rows = jnp.stack([born, died, state.steps])
    # Examples after those that are recorded go beyond the end.
    return lives.at[:, places].set(rows, mode="drop", unique_indices=True)


def finished(state: State, code: Any, *, lives_of_lanes: bool) -> None:
    """Report that a machine has ended. `lives_of_lanes`: lanes still hold their examples, one each."""
    watch = state.watch
    if not watch:
        return
    if not watch.trace:
        end_run(watch.number, ticks=state.ticks)
        return
    trace = watch.trace
    lives = trace.lives
    if lives_of_lanes:
        lives = _kept(lives, jnp.arange(state.pc.shape[0]), state)
    end_run(
        watch.number,
        ticks=state.ticks,
        examples=watch.examples,
        sums=trace.sums,
        peaks=trace.peaks,
        stride=trace.stride,
        lives=lives,
        outcomes=outcome_counts(code),
    )


# -- each lane on its own -----------------------------------------------------------------------------
