"""How tests look into a program: its blocks, its linked form, and the jaxpr of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax

import lanewise as lw
from lanewise import _jax
from lanewise.blocks.flatten import flatten
from lanewise.blocks.form import Block, BlockProgram, Branch, Call, Label, TailCall, verify
from lanewise.blocks.link import Linked, link
from lanewise.blocks.simplify import simplify
from lanewise.core.profile import CPU, Profile
from lanewise.core.program import machine_inside
from lanewise.job import job
from lanewise.plan import choose
from lanewise.rules import bind, run
from lanewise.tracing.decorator import ProgramFunction


def blocks_of(fun: Any, *args: Any, varying: Any = None, every_loop: bool = False) -> BlockProgram:
    """The simplified blocks at these arguments' types, verified after every pass."""
    flags, program = _staged(fun, args, varying)
    return simplify(verify(flatten(program, flags, every_loop=every_loop)), check=verify)


def linked_of(fun: Any, *args: Any, varying: Any = None, profile: Profile = CPU) -> Linked:
    """The linked program, verified again after copies are gone."""
    flags, program = _staged(fun, args, varying)
    found = link(simplify(verify(flatten(program, flags)), check=verify), flags, profile)
    verify(found.program)
    return found


def _staged(fun: Any, args: Any, varying: Any) -> Any:
    program = fun if isinstance(fun, ProgramFunction) else lw.lift(fun)
    staged, operands = program.stage(*args)
    given = (
        [True] * (len(operands) - staged.program.num_captures) if varying is None else list(varying)
    )
    return [*[False] * staged.program.num_captures, *given], staged.program


def all_blocks(program: BlockProgram) -> list[Block]:
    return [block for _, block in program.all_blocks()]


def branches(program: BlockProgram) -> list[Block]:
    return [block for block in all_blocks(program) if isinstance(block.terminator, Branch)]


def targets(block: Block) -> tuple[Label, ...]:
    assert isinstance(block.terminator, Branch)
    return block.terminator.targets


def calls(program: BlockProgram) -> list[Block]:
    return [block for block in all_blocks(program) if isinstance(block.terminator, Call | TailCall)]


def operations(blocks: Any) -> set[str]:
    """Names of the primitives in blocks."""
    return {eqn.primitive.name for block in blocks for eqn in block.eqns}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation, however deep; a bound program is looked into as the machine it becomes."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name == "program":
            yield from equations(machine_inside(eqn))
        for inner in _jax.subjaxprs(eqn):
            yield from equations(inner)


def machine(fun: Any, *args: Any) -> list[Any]:
    """The equations of the code that runs a call of `fun`."""
    return list(equations(jax.make_jaxpr(fun)(*args)))


def shapes(eqns: Any) -> set[tuple[int, ...]]:
    return {tuple(var.aval.shape) for eqn in eqns for var in (*eqn.invars, *eqn.outvars)}


def on_profile(monkeypatch: Any, **changes: Any) -> Profile:
    """Have jobs on the CPU take place on one with another profile."""
    other = replace(CPU, **changes)
    monkeypatch.setattr(job, "profile_of", lambda platform: other)
    return other


def forget_plans() -> None:
    """Have jobs be planned anew."""
    for cache in (choose._planned, choose._refilled, run.on_host, bind._runs):
        cache.cache_clear()
