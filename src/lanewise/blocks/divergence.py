"""What varies between the lanes of a program: which equations make lanes part ways, which answers have lanes' axes.

A value *varies* if it may differ between lanes. Control flow *diverges* if lanes may take different ways through it:
a branch whose index varies, a loop whose trip count varies, a call into a recursion, an assertion, or anything that
holds one of these. So does what adds to an accumulator: it adds for the lanes that are there. What diverges is
flattened into blocks; what does not stays one equation inside a block, where JAX's own batching is the right code. So
does a branch on a varying index whose sides are both cheap: running both and selecting costs less than parting.

Once a loop is flattened its lanes are at different iterations at the same time, so everything it changes varies, its
counter too. The same holds for all parameters of a recursive function.

`dependence` finds less: which answers depend on which operands, through data or through control. `jax.vmap` gives back
an axis only for outputs that depend on a mapped input, and `jax.jacfwd` counts on it: the primal answers of a
derivative must not gain the tangents' axis. For a program the machine runs, this is that rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lanewise import _jax
from lanewise._jax import Flags, Found, Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.equations import as_on_one_lane, holds_while, inside, is_throw
from lanewise.core.accumulate import accumulate_p
from lanewise.core.primitives.facts import Cost, bytes_of, cost_of, looks_at_batch
from lanewise.core.program import Program, call_p, check_p, program_p

# A branch is cheap if all its sides together cost a lane no more than this.
CHEAP_OPERATIONS = 400
CHEAP_BYTES = 2048


@dataclass
class Divergence(_jax.Forward):
    """The analysis, with its results cached. `every_loop`: flatten every loop and call, so that each step is counted.

    For an equation or code it gives which results vary when these inputs do, and whether anything inside diverges.
    """

    every_loop: bool = False
    memory: dict[tuple[int, Flags], Found] = field(default_factory=dict)
    keep: list[Jaxpr] = field(default_factory=list)

    def of(self, code: Jaxpr, flags: Sequence[bool]) -> Found:
        key = (id(code), tuple(flags))
        if key not in self.memory:
            self.keep.append(code)
            self.memory[key] = super().of(code, flags)
        return self.memory[key]

    def other(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        everything = (True,) * len(eqn.outvars)
        if eqn.primitive in (check_p, call_p, accumulate_p):
            return everything, True
        if is_throw(eqn):
            # Codes of lanes under an inner `jax.vmap`: any of them may end ours.
            return tuple(flags[: len(eqn.outvars)]), bool(eqn.invars[-1].aval.shape)
        if eqn.primitive is program_p and self.every_loop:
            return everything, True
        if looks_at_batch(eqn):
            return (any(flags),) * len(eqn.outvars), any(flags)
        found = inside(eqn)
        if found is not None:
            out, diverges = self.of(found.jaxpr, found.divided(eqn, flags))
            return (*out, *(False for _ in eqn.outvars[len(out) :])), diverges
        if eqn.primitive is program_p:
            return everything, True
        return super().other(eqn, flags)

    def cond(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        found, diverges = super().cond(eqn, (False, *flags[1:]))
        if not flags[0]:
            return found, diverges
        return (True,) * len(eqn.outvars), diverges or not self.cheap_branch(eqn)

    @staticmethod
    def cheap_branch(eqn: JaxprEqn) -> bool:
        """Whether running all sides and selecting is cheaper than parting."""
        total = Cost(0.0, sum(map(bytes_of, eqn.outvars)))
        for branch in _jax.Cond.of(eqn, eqn.invars).branches:
            if holds_while(branch.eqns):
                return False
            total = total + cost_of(branch.eqns)
        return total.operations <= CHEAP_OPERATIONS and total.bytes <= CHEAP_BYTES

    def while_(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        found, diverges = super().while_(eqn, flags)
        if not (diverges or self.every_loop):
            return found, False
        changed = _jax.While.of(eqn, eqn.invars).changed
        return tuple(flag or change for flag, change in zip(found, changed, strict=True)), True

    def scan(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        found, diverges = super().scan(eqn, flags)
        if diverges or self.every_loop:
            return (True,) * len(eqn.outvars), True
        return found, False


def flag_of(flags: dict[Var, bool], atom: object) -> bool:
    return False if isinstance(atom, Literal) else flags[atom]  # type: ignore[index]


@functools.lru_cache(maxsize=1024)
def dependence(program: Program, operands: Flags) -> Found:
    """Which answers depend on these operands, and whether the way through the program does."""
    found = _Dependence(program, operands[: program.num_captures])
    return found.function(program.entry, operands[program.num_captures :])


class _Dependence(_jax.Forward):
    """One program's functions, solved together: results only ever become dependent, until nothing changes."""

    def __init__(self, program: Program, captures: Flags) -> None:
        self.program = program
        self.captures = captures
        self.results: dict[tuple[str, Flags], Flags] = {}

    def function(self, name: str, params: Flags) -> Found:
        self._result(name, params)
        before: dict[tuple[str, Flags], Flags] = {}
        control = False
        while before != self.results:
            before = dict(self.results)
            for (called, flags), known in before.items():
                function = self.program.functions[called]
                held = [self.captures[i] for i in function.captures]
                now, own = self.of(function.jaxpr, [*held, *flags])
                self.results[called, flags] = tuple(a or b for a, b in zip(known, now, strict=True))
                control = control or own
        return self.results[name, params], control

    def _result(self, name: str, params: Flags) -> Flags:
        nothing = (False,) * len(self.program.functions[name].jaxpr.outvars)
        return self.results.setdefault((name, params), nothing)

    def other(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        if eqn.primitive is call_p:
            return self._result(eqn.params["name"], tuple(flags)), False
        if is_throw(eqn):
            return tuple(flags[: len(eqn.outvars)]), False
        if eqn.primitive is check_p:
            return (), flags[0]
        found = inside(eqn)
        if found is not None:
            out, control = self.of(found.jaxpr, found.divided(eqn, flags))
        elif eqn.primitive is program_p:
            out, control = dependence(eqn.params["program"], tuple(flags))
        else:
            return super().other(eqn, flags)
        return (*out, *(any(flags) for _ in eqn.outvars[len(out) :])), control


# -- as JAX batches it -------------------------------------------------------------------------------


def one_lane(program: Program) -> Callable[..., list[Any]]:
    """A program without recursion as an ordinary function."""
    entry = program.functions[program.entry]
    code = _jax.with_eqns(entry.jaxpr, as_on_one_lane)

    def run(*values: Any) -> list[Any]:
        captured = [values[i] for i in entry.captures]
        return _jax.eval_jaxpr(code, *captured, *values[program.num_captures :])

    return run


def found_by_jax(program: Program, structs: Sequence[Any], flags: Flags) -> Flags:
    """Which answers `jax.vmap` of a program without recursion finds to vary when these operands do.

    JAX refuses some effects in loops that lanes leave one by one. Those that give nothing do not matter here; with
    others, nothing is found.
    """
    entry = program.functions[program.entry]
    code = _jax.without_effects(entry.jaxpr) if entry.jaxpr.effects else entry.jaxpr
    if code.effects:
        return (False,) * len(program.out_avals)
    quiet = replace(program, functions={entry.name: replace(entry, jaxpr=code)})
    return _jax.batched_outputs(one_lane(quiet), structs, flags)
