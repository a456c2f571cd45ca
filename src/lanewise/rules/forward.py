"""The forward program of a gradient: run now, its tapes grow.

How long its tapes must be is not known before a run. Outside `jit` they start short, the host makes them longer while
the program runs (`rules/run.py`), and what is given at the end has the shapes that were needed. A JAX primitive
has the shapes it says in advance, so this is a primitive of its own, which is only ever bound where nothing is staged:
what it gives ends with the number of records that tapes have room for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import batching
from lanewise.core.errors import OptionError
from lanewise.diff.checkpoint import RECORDS_INSIDE_JIT, Checkpoints
from lanewise.diff.vjp import Room
from lanewise.job.job import Params, with_constants
from lanewise.rules.bind import batched_outs, execute_on_host

# How many records a tape of unknown length has room for at first, where it grows.
FIRST_RECORDS = 64

forward_p = _jax.primitive("program_forward")


def run_forward(primals: Sequence[Any], active: tuple[bool, ...], params: Params) -> Any:
    """The gradient of a program, and what its forward program gives; outside `jit` its tapes grow."""
    program, options = params.program, params.options
    if options.offload and params.lanes:
        raise OptionError(
            f'offload="host" is for a lone call of `{program.name}`, or lanes that do not diverge; here'
            f" {math.prod(params.lanes)} lanes take ways of their own. Leave it out, or set checkpoints to a number,"
            " which bounds what is saved."
        )
    # Lanes on several devices run as inside `jit` (`rules/on_mesh.py`).
    runs_now = options.tape is None and _jax.runs_now() and not any(map(_jax.is_split, primals))
    records = options.tape or (FIRST_RECORDS if runs_now else RECORDS_INSIDE_JIT)
    grows = runs_now or options.tape_grows
    # A check for NaN reads all that is saved, written or not.
    offload, filled = options.offload == "host", _jax.looks_for_nan()
    # Where calls run at the same time, they leave records in any order.
    numbered = options.schedule == "fork"
    setting = Checkpoints(options.checkpoints, records, offload, grows, filled, numbered)
    room = Room(program, active, setting)
    if runs_now:
        *outs, records = forward_p.bind(*primals, room=room, params=params)
        return room.with_records(int(_jax.to_host(records))).gradient, outs
    own = _of_forward(room, params)
    return room.gradient, own.bind(*room.forward.constants, *primals)


def _of_forward(room: Room, params: Params) -> Params:
    """The parameters of the forward program."""
    program, constants = room.forward
    return params.of(program, with_constants(constants, params.mapped, params.lanes))


@forward_p.def_impl
def _run_now(*primals: Any, room: Room, params: Params) -> list[Any]:
    own = _of_forward(room, params)._asdict()
    return execute_on_host(*room.forward.constants, *primals, **own, room=room)


def _batch(
    axis_data: Any,
    primals: Sequence[Any],
    dims: Sequence[int | None],
    *,
    room: Room,
    params: Params,
) -> tuple[list[Any], list[int | None]]:
    primals = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(primals, dims, strict=True)]
    params = params.with_axis(axis_data.size, dims)
    outs = forward_p.bind(*primals, room=room, params=params)
    return outs, batched_outs(_of_forward(room, params), len(outs))


batching.fancy_primitive_batchers[forward_p] = _batch
