"""Which answers of a program depend on which operands, through data or through control.

`jax.vmap` gives back an axis only for outputs that depend on a mapped input, and `jax.jacfwd` counts on it: the primal
answers of a derivative must not gain the tangents' axis. For a program the machine runs, this is that rule.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn, Var
from lanewise.blocks.divergence import changed_carry, flag_of
from lanewise.blocks.inside import inside, is_throw
from lanewise.core.program import Program, call_p, check_p, program_p

Flags = tuple[bool, ...]


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
