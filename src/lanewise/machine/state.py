"""The machine's state between ticks, how a block changes it, and how lanes are taken out of it and put back.

Every array has a leading axis of lanes, except values that are uniform over lanes, stacks, whose leading axis is depth
(one slot a frame), then lanes, and the sums that all lanes add to. Typed PRNG keys are stored as the integers they are
made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lanewise._jax import Var, storage_struct, stored
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.one_function import as_one_function
from lanewise.core.outcomes import COUNTERS
from lanewise.machine.held import Sums, no_sums


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "pc",
        "registers",
        "uniforms",
        "stacks",
        "sums",
        "returns",
        "depth",
        "deepest",
        "steps",
        "code",
        "site",
        "ticks",
        "counters",
        "waited",
        "spent",
        "life",
        "watch",
        "fuel",
        "frames",
    ],
    meta_fields=[],
)
@dataclass(frozen=True)
class State:
    """A machine's state. `pc` is the block a lane is at; `-1 - pc` parks a lane whose stack, or tape, is full.

    A lane that waits for a tape has a code that says so; one that waits for a stack has none.
    """

    pc: Any
    registers: tuple[Any, ...]
    uniforms: tuple[Any, ...]
    stacks: tuple[Any, ...]
    sums: Sums
    returns: Any
    depth: Any
    deepest: Any
    steps: Any
    code: Any
    site: Any
    ticks: Any
    counters: Any
    waited: Any
    spent: Any
    # Only for a machine that is watched (`observe.py`); empty otherwise.
    life: Any = ()
    watch: Any = ()
    # How many more ticks the machine runs before the host has its turn; empty inside `jit`, where it has none.
    fuel: Any = ()
    # Only for a machine whose frames are lanes (`frames.py`); empty otherwise.
    frames: Any = ()

    def with_(self, **changes: Any) -> State:
        return replace(self, **changes)


# What a turn of the machine does to its state.
Tick = Callable[[State], State]


def initial_state(
    linked: Linked,
    operands: Sequence[Any],
    mapped: Sequence[bool],
    lanes: int,
    capacity: int,
    num_expensive: int = 0,
) -> State:
    """All lanes at the entry, with their inputs in place; `capacity` is how many frames a stack holds."""
    given = {
        var: stored(value, var.aval)
        for var, value in zip(linked.program.inputs, operands, strict=True)
    }
    batched = dict(zip(linked.program.inputs, mapped, strict=True))
    given |= {var: jnp.asarray(value) for var, value in linked.program.constants}

    def register(var: Var) -> Any:
        struct = storage_struct(var)
        if var not in given:
            return jnp.zeros((lanes, *struct.shape), struct.dtype)
        value = given[var]
        return value if batched.get(var, False) else jnp.broadcast_to(value, (lanes, *struct.shape))

    def uniform(var: Var) -> Any:
        struct = storage_struct(var)
        return given[var] if var in given else jnp.zeros(struct.shape, struct.dtype)

    def stack(var: Var) -> Any:
        struct = storage_struct(var)
        return jnp.zeros((capacity, lanes, *struct.shape), struct.dtype)

    def per_lane(value: int) -> Any:
        return jnp.full((lanes,), value, jnp.int32)

    frames = capacity if linked.has_calls else 0
    return State(
        pc=per_lane(linked.pc_of[linked.program.entry_function.entry]),
        registers=tuple(map(register, linked.registers)),
        uniforms=tuple(map(uniform, linked.uniforms)),
        stacks=tuple(map(stack, linked.storage.stacks)),
        sums=no_sums(linked),
        returns=jnp.zeros((frames, lanes), jnp.int32),
        depth=per_lane(0),
        deepest=jnp.int32(0),
        steps=per_lane(0),
        code=per_lane(int(Outcome.DONE)),
        site=per_lane(-1),
        ticks=jnp.int32(0),
        counters=jnp.zeros((len(COUNTERS),), jnp.float32),
        waited=jnp.zeros((num_expensive,), jnp.int32),
        spent=jnp.zeros((num_expensive,), jnp.float32),
    )


def running(state: State, linked: Linked) -> Any:
    """Which lanes can go on."""
    return (state.pc >= 0) & (state.pc < linked.halt)


def examples_pc(state: State) -> Any:
    """The pcs of the lanes that hold examples: without those of calls, where frames are lanes."""
    return state.pc[: state.frames.lanes] if state.frames else state.pc


def busy_lanes(state: State, linked: Linked) -> Any:
    """How many lanes have an example that runs; one that waits for its calls counts, where frames are lanes."""
    found = examples_pc(state) != linked.halt if state.frames else running(state, linked)
    return found.sum(dtype=jnp.float32)


def any_running(state: State, linked: Linked) -> Any:
    """Whether the machine must tick again, and may."""

    def goes_on(pc: Any, *fuel: Any) -> list[Any]:
        found = ((pc >= 0) & (pc < linked.halt)).any()
        return [found & (fuel[0] > 0) if fuel else found]

    (answer,) = as_one_function(goes_on, state.pc, *_fuel(state))
    return answer


def has_fuel(state: State) -> Any:
    """Whether the machine may tick again."""
    return state.fuel > 0 if _fuel(state) else True


def burned(state: State) -> State:
    """The state with a tick less to run."""
    return state.with_(fuel=state.fuel - 1) if _fuel(state) else state


def _fuel(state: State) -> tuple[Any, ...]:
    return () if isinstance(state.fuel, tuple) else (state.fuel,)


def waits_for_stack(state: State) -> Any:
    """Which lanes are parked on a full stack."""
    return (state.pc < 0) & (state.code == int(Outcome.DONE))


def waits_for_tape(state: State) -> Any:
    """Which lanes are parked on a full tape."""
    return (state.pc < 0) & (state.code != int(Outcome.DONE))


def outcome_codes(state: State) -> Any:
    """How each lane would have ended if nothing more were done."""
    return jnp.where(waits_for_stack(state), int(Outcome.STACK_OVERFLOW), state.code)


def grown(state: State, linked: Linked, capacity: int) -> State:
    """The same state with room for `capacity` frames; lanes parked on a full stack go on."""
    more = capacity - state.returns.shape[0]

    def pad(array: Any) -> Any:
        return jnp.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1))

    return state.with_(
        stacks=tuple(map(pad, state.stacks)),
        returns=pad(state.returns),
        pc=jnp.where(waits_for_stack(state), -1 - state.pc, state.pc),
    )


# The fields whose arrays have lanes first, and those whose arrays have them second.
_LANES_FIRST = ("pc", "registers", "depth", "steps", "code", "site", "life")
_LANES_SECOND = ("stacks", "returns")


def lanes_of(state: State, lanes: Any) -> State:
    """A state with these lanes of another."""
    return _changed(lambda x: x[lanes], lambda x: x[:, lanes], state)


def put_lanes(state: State, lanes: Any, rows: State) -> State:
    """A state with `rows` at these lanes; beyond the last lane, a row is dropped."""
    return _changed(
        lambda x, row: x.at[lanes].set(row, mode="drop"),
        lambda x, row: x.at[:, lanes].set(row, mode="drop"),
        state,
        rows,
    )


def with_lanes(state: State, takes: Any, rows: State) -> State:
    """A state with `rows` for the lanes of `takes`."""
    lanes = takes.shape[0]
    return put_lanes(state, jnp.where(takes, jnp.arange(lanes), lanes), rows)


def _changed(first: Callable[..., Any], second: Callable[..., Any], *states: State) -> State:
    """The first state, with each of its arrays with lanes made from the same array of all states."""
    fields = [(name, first) for name in _LANES_FIRST] + [(name, second) for name in _LANES_SECOND]
    return states[0].with_(
        **{name: jax.tree.map(f, *(getattr(s, name) for s in states)) for name, f in fields}
    )
