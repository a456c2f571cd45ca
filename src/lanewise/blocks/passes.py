"""What code without divergence costs: all lanes at once by XLA, or each lane by itself.

Where no lane waits for another, what decides is memory. XLA runs elementwise operations of all lanes fused and with
vector instructions; but whatever looks across an element (a sum over three numbers, a concatenation, a small product)
ends a fusion, and what it makes of all lanes goes to memory and comes back: a *pass*. A lane by itself keeps such
things in registers, has no vector instructions for what XLA fuses, and calls the C library for each exponential.

The unit is an operation of a lane by itself, about an eighth of a nanosecond on two cores. Measured on straight-line
programs from one operation to the Hessian of a rotation, at 256 to 16,384 lanes; good to a factor of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.equations import ASSUMED_TRIPS, FREE, TRANSCENDENTAL, eqn_cost, size_of
from lanewise.core.profile import CPU
from lanewise.core.program import program_p

# A transcendental function of a number, and any other operation that XLA fuses.
_FUNCTION_ALONE = 38.0
_FUNCTION_TOGETHER = 6.0
_FUSED = 0.3
# A pass: for each lane, for each number of it that is moved, and once for all lanes.
_PASS = 45.0
_MOVED = 2.0
_DISPATCH = 3000.0
# Part of a lane's array, or a number of its own beside each of them: no pass, but no vector instruction either.
_STRIDED = 5.0
_STRIDED_NUMBER = 1.5
# A root, for which there is an instruction.
_ROOT = 4.0
# Numbers of a lane are added one after the other, by XLA several at once.
_ADDED_ALONE = 2.0
_ADDED_TOGETHER = 1.0
# What comes with a lane: its operands and answers.
_LANE_ALONE = 45.0
_LANE_TOGETHER = 30.0


@dataclass(frozen=True)
class Work:
    """Operations of a lane by itself, those of a lane among others, and passes over all lanes."""

    alone: float = 0.0
    together: float = 0.0
    passes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.alone + other.alone, self.together + other.together, self.passes + other.passes
        )

    def __mul__(self, times: float) -> Work:
        return Work(self.alone * times, self.together * times, self.passes * times)

    def for_lanes(self, lanes: int) -> tuple[float, float]:
        """A lane's share by itself and together with the others."""
        shared = self.passes * (_PASS + _DISPATCH / lanes)
        return self.alone + _LANE_ALONE, self.together + shared + _LANE_TOGETHER


def work_of(eqns: Iterable[JaxprEqn], is_uniform: Callable[[Var], bool]) -> Work:
    """The work of equations, of which those that are the same for all lanes are done once when lanes are together."""
    total = Work()
    defined: dict[Var, bool] = {}

    def same(atom: Atom) -> bool:
        if isinstance(atom, Literal):
            return True
        return defined[atom] if atom in defined else is_uniform(atom)

    for eqn in eqns:
        flags = [same(atom) for atom in eqn.invars]
        everywhere = all(flags) and not eqn.effects
        work = _work_of_scan(eqn, flags) if eqn.primitive.name == "scan" else _work(eqn)
        total = total + (Work(alone=work.alone) if everywhere else work)
        defined.update((var, everywhere) for var in eqn.outvars)
    return total


def _work_of_scan(eqn: JaxprEqn, flags: Sequence[bool]) -> Work:
    """The work of a scan some of whose operands are the same for all lanes: a layer's weights are read once."""
    body, parts = eqn.params["jaxpr"], _jax.scan_parts(eqn)
    first, end = parts.num_consts, parts.num_consts + parts.num_carry
    flags = list(flags)
    while True:
        uniform = {var for var, flag in zip(body.invars, flags, strict=True) if flag}
        _mark(body.eqns, uniform)
        carry = [
            flag and (isinstance(out, Literal) or out in uniform)
            for flag, out in zip(flags[first:end], body.outvars, strict=False)
        ]
        if carry == flags[first:end]:
            break
        flags[first:end] = carry
    once = work_of(body.eqns, uniform.__contains__)
    return (once + Work(passes=1)) * parts.length


def _mark(eqns: Iterable[JaxprEqn], uniform: set[Var]) -> None:
    """Add what equations make of values that are the same for all lanes, and of nothing else."""
    for eqn in eqns:
        if all(isinstance(a, Literal) or a in uniform for a in eqn.invars) and not eqn.effects:
            uniform.update(eqn.outvars)


def _all(eqns: Iterable[JaxprEqn]) -> Work:
    return sum(map(_work, eqns), Work())


def _work(eqn: JaxprEqn) -> Work:
    name = eqn.primitive.name
    size = sum(map(size_of, eqn.outvars))
    if name == "slice" or (name == "broadcast_in_dim" and size > size_of(eqn.invars[0])):
        return Work(together=0.0 if isinstance(eqn.invars[0], Literal) else _strided(size))
    if name in FREE:
        return Work()
    if name == "cond":
        sides = [_all(branch.eqns) for branch in eqn.params["branches"]]
        every = sum(sides, Work())
        return Work(max(side.alone for side in sides), every.together + size, every.passes)
    if name == "while":
        once = _all(eqn.params["body_jaxpr"].eqns) + _all(eqn.params["cond_jaxpr"].eqns)
        return (once + Work(passes=1)) * ASSUMED_TRIPS
    if name == "scan":
        return (_all(eqn.params["jaxpr"].eqns) + Work(passes=1)) * eqn.params["length"]
    if eqn.primitive is program_p:
        called = eqn.params["program"]
        once = _all(called.functions[called.entry].jaxpr.eqns)
        lanes = math.prod(eqn.params["lanes"])
        return Work(once.alone * lanes, once.together * lanes, once.passes)
    cost = eqn_cost(eqn)
    if cost.products:
        rest = cost.operations - cost.products
        alone, together = (
            rest + share * cost.products for share in (CPU.product_alone, CPU.product_together)
        )
        return Work(alone, together + _MOVED * size, 1)
    inner = list(_jax.subjaxprs(eqn))
    if inner and not name.startswith("reduce"):
        return max((_all(jaxpr.eqns) for jaxpr in inner), key=lambda work: work.alone)
    given = sum(size_of(atom) for atom in eqn.invars)
    if name.startswith(("reduce_", "arg", "cum")):
        return Work(_ADDED_ALONE * given, _ADDED_TOGETHER * given, 1)
    if name in _ROOTS:
        return Work(_ROOT * size, _ROOT * _FUSED * size)
    if name in TRANSCENDENTAL:
        return Work(_FUNCTION_ALONE * size, _FUNCTION_TOGETHER * size)
    if _is_elementwise(eqn):
        return Work(cost.operations, _FUSED * cost.operations)
    return Work(cost.operations, cost.operations + _MOVED * size, 1)


def _strided(size: int) -> float:
    return _STRIDED + _STRIDED_NUMBER * size


def _is_elementwise(eqn: JaxprEqn) -> bool:
    """Whether each number of the result comes of the numbers at its own place."""
    shapes = {atom.aval.shape for atom in (*eqn.invars, *eqn.outvars)}
    return len(shapes - {()}) <= 1 and eqn.primitive.name not in _ACROSS


_ROOTS = frozenset(("sqrt", "rsqrt"))
# These have operands and results of one shape too.
_ACROSS = frozenset("concatenate gather sort transpose rev dynamic_slice pad roll cumsum".split())
