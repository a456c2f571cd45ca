"""Reverse mode through `program_p`: what `jax.grad`, `jax.vjp` and `jax.linearize` do at a program.

To linearize a program is to run its forward program, which also gives what is saved, and to stage `tangents_p`: the
linear map from tangents of operands to tangents of answers, at these operands. Run as it is, that map is the program's
own derivative (`diff/jvp.py`); its transpose runs the reverse program (`diff/vjp.py`). Both are `program_p` again.

An operand that lanes share has one adjoint, the sum over the lanes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching, mlir
from lanewise.blocks.flatten import operand_avals
from lanewise.blocks.inside import tests_many
from lanewise.core.errors import OptionError, TransformError
from lanewise.core.options import Options
from lanewise.core.program import Function, Program, program_p, throw_p
from lanewise.job.axes import Mapped, with_axes, with_constants
from lanewise.job.job import answer_axes, job_for
from lanewise.plan.choose import plan
from lanewise.rules.bind import push_forward
from lanewise.rules.execute import execute
from lanewise.rules.explain import explainable

# A tape of unknown length has room for so many records inside `jit`, unless told otherwise.
RECORDS_INSIDE_JIT = 1024
FIRST_RECORDS = 64

tangents_p = _jax.Primitive("program_tangents")
tangents_p.multiple_results = True


def _linearize(
    nonzero: Sequence[bool],
    *primals: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> Any:
    """JAX's rule: answers, which of their tangents are not zero, residuals, and the linear map of those."""
    if lanes and not (options.stats or program.gives_outcomes(options)):
        whole = _whole_batch(program, lanes, mapped, options, _jax.placed(primals)[0])
        if whole is not None:
            alone = ((),) * len(primals)
            return _linearize(
                nonzero, *primals, program=whole, lanes=(), mapped=alone, options=options
            )
    moving = tuple(
        flag and _jax.has_tangent(_jax.aval_of(x)) for flag, x in zip(nonzero, primals, strict=True)
    )
    found, outs = _run_forward(primals, moving, program, lanes, mapped, options)
    forward = found.forward
    num_answers = len(program.out_avals)
    num_values = len(forward.program.out_avals)
    answers, saved, rest = outs[:num_answers], outs[num_answers:num_values], outs[num_values:]
    all_mapped = with_constants(forward.constants, mapped, lanes)
    axes = answer_axes(forward.program, all_mapped, options, lanes)
    wanted = answer_axes(program, mapped, options, lanes)
    answers = [with_axes(*each, lanes) for each in zip(answers, axes, wanted, strict=False)]
    num_rest = 2 if program.gives_outcomes(options) else 0
    codes = rest[:2] if forward.program.gives_outcomes(options) else []
    stats = rest[len(codes) :]
    if codes:
        codes = list(_own_outcomes(codes, forward.program, program))
        explainable(codes[0], program, primals, mapped)
        if options.throw:
            # Who wants the gradient alone never reads the answers, and a check of them alone would be dropped.
            checked = throw_p.bind(*answers, *saved, *codes, sites=program.sites, name=program.name)
            answers, saved = checked[:num_answers], checked[num_answers:]
    elif num_rest:
        # As a loop a tail recursion cannot fail.
        codes = [jnp.zeros(lanes, jnp.int32), jnp.full(lanes, -1, jnp.int32)]
    outs = [*answers, *codes[:num_rest], *stats]
    params: dict[str, Any] = {
        "program": program,
        "gradient": found,
        "moving": moving,
        "lanes": lanes,
        "mapped": mapped,
        "saved_mapped": axes[num_answers:],
        "tangents_mapped": tuple(itertools.compress(mapped, moving)),
        "options": options.updated(stats=False, max_steps=None),
    }

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, flag in zip(tangents, moving, strict=True) if flag]
        moved = iter(tangents_p.bind(*residuals, *given, **params))
        flags = [*found.out_moving, *[False] * (len(outs) - num_answers)]
        return [
            next(moved) if flag else _jax.zero_tangent(x)
            for x, flag in zip(outs, flags, strict=True)
        ]

    out_flags = [*found.out_moving, *[False] * (len(outs) - num_answers)]
    return outs, out_flags, [*primals, *saved], tangents_of


_jax.on_linearize(program_p, _linearize)


@functools.lru_cache(maxsize=512)
def _whole_batch(
    program: Program, lanes: tuple[int, ...], mapped: Mapped, options: Options, platform: str
) -> Program | None:
    """A program in which no lanes diverge, for all lanes at once: a program of one lane.

    Its gradient sums over lanes inside its matrix products, where a program for each lane would give each an adjoint of
    all that they share.
    """
    job = job_for(program, lanes, mapped, options, platform).as_it_runs()
    if job.examples == 0 or not plan(job).plain:
        return None
    axes = [itertools.compress(lanes, has) for has in mapped]
    avals = [
        _jax.shaped((*sizes, *aval.shape), aval.dtype, aval.weak_type)
        for sizes, aval in zip(axes, operand_avals(program), strict=True)
    ]

    def run(*operands: Any) -> list[Any]:
        return execute(
            *operands,
            program=program,
            lanes=lanes,
            mapped=mapped,
            options=options.updated(schedule="plain"),
        )

    traced = _jax.trace(run, avals)
    if traced.captures or _diverges(traced.jaxpr):
        return None
    return Program({program.entry: Function(program.entry, traced.jaxpr)}, program.entry)


def _diverges(jaxpr: _jax.Jaxpr) -> bool:
    """Whether a loop goes on while any of its lanes does."""
    return any(tests_many(eqn) or any(map(_diverges, _jax.subjaxprs(eqn))) for eqn in jaxpr.eqns)


def _run_forward(
    primals: Sequence[Any],
    moving: tuple[bool, ...],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> Any:
    """The gradient of a program, and what its forward program gives; outside `jit` its tapes grow."""
    # Imported where it is used, as most who import Lanewise do not differentiate.
    from lanewise.diff.checkpoint import Checkpoints
    from lanewise.diff.vjp import Room
    from lanewise.rules.forward import run_growing

    if options.offload and lanes:
        raise OptionError(
            f'offload="host" is for a lone call of `{program.name}`, or lanes that do not diverge; here'
            f" {math.prod(lanes)} lanes take ways of their own. Leave it out, or set checkpoints to a number,"
            " which bounds what is saved."
        )
    runs_now = options.tape is None and _jax.runs_now()
    records = options.tape or (FIRST_RECORDS if runs_now else RECORDS_INSIDE_JIT)
    grows = runs_now or options.tape_grows
    # Who looks for NaN looks into all that is saved, written or not.
    offload, filled = options.offload == "host", _jax.looks_for_nan()
    setting = Checkpoints(options.checkpoints, records, offload, grows, filled)
    room = Room(program, moving, setting)
    if runs_now:
        outs, room = run_growing(primals, room, lanes, mapped, options)
        return room.gradient, outs
    forward = room.forward
    outs = program_p.bind(
        *forward.constants,
        *primals,
        program=forward.program,
        lanes=lanes,
        mapped=with_constants(forward.constants, mapped, lanes),
        options=options,
    )
    return room.gradient, outs


def _own_outcomes(codes: Sequence[Any], forward: Program, program: Program) -> tuple[Any, Any]:
    """Outcomes of a forward program as those of the program it is of, which may number its sites otherwise."""
    code, site = codes
    if forward.sites == program.sites:
        return code, site
    own = tuple(program.sites.index(s) if s in program.sites else -1 for s in forward.sites)
    return code, _renumbered(site, own)


# As one piece: outside `jit` each operation would be compiled by itself.
@functools.partial(jax.jit, static_argnums=1)
def _renumbered(site: Any, own: tuple[int, ...]) -> Any:
    """Sites by the numbers that these have; -1 stays."""
    return jnp.array((*own, -1), jnp.int32)[site]


# -- a program's derivative inside `jax.checkpoint` -------------------------------------------------


@dataclass(frozen=True)
class _Derivative:
    """The operands of a forward derivative, apart: where primals and tangents stand (see `diff/jvp.py`)."""

    program: Program
    moving: tuple[bool, ...]

    @property
    def places(self) -> tuple[list[int], list[int]]:
        captured = self.program.num_captures
        moved = sum(self.moving[:captured])
        primals = [
            *range(captured),
            *(captured + moved + i for i in range(len(self.moving) - captured)),
        ]
        tangents = [i for i in range(len(self.moving) + sum(self.moving)) if i not in primals]
        return primals, tangents

    @property
    def num_tangents(self) -> int:
        return sum(_jax.has_tangent(aval) for aval in self.program.out_avals)


def _derivative(program: Program) -> _Derivative | None:
    from lanewise.diff.jvp import derivative_of

    found = derivative_of(program)
    return None if found is None else _Derivative(*found)


def _known_part(unknown: Sequence[bool], program: Program, mapped: Mapped, **params: Any) -> Any:
    """Of a forward derivative by unknown tangents: the program itself, which is known."""
    derivative = _derivative(program)
    if derivative is None:
        return None
    primals, _ = derivative.places
    if any(unknown[i] for i in primals):
        return None
    own = {**params, "program": derivative.program, "mapped": tuple(mapped[i] for i in primals)}
    return primals, len(derivative.program.out_avals), derivative.num_tangents, own


_jax.on_partial_evaluation(program_p, _known_part)


def _transpose_program(
    cts: Sequence[Any],
    *operands: Any,
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
) -> list[Any]:
    """A forward derivative is linear in its tangents."""
    derivative = _derivative(program)
    if derivative is None:
        raise TransformError(f"the program `{program.name}` is not linear, so it has no transpose.")
    at_primals, at_tangents = derivative.places
    primals = [operands[i] for i in at_primals]
    tangents = [operands[i] for i in at_tangents]
    own_mapped = tuple(mapped[i] for i in at_primals)
    own, moving = derivative.program, derivative.moving
    gradient, outs = _run_forward(primals, moving, own, lanes, own_mapped, options)
    num_answers, num_values = len(own.out_avals), len(gradient.forward.program.out_avals)
    all_mapped = with_constants(gradient.forward.constants, own_mapped, lanes)
    given = iter(cts[num_answers : num_answers + derivative.num_tangents])
    by_answer = [next(given) if _jax.has_tangent(a) else None for a in own.out_avals]
    found = _transpose_tangents(
        list(itertools.compress(by_answer, gradient.out_moving)),
        *primals,
        *outs[num_answers:num_values],
        *tangents,
        program=own,
        gradient=gradient,
        moving=moving,
        lanes=lanes,
        mapped=own_mapped,
        saved_mapped=answer_axes(gradient.forward.program, all_mapped, options, lanes)[
            num_answers:
        ],
        tangents_mapped=tuple(mapped[i] for i in at_tangents),
        options=options.updated(stats=False, max_steps=None),
    )
    placed: list[Any] = [None] * len(operands)
    for i, ct in zip(at_tangents, found[len(found) - len(tangents) :], strict=True):
        placed[i] = ct
    return placed


ad.primitive_transposes[program_p] = _transpose_program


# -- the linear map ---------------------------------------------------------------------------------


def _groups(operands: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Operands of the program, what is saved, and tangents."""
    first = len(params["mapped"])
    second = first + len(params["saved_mapped"])
    return operands[:first], operands[first:second], operands[second:]


def _moving_as(params: dict[str, Any]) -> Mapped:
    """Which lane axes each operand has, itself or by its tangent."""
    tangents = iter(params["tangents_mapped"])
    return tuple(
        tuple(a or b for a, b in zip(axes, next(tangents), strict=True)) if flag else axes
        for axes, flag in zip(params["mapped"], params["moving"], strict=True)
    )


def _tangents(*operands: Any, **params: Any) -> list[Any]:
    """The map itself: forward mode."""
    primals, _, tangents = _groups(operands, params)
    _, moved, _ = push_forward(
        primals,
        tangents,
        params["moving"],
        params["program"],
        params["lanes"],
        params["mapped"],
        params["tangents_mapped"],
        _moving_as(params),
        params["options"],
    )
    return list(itertools.compress(moved, params["gradient"].out_moving))


tangents_p.def_impl(_tangents)


@tangents_p.def_abstract_eval
def _tangents_abstract(*operands: Any, **params: Any) -> list[Any]:
    program, lanes = params["program"], params["lanes"]
    axes = answer_axes(program, _moving_as(params), params["options"], lanes)
    outs = [
        _jax.shaped((*itertools.compress(lanes, has), *aval.shape), aval.dtype)
        for aval, has, flag in zip(
            program.out_avals, axes, params["gradient"].out_moving, strict=True
        )
        if flag
    ]
    return _jax.varying_as(outs, operands)


mlir.register_lowering(
    tangents_p, lambda ctx, *args, **params: _jax.lower_unchecked(ctx, _tangents, *args, **params)
)


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
    axes = answer_axes(params["program"], _moving_as(params), params["options"], params["lanes"])
    moved = itertools.compress(axes, params["gradient"].out_moving)
    return outs, [0 if has[0] else None for has in moved]


batching.fancy_primitive_batchers[tangents_p] = _batch_tangents


def _jvp_tangents(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    moves = [type(t) is not ad.Zero for t in tangents]

    def of_moved(*moved: Any) -> list[Any]:
        given = iter(moved)
        values = [next(given) if flag else x for x, flag in zip(primals, moves, strict=True)]
        return _tangents(*values, **params)

    return jax.jvp(
        of_moved,
        tuple(itertools.compress(primals, moves)),
        tuple(itertools.compress(tangents, moves)),
    )


ad.primitive_jvps[tangents_p] = _jvp_tangents


def _linearize_tangents(nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
    def of_moved(*moved: Any) -> list[Any]:
        given = iter(moved)
        values = [next(given) if flag else x for x, flag in zip(primals, nonzero, strict=True)]
        return _tangents(*values, **params)

    outs, linear = jax.linearize(of_moved, *itertools.compress(primals, nonzero))
    residuals, tree = jax.tree.flatten(linear)

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, flag in zip(tangents, nonzero, strict=True) if flag]
        return list(jax.tree.unflatten(tree, residuals)(*given))

    return outs, [True] * len(outs), residuals, tangents_of


_jax.on_linearize(tangents_p, _linearize_tangents)


def _transpose_tangents(cts: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    """The transpose: the reverse program."""
    gradient, lanes, options = params["gradient"], params["lanes"], params["options"]
    primals, saved, tangents = _groups(operands, params)
    reverse = gradient.reverse
    constants = list(reverse.constants)
    if options.offload:
        # JAX compiles transfers only where it sees one, and it does not look into programs: here is one to see.
        constants[0] = jax.device_put(constants[0], _jax.HOST)
    moving_as = _moving_as(params)
    out_axes = answer_axes(params["program"], moving_as, options, lanes)
    out_axes = list(itertools.compress(out_axes, gradient.out_moving))
    cts = [
        _at_first_lane(ad.instantiate_zeros(ct), axes, lanes)
        for ct, axes in zip(cts, out_axes, strict=True)
    ]
    all_axes = (True,) * len(lanes)
    mapped = (
        *(params["mapped"][i] for i in gradient.reads),
        *params["saved_mapped"],
        *[all_axes] * len(cts),
    )
    mapped = with_constants(reverse.constants, mapped, lanes)
    outs = program_p.bind(
        *constants,
        *(primals[i] for i in gradient.reads),
        *saved,
        *cts,
        program=reverse.program,
        lanes=lanes,
        mapped=mapped,
        options=options,
    )
    num_adjoints = len(reverse.program.out_avals)
    adjoints, codes = outs[:num_adjoints], outs[num_adjoints:]
    if codes and options.throw:
        name, sites = params["program"].name, reverse.program.sites
        adjoints = throw_p.bind(*adjoints, *codes, sites=sites, name=f"the gradient of {name}")
    found = answer_axes(reverse.program, mapped, options, lanes)
    ct_tangents = [
        _summed(ct, has, wanted, lanes) if ad.is_undefined_primal(tangent) else None
        for ct, has, wanted, tangent in zip(
            adjoints, found, params["tangents_mapped"], tangents, strict=True
        )
    ]
    return [*[None] * (len(primals) + len(saved)), *ct_tangents]


ad.primitive_transposes[tangents_p] = _transpose_tangents


def _at_first_lane(ct: Any, axes: tuple[bool, ...], lanes: tuple[int, ...]) -> Any:
    """An adjoint with all lane axes: that of an answer which lanes share belongs to one of them."""
    for axis, (has, size) in enumerate(zip(axes, lanes, strict=True)):
        if not has:
            first = jnp.arange(size) == 0
            own = jnp.expand_dims(ct, axis)
            ct = jnp.where(first.reshape(-1, *[1] * (own.ndim - axis - 1)), own, 0)
    return ct


def _summed(
    ct: Any, has: tuple[bool, ...], wanted: tuple[bool, ...], lanes: tuple[int, ...]
) -> Any:
    """An adjoint with the wanted lane axes: summed over those that the operand does not have."""
    extra = tuple(
        sum(has[:axis])
        for axis, (have, want) in enumerate(zip(has, wanted, strict=True))
        if have and not want
    )
    left = tuple(a and b for a, b in zip(has, wanted, strict=True))
    return with_axes(ct.sum(extra) if extra else ct, left, wanted, lanes)
