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
from lanewise.job.job import Mapped, Room, answer_axes, job_for
from lanewise.rules.explain import explainable
from lanewise.rules.on_mesh import lower_on_mesh, on_mesh, typed
from lanewise.rules.run import OnHost, execute, on_host
from lanewise.rules.sums import axes_with_sums, unsummed


@program_p.def_abstract_eval
def _program_abstract(
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...] = (),
) -> list[Any]:
    axes_of_answers = answer_axes(program, mapped, options, lanes)
    answers = [
        _jax.in_memory_of(
            _jax.shaped(
                (*itertools.compress(lanes, axes), *aval.shape), aval.dtype, aval.weak_type
            ),
            aval,
        )
        for aval, axes in zip(
            program.out_avals, axes_with_sums(axes_of_answers, summed, lanes), strict=True
        )
    ]
    code = _jax.shaped(lanes, jnp.int32.dtype)
    outcomes = [code, code] if program.gives_outcomes(options) else []
    scalar, whole = _jax.shaped((), jnp.float32.dtype), _jax.shaped((), jnp.int32.dtype)
    stats = [whole, *[scalar] * (NUM_STATS - 2), whole] if options.stats else []
    given = [*answers, *outcomes, *stats]
    return typed(
        _jax.varying_as(given, operands), operands, program, lanes, mapped, options, summed
    )


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
        return on_mesh(operands, program, lanes, mapped, options, summed)
    try:
        run = _runs(program, lanes, mapped, options, platform, events.recorded(), room, summed)
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
def _runs(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    platform: str,
    recorded: bool,
    room: Room | None,
    summed: tuple[int, ...],
) -> OnHost:
    """What runs `program_p` with these parameters."""
    del recorded  # a job knows
    return on_host(
        job_for(program, lanes, mapped, options, platform=platform, room=room, summed=summed)
    )


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
    *,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...] = (),
) -> tuple[list[Any], list[int | None]]:
    if _jax.is_symbolic(axis_data.size):
        raise TransformError(
            f"`{program.name}` is batched with the symbolic size {axis_data.size}: a machine has a known number of"
            " lanes. Export it for a fixed size, and pad batches to that or call it several times."
        )
    if summed:
        # The lanes of the new axis have sums of their own.
        params = {"program": program, "lanes": lanes, "mapped": mapped, "options": options}
        run = functools.partial(unsummed, **params, summed=summed)
        outs = jax.vmap(run, list(dims), axis_size=axis_data.size)(*operands)
        return list(outs), [0] * len(outs)
    if all(dim is None for dim in dims):
        outs = program_p.bind(
            *operands, program=program, lanes=lanes, mapped=mapped, options=options
        )
        return outs, [None] * len(outs)
    operands = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(operands, dims, strict=True)]
    lanes = (axis_data.size, *lanes)
    mapped = tuple((d is not None, *axes) for d, axes in zip(dims, mapped, strict=True))
    outs = program_p.bind(*operands, program=program, lanes=lanes, mapped=mapped, options=options)
    answers = [0 if axes[0] else None for axes in answer_axes(program, mapped, options, lanes)]
    outcomes = [0, 0] if program.gives_outcomes(options) else []
    rest = [None] * (len(outs) - len(answers) - len(outcomes))
    return outs, [*answers, *outcomes, *rest]


batching.fancy_primitive_batchers[program_p] = _batch_program
