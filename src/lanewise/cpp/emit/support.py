"""What a kernel cannot carry, known before anything is compiled.

A program can be carried if every equation has a rule that takes it, every value a dtype a kernel holds, and a lane's
state room in memory. Writing a kernel is quick beside compiling it, so the last word is a trial: what the rules
refuse is found by writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn
from lanewise.blocks.equations import implementation, inside
from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.core.options import Options
from lanewise.core.profile import CPU, Profile
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.emit import emit
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.rules import RULES, Unsupported


@dataclass(frozen=True)
class Obstacle:
    """Why a program cannot be a kernel: the operation, the user's line it comes from, and what is the matter."""

    operation: str
    line: str
    why: str

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.operation}: {self.why}{where}"


def written(
    linked: Linked, varying: Sequence[bool], options: Options
) -> Emitted | tuple[Obstacle, ...]:
    """A program's kernel, or all that keeps it from being one."""
    blocks = [item for item in linked.order if isinstance(item, Block)]
    found = list(_in_equations(eqn for block in blocks for eqn in block.eqns))
    variables: list[Atom] = [*linked.program.inputs, *linked.program.entry_function.results]
    found += [
        Obstacle("an operand or answer", "", f"a kernel holds no {var.aval.dtype}")
        for var in variables
        if not dtypes.held(var.aval.dtype)
    ]
    if found:
        return tuple(dict.fromkeys(found))
    try:
        emitted = emit(linked, varying, max_steps=options.max_steps, counting=options.stats)
    except Unsupported as refusal:
        return (Obstacle(refusal.operation, refusal.line, refusal.why),)
    too_large = size_obstacle(emitted, CPU)
    return emitted if too_large is None else (too_large,)


def size_obstacle(emitted: Emitted, profile: Profile) -> Obstacle | None:
    """What keeps a kernel from running on a platform, if its lanes take too much memory for that."""
    most = profile.most_lane_bytes
    if emitted.fixed_bytes <= most:
        return None
    why = f"a lane would take {emitted.fixed_bytes:,} bytes; at most {most:,} are sensible"
    return Obstacle("the state of a lane", "", why)


def _in_equations(eqns: Iterable[JaxprEqn], around: str = "") -> Iterator[Obstacle]:
    """What has no rule. Code that JAX traced once for all its users has their line `around` it."""
    for eqn in eqns:
        name, line = eqn.primitive.name, _jax.user_line(eqn) or around
        if name not in RULES:
            traced = implementation(eqn)
            if traced is None:
                yield Obstacle(name, line, "a kernel has no rule for it")
            else:
                yield from _in_equations(traced.jaxpr.eqns, line)
            continue
        for atom in (*eqn.invars, *eqn.outvars):
            if not dtypes.held(atom.aval.dtype):
                yield Obstacle(name, line, f"a kernel holds no {atom.aval.dtype}")
        called = inside(eqn)
        if called is not None:
            yield from _in_equations(called.jaxpr.eqns, line)
        elif name in ("while", "cond", "scan"):
            for inner in _jax.subjaxprs(eqn):
                yield from _in_equations(inner.eqns, line)
