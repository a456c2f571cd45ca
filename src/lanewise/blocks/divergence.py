"""What of a program varies between lanes: which equations make lanes part ways, and which answers have lanes' axes.

A value *varies* if it may differ between lanes. Control flow *diverges* if lanes may take different ways through it:
a branch whose index varies, a loop whose trip count varies, a call into a recursion, an assertion, or anything that
holds one of these. So does what adds to an accumulator: it adds for the lanes that are there. What diverges is
flattened into blocks; what does not stays one equation inside a block, where JAX's own batching is the right code. So
does a branch on a varying index whose sides are both cheap: running both and selecting costs less than parting.

Once a loop is flattened its lanes are at different iterations at one time, so everything it changes varies, its
counter too. The same holds for all parameters of a recursive function.

`dependence` asks less: which answers depend on which operands, through data or through control. `jax.vmap` gives back
an axis only for outputs that depend on a mapped input, and `jax.jacfwd` counts on it: the primal answers of a
derivative must not gain the tangents' axis. For a program the machine runs, this is that rule.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn, Literal, Var
from lanewise.blocks.equations import holds_while, inside, is_throw
from lanewise.core.accumulate import accumulate_p
from lanewise.core.primitives.facts import Cost, bytes_of, cost_of, looks_at_batch
from lanewise.core.program import Program, call_p, check_p, program_p

Flags = tuple[bool, ...]

# A branch is cheap if all its sides together cost a lane no more than this.
CHEAP_OPERATIONS = 400
CHEAP_BYTES = 2048


@dataclass
class Divergence:
    """The analysis, with its memory. `every_loop`: flatten every loop and call, so that each step is counted."""

    every_loop: bool = False
    memory: dict[tuple[int, Flags], tuple[Flags, bool]] = field(default_factory=dict)
    keep: list[Jaxpr] = field(default_factory=list)

    def of(self, jaxpr: Jaxpr, varying: Sequence[bool]) -> tuple[Flags, bool]:
        """Which outputs vary when these inputs (constvars apart) do, and whether anything inside diverges."""
        key = (id(jaxpr), tuple(varying))
        if key not in self.memory:
            self.keep.append(jaxpr)
            self.memory[key] = self._walk(jaxpr, varying)
        return self.memory[key]

    def _walk(self, jaxpr: Jaxpr, varying: Sequence[bool]) -> tuple[Flags, bool]:
        flags: dict[Var, bool] = dict.fromkeys(jaxpr.constvars, False)
        flags.update(zip(jaxpr.invars, varying, strict=True))
        diverges = False
        for eqn in jaxpr.eqns:
            out, parts = self.eqn(eqn, [flag_of(flags, atom) for atom in eqn.invars])
            flags.update(zip(eqn.outvars, out, strict=True))
            diverges = diverges or parts
        return tuple(flag_of(flags, atom) for atom in jaxpr.outvars), diverges

    def eqn(self, eqn: JaxprEqn, varying: Sequence[bool]) -> tuple[Flags, bool]:
        """The same for one equation."""
        name = eqn.primitive.name
        everything = (True,) * len(eqn.outvars)
        if name == "cond":
            return self._cond(eqn, varying)
        if name == "while":
            return self._while(eqn, varying)
        if name == "scan":
            return self._scan(eqn, varying)
        if eqn.primitive in (check_p, call_p, accumulate_p):
            return everything, True
        if is_throw(eqn):
            # Codes of lanes under an inner `jax.vmap`: any of them may end ours.
            return tuple(varying[: len(eqn.outvars)]), bool(eqn.invars[-1].aval.shape)
        if eqn.primitive is program_p and self.every_loop:
            return everything, True
        found = inside(eqn)
        if looks_at_batch(eqn):
            return (any(varying),) * len(eqn.outvars), any(varying)
        if found is not None:
            flags = {id(atom): flag for atom, flag in zip(eqn.invars, varying, strict=True)}
            operands = [flags[id(atom)] for atom in found.operands]
            out, diverges = self.of(found.jaxpr, operands)
            return (*out, *(False for _ in eqn.outvars[len(out) :])), diverges
        if eqn.primitive is program_p:
            return everything, True
        return (any(varying),) * len(eqn.outvars), False

    def _cond(self, eqn: JaxprEqn, varying: Sequence[bool]) -> tuple[Flags, bool]:
        index, *operands = varying
        sides = [self.of(branch, operands) for branch in eqn.params["branches"]]
        diverges = any(parts for _, parts in sides)
        if not index:
            return tuple(
                any(flags) for flags in zip(*(out for out, _ in sides), strict=True)
            ), diverges
        return (True,) * len(eqn.outvars), diverges or not self.cheap_branch(eqn)

    @staticmethod
    def cheap_branch(eqn: JaxprEqn) -> bool:
        """Whether running all sides and selecting is cheaper than parting."""
        total = Cost(0.0, sum(map(bytes_of, eqn.outvars)))
        for branch in eqn.params["branches"]:
            if holds_while(branch.eqns):
                return False
            total = total + cost_of(branch.eqns)
        return total.operations <= CHEAP_OPERATIONS and total.bytes <= CHEAP_BYTES

    def _while(self, eqn: JaxprEqn, varying: Sequence[bool]) -> tuple[Flags, bool]:
        cond_n, body_n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        cond_consts, body_consts = list(varying[:cond_n]), list(varying[cond_n : cond_n + body_n])
        changed = changed_carry(body, body_n)
        carry = list(varying[cond_n + body_n :])

        def run(carry: Sequence[bool]) -> tuple[Flags, bool]:
            (predicate,), test_parts = self.of(cond, [*cond_consts, *carry])
            out, body_parts = self.of(body, [*body_consts, *carry])
            return out, predicate or test_parts or body_parts or self.every_loop

        carry, diverges = _settle(carry, run)
        if diverges:
            carry = [flag or change for flag, change in zip(carry, changed, strict=True)]
        return tuple(carry), diverges

    def _scan(self, eqn: JaxprEqn, varying: Sequence[bool]) -> tuple[Flags, bool]:
        parts = _jax.scan_parts(eqn)
        num_consts, num_carry = parts.num_consts, parts.num_carry
        body = eqn.params["jaxpr"]
        consts, rest = list(varying[:num_consts]), list(varying[num_consts:])
        carry, xs = rest[:num_carry], rest[num_carry:]
        ys: Flags = ()

        def run(carry: Sequence[bool]) -> tuple[Flags, bool]:
            nonlocal ys
            out, parts = self.of(body, [*consts, *carry, *xs])
            ys = out[num_carry:]
            return out[:num_carry], parts or self.every_loop

        carry, diverges = _settle(carry, run)
        if diverges:
            return (True,) * len(eqn.outvars), True
        return (*carry, *ys), False


def _settle(carry: list[bool], run: object) -> tuple[list[bool], bool]:
    """Iterate a loop's flags until they stop changing."""
    while True:
        out, diverges = run(carry)  # type: ignore[operator]
        joined = [a or b for a, b in zip(carry, out, strict=True)]
        if joined == carry:
            return carry, diverges
        carry = joined


def changed_carry(body: Jaxpr, num_consts: int) -> list[bool]:
    """Which carried values a loop body may change: all but those it hands on as they are."""
    carried = body.invars[num_consts:]
    return [out is not var for out, var in zip(body.outvars, carried, strict=True)]


def flag_of(flags: dict[Var, bool], atom: object) -> bool:
    return False if isinstance(atom, Literal) else flags[atom]  # type: ignore[index]


@functools.lru_cache(maxsize=1024)
def dependence(program: Program, operands: Flags) -> tuple[Flags, bool]:
    """Which answers depend on these operands, and whether the way through the program does."""
    found = _Dependence(program, operands[: program.num_captures])
    return found.function(program.entry, operands[program.num_captures :]), found.control


class _Dependence:
    """One program's functions, solved together: results only ever become dependent, until nothing changes."""

    def __init__(self, program: Program, captures: Flags) -> None:
        self.program = program
        self.captures = captures
        self.results: dict[tuple[str, Flags], Flags] = {}
        self.control = False

    def function(self, name: str, params: Flags) -> Flags:
        self._result(name, params)
        before: dict[tuple[str, Flags], Flags] = {}
        while before != self.results:
            before = dict(self.results)
            for (called, flags), known in before.items():
                function = self.program.functions[called]
                held = [self.captures[i] for i in function.captures]
                now = self.walk(function.jaxpr, [*held, *flags])
                self.results[called, flags] = tuple(a or b for a, b in zip(known, now, strict=True))
        return self.results[name, params]

    def _result(self, name: str, params: Flags) -> Flags:
        nothing = (False,) * len(self.program.functions[name].jaxpr.outvars)
        return self.results.setdefault((name, params), nothing)

    def walk(self, jaxpr: Jaxpr, depends: Sequence[bool]) -> Flags:
        flags: dict[Var, bool] = dict.fromkeys(jaxpr.constvars, False)
        flags.update(zip(jaxpr.invars, depends, strict=True))
        for eqn in jaxpr.eqns:
            flags.update(
                zip(
                    eqn.outvars, self.eqn(eqn, [flag_of(flags, a) for a in eqn.invars]), strict=True
                )
            )
        return tuple(flag_of(flags, atom) for atom in jaxpr.outvars)

    def eqn(self, eqn: JaxprEqn, depends: Sequence[bool]) -> Flags:
        name = eqn.primitive.name
        if name == "cond":
            index, *operands = depends
            self.control |= index
            sides = [self.walk(branch, operands) for branch in eqn.params["branches"]]
            return tuple(index or any(flags) for flags in zip(*sides, strict=True))
        if name == "while":
            return self._while(eqn, depends)
        if name == "scan":
            return self._scan(eqn, depends)
        if eqn.primitive is call_p:
            return self._result(eqn.params["name"], tuple(depends))
        if is_throw(eqn):
            return tuple(depends[: len(eqn.outvars)])
        if eqn.primitive is check_p:
            self.control |= depends[0]
            return ()
        found = inside(eqn)
        if found is not None:
            flags = {id(atom): flag for atom, flag in zip(eqn.invars, depends, strict=True)}
            out = self.walk(found.jaxpr, [flags[id(atom)] for atom in found.operands])
            return (*out, *(any(depends) for _ in eqn.outvars[len(out) :]))
        if eqn.primitive is program_p:
            out, control = dependence(eqn.params["program"], tuple(depends))
            self.control |= control
            return (*out, *(any(depends) for _ in eqn.outvars[len(out) :]))
        return (any(depends),) * len(eqn.outvars)

    def _while(self, eqn: JaxprEqn, depends: Sequence[bool]) -> Flags:
        cond_n, body_n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        changed = changed_carry(body, body_n)
        carry = list(depends[cond_n + body_n :])
        while True:
            (predicate,) = self.walk(cond, [*depends[:cond_n], *carry])
            self.control |= predicate
            out = self.walk(body, [*depends[cond_n : cond_n + body_n], *carry])
            after = [
                old or new or (predicate and change)
                for old, new, change in zip(carry, out, changed, strict=True)
            ]
            if after == carry:
                return tuple(carry)
            carry = after

    def _scan(self, eqn: JaxprEqn, depends: Sequence[bool]) -> Flags:
        parts = _jax.scan_parts(eqn)
        num_consts, num_carry = parts.num_consts, parts.num_carry
        consts, xs = depends[:num_consts], depends[num_consts + num_carry :]
        carry = list(depends[num_consts : num_consts + num_carry])
        while True:
            out = self.walk(eqn.params["jaxpr"], [*consts, *carry, *xs])
            after = [old or new for old, new in zip(carry, out[:num_carry], strict=True)]
            if after == carry:
                return (*carry, *out[num_carry:])
            carry = after
