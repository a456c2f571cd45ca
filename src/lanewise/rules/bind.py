"""`program_p` and its rules: they are the library.

A program is one JAX primitive. Lowering runs it, batching makes it a machine, the JVP rule makes it another program.
So `jax.jit`, `jax.vmap`, `jax.jvp` work on programs in any order and nesting.

Parameters of `program_p`
-------------------------
`lanes`: the sizes of the lane axes, outermost first; `()` for a call that is not batched. `mapped`: for each operand,
which of those axes it has, in front. Nested `vmap`s add axes and never copy: an operand that no `vmap` maps has none.
`summed`: the answers that are wanted as sums over all lanes (`sums.py`).
Outputs are the answers, then outcome codes and sites if lanes can fail, then statistics if asked for.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import batching, mlir
from lanewise.core import events
from lanewise.core.errors import InternalError, OptionError, TransformError
from lanewise.core.options import Options
from lanewise.core.outcomes import NUM_STATS
from lanewise.core.program import Program, program_p
from lanewise.job.job import Mapped, Params, Room, job_for
from lanewise.rules.explain import explainable
from lanewise.rules.on_mesh import lower_on_mesh, on_mesh, typed
from lanewise.rules.run import OnHost, execute, on_host
from lanewise.rules.sums import axes_with_sums, unsummed


@program_p.def_abstract_eval
def _program_abstract(*operands: Any, **given: Any) -> list[Any]:
    params = Params(**given)
    program, lanes, options = params.program, params.lanes, params.options
    answers = [
        _jax.in_memory_of(
            _jax.shaped(
                (*itertools.compress(lanes, axes), *aval.shape), aval.dtype, aval.weak_type
            ),
            aval,
        )
        for aval, axes in zip(
            program.out_avals,
            axes_with_sums(params.answer_axes, params.summed, lanes),
            strict=True,
        )
    ]
    code = _jax.shaped(lanes, jnp.int32.dtype)
    outcomes = [code, code] if program.gives_outcomes(options) else []
    scalar, whole = _jax.shaped((), jnp.float32.dtype), _jax.shaped((), jnp.int32.dtype)
    stats = [whole, *[scalar] * (NUM_STATS - 2), whole] if options.stats else []
    results = [*answers, *outcomes, *stats]
    return typed(_jax.varying_as(results, operands), operands, params)


@program_p.def_impl
def execute_on_host(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    room: Room | None = None,
    summed: tuple[int, ...] = (),
) -> list[Any]:
    """Answers of all lanes, then what else is wanted; stacks grow as far as `max_depth` allows.

    With `room` tapes grow too.
    """
    platform, devices = _jax.placed(operands)
    if devices > 1 and any(map(_jax.is_split, operands)):
        return on_mesh(operands, Params(program, lanes, mapped, options, summed))
    try:
        run = _runs(program, lanes, mapped, options, summed, platform, events.recorded(), room)
        job = run.job
        if not job.options.watched:
            out = run(operands)
        else:
            with events.call(job.program.name):
                out = run(operands)
                out = jax.block_until_ready(out) if job.options.recorded else out
    except InternalError as error:
        error.show(program.text)
        raise
    if job.program.formats:
        explainable(out[job.program.num_results], job.program, operands, job.mapped)
    return out


# Looked up at each call, by what is at hand: a job takes longer to make than to find what it came to.
@functools.lru_cache(maxsize=1024)
def _runs(*given: Any) -> OnHost:
    """What runs `program_p` with its parameters, on a platform, recorded or not, with room for tapes or not."""
    *params, platform, _, room = given  # a job knows whether it is recorded
    return on_host(job_for(**Params(*params)._asdict(), platform=platform, room=room))


@_jax.ROOM
def _lower_program(ctx: Any, *operands: Any, **params: Any) -> Any:
    platforms = _jax.lowering_platforms(ctx)
    anywhere = len(platforms) > 1
    if _jax.lowers_for_export(ctx):
        params["options"] = _exported(params["program"].name, params["options"])
        anywhere = True
    platform = None if anywhere else platforms[0]
    try:
        if _jax.devices_of_lowering(ctx) > 1:
            return lower_on_mesh(ctx, operands, platform, params)
        return _jax.lower_unchecked(
            ctx, functools.partial(execute, platform=platform), *operands, **params
        )
    except InternalError as error:
        error.show(params["program"].text)
        raise


def _exported(name: str, options: Options) -> Options:
    """The options of a program that `jax.export` writes down: what it holds must be XLA's own."""
    if options.carrier in ("native", "kernel"):
        raise OptionError(
            f"jax.export cannot serialize `{name}` with carrier={options.carrier!r}: its code is a library for this"
            ' machine. Use carrier="ticks", which is XLA\'s own code; "auto" becomes "ticks" here.'
        )
    if options.progress:
        raise OptionError(
            f"jax.export cannot serialize `{name}` with progress=True, which calls Python. Leave it out."
        )
    return options.updated(carrier="ticks")


_jax.needs_devices(program_p)
mlir.register_lowering(program_p, _lower_program)


@_jax.ROOM
def _batch_program(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    **given: Any,
) -> tuple[list[Any], list[int | None]]:
    params = Params(**given)
    if _jax.is_symbolic(axis_data.size):
        raise TransformError(
            f"`{params.program.name}` is batched with the symbolic size {axis_data.size}: a machine has a known"
            " number of lanes. Export it for a fixed size, and pad batches to that or call it several times."
        )
    if params.summed:
        # The lanes of the new axis have sums of their own.
        run = functools.partial(unsummed, params)
        outs = jax.vmap(run, list(dims), axis_size=axis_data.size)(*operands)
        return list(outs), [0] * len(outs)
    if all(dim is None for dim in dims):
        outs = params.bind(*operands)
        return outs, [None] * len(outs)
    operands = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(operands, dims, strict=True)]
    params = params.with_axis(axis_data.size, dims)
    outs = params.bind(*operands)
    return outs, batched_outs(params, len(outs))


def batched_outs(params: Params, number: int) -> list[int | None]:
    """Where this many results have the outermost of the lane axes, if they have it."""
    answers = [0 if axes[0] else None for axes in params.answer_axes]
    outcomes = [0, 0] if params.program.gives_outcomes(params.options) else []
    return [*answers, *outcomes, *[None] * (number - len(answers) - len(outcomes))]


batching.fancy_primitive_batchers[program_p] = _batch_program
