"""Which lane axes answers have, and a program without recursion as an ordinary function of one lane."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lanewise import _jax
from lanewise.blocks.divergence import dependence
from lanewise.blocks.equations import as_on_one_lane
from lanewise.blocks.flatten import operand_avals
from lanewise.core.options import Options
from lanewise.core.program import Program

# For each operand, which axes of lanes it has.
Mapped = tuple[tuple[bool, ...], ...]


def can_be_plain(program: Program, options: Options) -> bool:
    """Whether JAX's own control flow can express all of the program."""
    return not (
        program.recursive or program.sites or program.has_tapes or program.sums or options.max_steps
    )


@functools.lru_cache(maxsize=1024)
def answer_axes(
    program: Program, mapped: Mapped, options: Options, lanes: tuple[int, ...]
) -> Mapped:
    """For each answer, which lane axes it has: those of the operands it depends on."""
    if 0 in lanes:
        return ((True,) * len(lanes),) * len(program.out_avals)
    plain = _without_effects(program) if can_be_plain(program, options) else None
    structs = [_jax.shape_dtype_struct(aval) for aval in operand_avals(program)]
    by_axis = []
    for level in range(len(lanes)):
        flags = tuple(axes[level] for axes in mapped)
        depends, control_depends = dependence(program, flags)
        # Whether a lane fails, and so blanks its answers, depends on the way it takes.
        blanked = control_depends and not options.throw and program.can_fail(options)
        # The same for every carrier, so none of them finds more to vary.
        plainly = (
            (False,) * len(depends)
            if plain is None
            else _jax.batched_outputs(one_lane(plain), structs, flags)
        )
        by_axis.append(tuple(blanked or a or b for a, b in zip(depends, plainly, strict=True)))
    return tuple(tuple(flags[i] for flags in by_axis) for i in range(len(program.out_avals)))


def _without_effects(program: Program) -> Program | None:
    """A program of one function without what is there for its effects alone; None if effects are left.

    JAX refuses some in loops that lanes leave one by one, without the line.
    """
    entry = program.functions[program.entry]
    if not entry.jaxpr.effects:
        return program
    code = _jax.without_effects(entry.jaxpr)
    return (
        None
        if code.effects
        else replace(program, functions={entry.name: replace(entry, jaxpr=code)})
    )


def one_lane(program: Program) -> Callable[..., list[Any]]:
    """A program without recursion as an ordinary function."""
    entry = program.functions[program.entry]
    code = _jax.with_eqns(entry.jaxpr, as_on_one_lane)

    def run(*values: Any) -> list[Any]:
        captured = [values[i] for i in entry.captures]
        return _jax.eval_jaxpr(code, *captured, *values[program.num_captures :])

    return run
