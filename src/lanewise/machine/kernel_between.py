"""The kernel between meetings (`cpp/variants/between.py`), run on a machine's state."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise.core.profile import CPU, GPU, Profile
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.toolchain import device, foreign
from lanewise.machine.state import State


def arrays_of(state: State) -> list[Any]:
    """The arrays of a state that lanes change between meetings, in the order of the kernel's arguments."""
    own = [state.pc, state.depth, state.steps, state.returns]
    return [*own, *state.registers, *state.stacks, state.code, state.site]


def with_arrays(state: State, arrays: Sequence[Any]) -> State:
    pc, depth, steps, returns, *rest = arrays
    *rest, code, site = rest
    registers = rest[: len(state.registers)]
    return state.with_(
        pc=pc,
        depth=depth,
        steps=steps,
        returns=returns,
        registers=tuple(registers),
        stacks=tuple(rest[len(registers) :]),
        code=code,
        site=site,
    )


def run_between(
    emitted: Emitted, state: State, lanes: int, counting: bool, profile: Profile
) -> State:
    """Run every lane up to the next expensive block, as traceable code."""
    arrays = arrays_of(state)
    shared = [*state.uniforms]
    capacity = state.returns.shape[0]
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    aliases = {len(shared) + i: i for i in range(len(arrays))}
    arguments = [*shared, *arrays, *emitted.constants]
    if profile is GPU:
        run = functools.partial(device.run, spread=True, aliases=aliases)
        *arrays, _, deepest, _, _ = run(emitted, results, arguments, lanes, capacity)
        most = deepest.max(initial=0)
    else:
        results = [*results, jax.ShapeDtypeStruct((4,), jnp.float32)]
        run = functools.partial(foreign.run, aliases=aliases)
        *arrays, totals = run(emitted, results, arguments, lanes, capacity)
        most = totals[1].astype(jnp.int32)
    state = with_arrays(state, arrays)
    return state.with_(deepest=jnp.maximum(state.deepest, most)) if counting else state


def available(profile: Profile) -> bool:
    """Whether kernels can be made for a platform, and be called by XLA on buffers that they change."""
    if profile is CPU:
        return foreign.available()
    return profile is GPU and device.available() and device.launcher() is not None
