"""The code of an entry, written out: what a program is split by.

What JAX wraps and programs that do not call themselves are part of it, branches that hold control are there by their
sides, and every variable is renamed, so that it stands for one place of the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn, Literal
from lanewise.blocks.equations import Inside, inside
from lanewise.core.primitives.facts import is_wrapper
from lanewise.core.program import call_p, check_p, codes_inside, is_part, program_p


@dataclass(eq=False)
class Op:
    """An equation of the entry, renamed; `sides` of a branch that holds control.

    `apart`: one of the two calls that a call of a recursion was split into, with the `calls` that are made in it.
    """

    eqn: JaxprEqn
    sides: tuple[Body, ...] = ()
    calls: tuple[str, ...] = ()
    apart: bool = False
    early: bool = False
    hoisted: bool = False

    @property
    def split(self) -> bool:
        """Whether it is a branch that stays, with code that is hoisted."""
        return not self.early and any(op.hoisted or op.split for s in self.sides for op in s.ops)


@dataclass(eq=False)
class Body:
    """Operations in order, and what they give."""

    ops: list[Op] = field(default_factory=list)
    outs: list[Atom] = field(default_factory=list)

    def hoisted(self) -> Iterator[Op]:
        for op in self.ops:
            if op.hoisted:
                yield op
            elif op.split:
                for side in op.sides:
                    yield from side.hoisted()


def written_out(jaxpr: Jaxpr, args: Sequence[Atom], consts: Sequence[Any]) -> Body:
    """A function's code with what is wrapped written out, branches by their sides, and every variable renamed."""
    held = [Literal(x, var.aval) for var, x in zip(jaxpr.constvars, consts, strict=True)]
    body = Body()

    def rule(eqn: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
        new = eqn.replace(invars=operands, outvars=[_jax.new_var(v.aval) for v in eqn.outvars])
        found = _wrapped(new) if holds_control(eqn) else None
        if found is not None:
            inner = written_out(found.jaxpr, found.operands, found.consts)
            body.ops += inner.ops
            # Had a program that is called inside failed, we would not be here.
            ended = [Literal(jnp.int32(n), v.aval) for n, v in zip((0, -1), eqn.outvars[-2:])]
            return [*inner.outs, *ended[: len(eqn.outvars) - len(inner.outs)]]
        op = Op(new)
        if eqn.primitive.name == "cond" and holds_control(eqn):
            parts = _jax.Cond.of(eqn, operands)
            op.sides = tuple(
                written_out(b, parts.operands, _jax.attached_consts(b)) for b in parts.branches
            )
        body.ops.append(op)
        return new.outvars

    body.outs = _jax.evaluate(jaxpr, args, rule, consts=held, literal=_jax.itself)
    return body


def _wrapped(eqn: JaxprEqn) -> Inside | None:
    """The code that is written out in place of an equation: what JAX wraps, programs that do not call themselves."""
    if is_wrapper(eqn):
        return inside(eqn)
    if eqn.primitive is not program_p or eqn.params["lanes"] or eqn.params["options"].stats:
        return None
    program = eqn.params["program"]
    codes = [f.jaxpr for f in program.functions.values()]
    if any(calls_function(code, name) for code in codes for name in program.functions):
        return None
    entry = program.functions[program.entry]
    captured, given = eqn.invars[: program.num_captures], eqn.invars[program.num_captures :]
    return Inside(entry.jaxpr, (*(captured[i] for i in entry.captures), *given))


def holds_control(eqn: JaxprEqn) -> bool:
    """Whether an equation makes calls, loops for a time that is not known, or asserts."""
    return any(
        each.primitive in (call_p, check_p)
        or each.primitive.name == "while"
        or (is_part(each) and each.params["program"].recursive)
        for each in _jax.equations(
            (eqn,), lambda e: codes_inside(e) if is_part(e) else _jax.subjaxprs(e)
        )
    )


def calls_function(jaxpr: Jaxpr, name: str) -> bool:
    """Whether code calls this function of its program."""
    return any(
        eqn.primitive is call_p and eqn.params["name"] == name for eqn in _jax.equations(jaxpr.eqns)
    )
