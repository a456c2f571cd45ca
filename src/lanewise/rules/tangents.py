"""Forward mode through `program_p`, and `tangents_p`: the linear map from tangents of operands to those of answers.

The derivative of a program by tangents is another program (`diff/jvp.py`). `rules/linearize.py` stages `tangents_p`,
the same map at given operands. Run as it is, it is that derivative; its transpose runs the reverse program
(`diff/vjp.py`). An operand that lanes share has one adjoint, the sum over the lanes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching
from lanewise.core.program import program_p, throw_p
from lanewise.job.job import Mapped, Params, with_axes, with_constants
from lanewise.rules.sums import axes_with_sums, summed_over, worth_accumulating


@_jax.ROOM
def _jvp_program(
    primals: Sequence[Any], tangents: Sequence[Any], **given: Any
) -> tuple[list[Any], list[Any]]:
    params = Params(**given)
    active = tuple(type(t) is not ad.Zero for t in tangents)
    own = list(itertools.compress(tangents, active))
    axes = tuple(itertools.compress(params.mapped, active))
    answers, moved, rest = push_forward(primals, own, active, params, axes, params.mapped)
    tangent_outs = [
        _jax.zero_tangent(x) if tangent is None else tangent
        for x, tangent in zip(answers, moved, strict=True)
    ]
    return [*answers, *rest], [*tangent_outs, *(_jax.zero_tangent(x) for x in rest)]


def push_forward(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    active: tuple[bool, ...],
    params: Params,
    tangents_mapped: Mapped,
    wanted_as: Mapped,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Answers of a program, their tangents (`None` for those that have none), and what else it gives.

    `tangents` are those of the active operands. Answers and tangents have the lane axes that answers have where the
    operands have those of `wanted_as`.
    """
    # Imported where it is used: most programs that import Lanewise do not differentiate.
    from lanewise.diff.jvp import jvp_program

    program, lanes, mapped, options, summed = params
    derived, constants = jvp_program(program, active)
    captured = program.num_captures
    moved = sum(active[:captured])
    operands = [
        *primals[:captured],
        *tangents[:moved],
        *constants,
        *primals[captured:],
        *tangents[moved:],
    ]
    all_mapped = (
        *mapped[:captured],
        *tangents_mapped[:moved],
        *with_constants(constants, mapped[captured:], lanes),
        *tangents_mapped[moved:],
    )
    inexact = [i for i, aval in enumerate(program.out_avals) if _jax.has_tangent(aval)]
    # What is summed has a tangent that is.
    all_summed = (*summed, *(len(program.out_avals) + inexact.index(i) for i in summed))
    own = Params(derived, lanes, all_mapped, options, all_summed)
    outs = own.bind(*operands)
    # The derived program may find that an answer, or its tangent alone, is the same for all lanes of an axis.
    wanted = axes_with_sums(params.of(program, wanted_as).answer_axes, summed, lanes)
    wanted = [*wanted, *(wanted[i] for i in inexact)]
    found = axes_with_sums(own.answer_axes, all_summed, lanes)
    rest = outs[len(found) :]
    outs = [with_axes(*each, lanes) for each in zip(outs[: len(found)], found, wanted, strict=True)]
    answers, given = outs[: len(program.out_avals)], iter(outs[len(program.out_avals) :])
    found_tangents = [next(given) if i in inexact else None for i in range(len(answers))]
    return answers, found_tangents, rest


ad.primitive_jvps[program_p] = _jvp_program


tangents_p = _jax.primitive("program_tangents")


def _groups(operands: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Operands of the program, what is saved, and tangents."""
    first = len(params["mapped"])
    second = first + len(params["saved_mapped"])
    return operands[:first], operands[first:second], operands[second:]


def _active_as(params: dict[str, Any]) -> Mapped:
    """Which lane axes each operand has, itself or by its tangent."""
    tangents = iter(params["tangents_mapped"])
    return tuple(
        tuple(a or b for a, b in zip(axes, next(tangents), strict=True)) if flag else axes
        for axes, flag in zip(params["mapped"], params["active"], strict=True)
    )


def _out_axes(params: dict[str, Any]) -> list[tuple[bool, ...]]:
    """Which lane axes each answer with a tangent has, itself or by its tangent."""
    own = Params(params["program"], params["lanes"], _active_as(params), params["options"])
    return list(itertools.compress(own.answer_axes, params["gradient"].out_active))


def _tangents(*operands: Any, **params: Any) -> list[Any]:
    """The map itself: forward mode."""
    primals, _, tangents = _groups(operands, params)
    own = Params(params["program"], params["lanes"], params["mapped"], params["options"])
    axes = params["tangents_mapped"], _active_as(params)
    _, moved, _ = push_forward(primals, tangents, params["active"], own, *axes)
    return list(itertools.compress(moved, params["gradient"].out_active))


tangents_p.def_impl(_tangents)


@tangents_p.def_abstract_eval
def _tangents_abstract(*operands: Any, **params: Any) -> list[Any]:
    lanes = params["lanes"]
    avals = itertools.compress(params["program"].out_avals, params["gradient"].out_active)
    outs = [
        _jax.shaped((*itertools.compress(lanes, has), *aval.shape), aval.dtype)
        for aval, has in zip(avals, _out_axes(params), strict=True)
    ]
    return _jax.varying_as(outs, operands)


_jax.needs_devices(tangents_p)
_jax.lowered_as(tangents_p, _tangents)
_jax.differentiated_as(tangents_p, _tangents)


def _batch_tangents(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> Any:
    operands = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(operands, dims, strict=True)]
    groups = _groups(dims, params)
    names = ("mapped", "saved_mapped", "tangents_mapped")
    changed = {
        name: tuple((d is not None, *axes) for d, axes in zip(own, params[name], strict=True))
        for name, own in zip(names, groups, strict=True)
    }
    params = {**params, **changed, "lanes": (axis_data.size, *params["lanes"])}
    outs = tangents_p.bind(*operands, **params)
    return outs, [0 if has[0] else None for has in _out_axes(params)]


batching.fancy_primitive_batchers[tangents_p] = _batch_tangents


def active_of(nonzero: Sequence[bool], primals: Sequence[Any]) -> tuple[bool, ...]:
    """Which operands have tangents, of those that may."""
    return tuple(
        flag and _jax.has_tangent(_jax.aval_of(x)) for flag, x in zip(nonzero, primals, strict=True)
    )


def linear_map(
    primals: Sequence[Any], saved: Sequence[Any], outs: Sequence[Any], **params: Any
) -> Any:
    """What JAX's rule for linearizing gives: results, which have tangents, residuals, and the linear map of those.

    `outs` are answers and what has no tangents, `params` those of `tangents_p`.
    """
    active, out_active = params["active"], params["gradient"].out_active
    flags = [*out_active, *[False] * (len(outs) - len(out_active))]

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, flag in zip(tangents, active, strict=True) if flag]
        moved = iter(tangents_p.bind(*residuals, *given, **params))
        return [
            next(moved) if flag else _jax.zero_tangent(x)
            for x, flag in zip(outs, flags, strict=True)
        ]

    return outs, flags, [*primals, *saved], tangents_of


@_jax.ROOM
def transpose_tangents(cts: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    """The transpose: the reverse program."""
    gradient, lanes, options = params["gradient"], params["lanes"], params["options"]
    primals, saved, tangents = _groups(operands, params)
    cts = [
        at_first_lane(ad.instantiate_zeros(ct), axes, lanes)
        for ct, axes in zip(cts, _out_axes(params), strict=True)
    ]
    if hasattr(gradient, "transposed"):
        # The program was run by levels, and has no reverse program (`rules/levels.py`).
        wanted = [ad.is_undefined_primal(t) for t in tangents]
        adjoints = gradient.transposed(cts, primals, saved, params["tangents_mapped"], wanted)
        return [*[None] * (len(primals) + len(saved)), *adjoints]
    reverse = gradient.reverse
    constants = list(reverse.constants)
    if options.offload:
        # JAX compiles transfers only where it sees one, and it does not look into programs: here is one to see.
        constants[0] = jax.device_put(constants[0], _jax.HOST)
    all_axes = (True,) * len(lanes)
    mapped = (
        *(params["mapped"][i] for i in gradient.reads),
        *params["saved_mapped"],
        *[all_axes] * len(cts),
    )
    mapped = with_constants(reverse.constants, mapped, lanes)
    own = Params(reverse.program, lanes, mapped, options)
    found = own.answer_axes
    summed = worth_accumulating(reverse.program, found, params["tangents_mapped"], options)
    read = (primals[i] for i in gradient.reads)
    outs = own._replace(summed=summed).bind(*constants, *read, *saved, *cts)
    num_adjoints = len(reverse.program.out_avals)
    adjoints, codes = outs[:num_adjoints], outs[num_adjoints:]
    if codes and options.throw:
        name, sites = params["program"].name, reverse.program.sites
        adjoints = throw_p.bind(*adjoints, *codes, sites=sites, name=f"the gradient of {name}")
    found = axes_with_sums(found, summed, lanes)
    ct_tangents = [
        summed_over(ct, has, wanted, lanes) if ad.is_undefined_primal(tangent) else None
        for ct, has, wanted, tangent in zip(
            adjoints, found, params["tangents_mapped"], tangents, strict=True
        )
    ]
    return [*[None] * (len(primals) + len(saved)), *ct_tangents]


ad.primitive_transposes[tangents_p] = transpose_tangents


def at_first_lane(ct: Any, axes: tuple[bool, ...], lanes: tuple[int, ...]) -> Any:
    """An adjoint with all lane axes: that of an answer which lanes share belongs to one of them."""
    for axis, (has, size) in enumerate(zip(axes, lanes, strict=True)):
        if not has:
            first = jnp.arange(size) == 0
            own = jnp.expand_dims(ct, axis)
            ct = jnp.where(first.reshape(-1, *[1] * (own.ndim - axis - 1)), own, 0)
    return ct
