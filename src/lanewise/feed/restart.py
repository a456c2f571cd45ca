"""A lane that starts over with the next example: what it takes in, what it leaves, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise._jax import Var, storage_struct, stored
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.machine import observe
from lanewise.machine.advance import select
from lanewise.machine.state import State
from lanewise.machine.worth import swept_blocks


def result_registers(linked: Linked) -> tuple[Var, ...]:
    """The registers that hold results at a lane's end."""
    kept = frozenset(linked.registers)
    return tuple(dict.fromkeys(v for v in linked.program.entry_function.results if v in kept))


def input_registers(linked: Linked, operands: Sequence[Any]) -> dict[Var, Any]:
    """What the registers that have a value before the program starts hold then."""
    given = {
        var: stored(value, var.aval)
        for var, value in zip(linked.program.inputs, operands, strict=True)
    }
    given |= {var: jnp.asarray(value) for var, value in linked.program.constants}
    return {var: given[var] for var in linked.registers if var in given}


def restarted(linked: Linked, state: State, takes: Any, inputs: Mapping[Var, Any]) -> State:
    """The lanes of `takes` at the entry, with these inputs; the other lanes, and what all share, as they are."""
    registers = tuple(
        select(takes, inputs[var], old) if var in inputs else old
        for var, old in zip(linked.registers, state.registers, strict=True)
    )
    entry = linked.pc_of[linked.program.entry_function.entry]
    return state.with_(
        pc=jnp.where(takes, entry, state.pc),
        registers=registers,
        depth=jnp.where(takes, 0, state.depth),
        steps=jnp.where(takes, 0, state.steps),
        code=jnp.where(takes, int(Outcome.DONE), state.code),
        site=jnp.where(takes, -1, state.site),
        life=observe.restarted(state, takes),
    )


def refill_ticks(linked: Linked, lanes: int, schedule: str) -> float:
    """What a refill costs, in ticks."""
    swept = [linked.costs[pc].operations for pc in swept_blocks(linked)] or [0.0]
    blocks_a_tick = len(swept) if schedule == "sweep" else 1
    operations = sum(swept) * blocks_a_tick / len(swept)
    tick = blocks_a_tick * linked.profile.block_operations + lanes * operations
    kept = set(linked.registers)
    moved = [*result_registers(linked), *(var for var in linked.program.inputs if var in kept)]
    elements = sum(math.prod(storage_struct(var).shape) for var in moved)
    entry = linked.pc_of[linked.program.entry_function.entry]
    once = linked.costs[entry].operations + linked.profile.move_operations * elements
    return (linked.profile.block_operations + lanes * once) / tick
