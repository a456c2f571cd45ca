"""What refill needs of a machine, whose frames are on stacks or are lanes themselves.

A machine with stacks has its lanes in every array. One that forks (`machine/frames.py`) has slots, the first of which
are the lanes: an example has ended when its lane's slot has, whatever slots its calls had, and a lane that takes the
next one begins with none. Refill reads both through `seen`, a state of lanes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from lanewise._jax import Var
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.options import Options
from lanewise.grow.memory import most_depth
from lanewise.machine import observe
from lanewise.machine.advance import select
from lanewise.machine.banks import places
from lanewise.machine.frames import (
    column,
    first_frames,
    lanes_alone,
    most_frames,
    unused_rows,
    with_columns,
    with_slots,
)
from lanewise.machine.schedule import num_expensive
from lanewise.machine.state import State, grown, initial_state, running


@dataclass(frozen=True)
class Lanes:
    """The lanes of a machine; `most` is as deep as frames can ever be."""

    linked: Linked
    number: int
    schedule: str
    most: int

    @property
    def entry(self) -> int:
        return self.linked.pc_of[self.linked.program.entry_function.entry]


class OnStacks(Lanes):
    """Lanes whose frames are on stacks."""

    def first(self, operands: Sequence[Any], mapped: Sequence[bool], capacity: int) -> State:
        """All lanes at the entry."""
        expensive = num_expensive(self.linked, self.number, self.schedule)
        return initial_state(self.linked, operands, mapped, self.number, capacity, expensive)

    def seen(self, state: State) -> State:
        """The lanes alone."""
        return state

    def running(self, state: State) -> Any:
        """How many lanes can go on."""
        return running(state, self.linked).sum(dtype=jnp.int32)

    def stopped(self, state: State, which: Any) -> State:
        """The state where these lanes have ended."""
        return state.with_(pc=jnp.where(which, self.linked.halt, state.pc))

    def restarted(self, state: State, takes: Any, inputs: Mapping[Var, Any]) -> State:
        """The lanes of `takes` at the entry, with these inputs; the other lanes, and what all share, as they are."""
        registers = tuple(
            select(takes, inputs[var], old) if var in inputs else old
            for var, old in zip(self.linked.registers, state.registers, strict=True)
        )
        return state.with_(
            pc=jnp.where(takes, self.entry, state.pc),
            registers=registers,
            depth=jnp.where(takes, 0, state.depth),
            steps=jnp.where(takes, 0, state.steps),
            code=jnp.where(takes, int(Outcome.DONE), state.code),
            site=jnp.where(takes, -1, state.site),
            life=observe.restarted(state, takes),
        )

    def grown(self, state: State, capacity: int) -> State:
        """The same with room for `capacity` frames."""
        return grown(state, self.linked, capacity)


class OfFrames(Lanes):
    """Lanes whose frames are slots of the same machine."""

    def first(self, operands: Sequence[Any], mapped: Sequence[bool], capacity: int) -> State:
        """All lanes at the entry."""
        final = capacity >= self.most
        return first_frames(self.linked, operands, mapped, self.number, capacity, final)

    def seen(self, state: State) -> State:
        """The lanes alone."""
        return lanes_alone(state, self.linked)

    def running(self, state: State) -> Any:
        """How many lanes have an example that goes on; none if no slot of the machine can."""
        busy = (state.pc[: self.number] != self.linked.halt).sum(dtype=jnp.int32)
        return jnp.where(running(state, self.linked).any(), busy, 0)

    def stopped(self, state: State, which: Any) -> State:
        """The state where these lanes have ended: as they have."""
        del which
        return state

    def restarted(self, state: State, takes: Any, inputs: Mapping[Var, Any]) -> State:
        """The same for lanes that are slots: those of the calls that an example has left behind are free."""
        linked, lanes, frames = self.linked, self.number, state.frames
        where, banks, registers = places(linked), list(frames.banks), list(state.registers)
        for i, var in enumerate(linked.registers):
            if var in where and var in inputs:
                bank, at = where[var]
                rows = select(takes, inputs[var], banks[bank][:lanes, at])
                banks[bank] = banks[bank].at[:lanes, at].set(rows)
            elif var in inputs:
                registers[i] = select(takes, inputs[var], registers[i])
            elif var in linked.program.state and not var.aval.shape:
                # How many entries a tape has. What is left there from before is never read.
                registers[i] = jnp.where(takes, 0, registers[i])
        number = jnp.arange(lanes, dtype=jnp.int32)
        fresh = with_columns(unused_rows(lanes), root=number)
        own = jnp.arange(state.pc.shape[0]) < lanes
        theirs = takes[column(frames.table, "root")]
        begins = jnp.where(own, self.entry, linked.halt)
        old = frames.table[:lanes]
        return state.with_(
            pc=jnp.where(theirs, begins, state.pc).astype(state.pc.dtype),
            registers=tuple(registers),
            steps=state.steps.at[:lanes].set(jnp.where(takes, 0, state.steps[:lanes])),
            life=observe.restarted(state, takes),
            frames=frames.with_(
                table=frames.table.at[:lanes].set(jnp.where(takes[:, None], fresh, old)),
                banks=tuple(banks),
            ),
        )

    def grown(self, state: State, capacity: int) -> State:
        """The same with room for frames `capacity` deep."""
        return with_slots(state, self.linked, capacity, capacity >= self.most)


def lanes_for(
    linked: Linked, lanes: int, schedule: str, options: Options, most: int | None = None
) -> OnStacks | OfFrames:
    """The lanes of a machine of this program; `most`: the depth of frames, if not what the host allows."""
    if linked.forks:
        return OfFrames(linked, lanes, schedule, most or most_frames(linked, options))
    return OnStacks(linked, lanes, schedule, most or most_depth(linked, lanes, options))
