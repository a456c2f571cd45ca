"""`program_p` and its rules: they are the library.

A program is one JAX primitive. Lowering runs it, batching makes it a machine, the JVP rule makes it another program.
So `jax.jit`, `jax.vmap`, `jax.jvp` work on programs in any order and nesting.

Parameters of `program_p`
-------------------------
`lanes`: the sizes of the lane axes, outermost first; `()` for a call that is not batched. `mapped`: for each operand,
which of those axes it has, in front. Nested `vmap`s add axes and never copy: an operand that no `vmap` maps has none.
Outputs are the answers, then outcome codes and sites if lanes can fail, then statistics if asked for.

`throw_p` passes answers through and raises if a lane failed: at once outside `jit`, by a callback inside it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback

from lanewise import _jax
from lanewise._jax import ad, batching, mlir
from lanewise.core.errors import OptionError, TransformError
from lanewise.core.options import Options
from lanewise.core.outcomes import NUM_STATS, Site, raise_if_failed, raise_inside_jit
from lanewise.core.program import Program, program_p, throw_p
from lanewise.job.axes import Mapped, with_axes
from lanewise.job.job import answer_axes
from lanewise.plan.sharded import Split
from lanewise.rules.execute import execute
from lanewise.rules.on_host import execute_on_host


@program_p.def_abstract_eval
def _program_abstract(
    *operands: Any, program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options
) -> list[Any]:
    answers = [
        _jax.in_memory_of(
            _jax.shaped(
                (*itertools.compress(lanes, axes), *aval.shape), aval.dtype, aval.weak_type
            ),
            aval,
        )
        for aval, axes in zip(
            program.out_avals, answer_axes(program, mapped, options, lanes), strict=True
        )
    ]
    code = _jax.shaped(lanes, jnp.int32.dtype)
    outcomes = [code, code] if program.gives_outcomes(options) else []
    scalar, whole = _jax.shaped((), jnp.float32.dtype), _jax.shaped((), jnp.int32.dtype)
    stats = [whole, *[scalar] * (NUM_STATS - 2), whole] if options.stats else []
    return _jax.varying_as([*answers, *outcomes, *stats], operands)


program_p.def_impl(execute_on_host)


def _lower_program(ctx: Any, *operands: Any, **params: Any) -> Any:
    platforms = _jax.lowering_platforms(ctx)
    anywhere = len(platforms) > 1
    if _jax.lowers_for_export(ctx):
        params["options"] = _exported(params["program"].name, params["options"])
        anywhere = True
    run = functools.partial(
        execute, platform=None if anywhere else platforms[0], split=Split.of_lowering(ctx)
    )
    return _jax.lower_unchecked(ctx, run, *operands, **params)


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


mlir.register_lowering(program_p, _lower_program)


def _batch_program(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> tuple[list[Any], list[int | None]]:
    if _jax.is_symbolic(axis_data.size):
        raise TransformError(
            f"`{program.name}` is batched with the symbolic size {axis_data.size}: a machine has a known number of"
            " lanes. Export it for a fixed size, and pad batches to that or call it several times."
        )
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


def _jvp_program(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> tuple[list[Any], list[Any]]:
    moving = tuple(type(t) is not ad.Zero for t in tangents)
    given = list(itertools.compress(tangents, moving))
    axes = tuple(itertools.compress(mapped, moving))
    answers, moved, rest = push_forward(
        primals, given, moving, program, lanes, mapped, axes, mapped, options
    )
    tangent_outs = [
        _jax.zero_tangent(x) if tangent is None else tangent
        for x, tangent in zip(answers, moved, strict=True)
    ]
    return [*answers, *rest], [*tangent_outs, *(_jax.zero_tangent(x) for x in rest)]


def push_forward(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    moving: tuple[bool, ...],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    tangents_mapped: Mapped,
    wanted_as: Mapped,
    options: Options,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Answers of a program, their tangents (`None` for those that have none), and what else it gives.

    `tangents` are those of the operands that move. Answers and tangents have the lane axes that answers have where the
    operands have those of `wanted_as`.
    """
    # Imported where it is used, as most who import Lanewise do not differentiate.
    from lanewise.diff.jvp import jvp_program

    derived = jvp_program(program, moving)
    captured = program.num_captures
    moved = sum(moving[:captured])
    operands = [*primals[:captured], *tangents[:moved], *primals[captured:], *tangents[moved:]]
    all_mapped = (
        *mapped[:captured],
        *tangents_mapped[:moved],
        *mapped[captured:],
        *tangents_mapped[moved:],
    )
    outs = program_p.bind(
        *operands, program=derived, lanes=lanes, mapped=all_mapped, options=options
    )
    # The derived program may find that an answer, or its tangent alone, is the same for all lanes of an axis.
    inexact = [i for i, aval in enumerate(program.out_avals) if _jax.has_tangent(aval)]
    wanted = answer_axes(program, wanted_as, options, lanes)
    wanted = [*wanted, *(wanted[i] for i in inexact)]
    found = answer_axes(derived, all_mapped, options, lanes)
    rest = outs[len(found) :]
    outs = [with_axes(*each, lanes) for each in zip(outs[: len(found)], found, wanted, strict=True)]
    answers, given = outs[: len(program.out_avals)], iter(outs[len(program.out_avals) :])
    found_tangents = [next(given) if i in inexact else None for i in range(len(answers))]
    return answers, found_tangents, rest


ad.primitive_jvps[program_p] = _jvp_program


# -- throw ------------------------------------------------------------------------------------------


@throw_p.def_abstract_eval
def _throw_abstract(*args: Any, sites: tuple[Site, ...], name: str) -> list[Any]:
    del sites, name
    return list(args[:-2])


@throw_p.def_impl
def _throw_now(*args: Any, sites: tuple[Site, ...], name: str) -> list[Any]:
    *answers, code, site = args
    raise_if_failed(code, site, sites, name)
    return answers


def _throw_inside_jit(*args: Any, sites: tuple[Site, ...], name: str) -> list[Any]:
    *answers, code, site = args
    fail = functools.partial(raise_inside_jit, sites=sites, name=name)
    jax.lax.cond((code != 0).any(), lambda: io_callback(fail, None, code, site), lambda: None)
    return answers


def _lower_throw(ctx: Any, *args: Any, **params: Any) -> Any:
    if _jax.lowers_for_export(ctx):
        raise OptionError(
            f"jax.export cannot serialize `{params['name']}`, which raises if a lane fails: that calls Python. Use"
            " throw=False, and look at the outcomes where the exported function is called."
        )
    return _jax.lower_unchecked(ctx, _throw_inside_jit, *args, **params)


mlir.register_lowering(throw_p, _lower_throw)


def _batch_throw(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    *_, code_dim, site_dim = dims
    *answers, code, site = args
    if code_dim:
        code, site = jnp.moveaxis(code, code_dim, 0), jnp.moveaxis(site, site_dim, 0)
    return throw_p.bind(*answers, code, site, **params), list(dims[:-2])


batching.fancy_primitive_batchers[throw_p] = _batch_throw


def _jvp_throw(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    return throw_p.bind(*primals, **params), list(tangents[:-2])


ad.primitive_jvps[throw_p] = _jvp_throw
