"""What follows from the inputs of code: one forward analysis, of which others differ by what they know of a construct.

Each value has a flag. A result has one if an operand has; a branch has those of all its sides, and a loop is followed
until no more of its state gets one. Beside the flags stands whether control flow depends on them: a branch by its
index, a loop by its test. Divergence, dependence and activity are such analyses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lanewise._jax.jaxprs import Jaxpr, JaxprEqn, Literal, Var
from lanewise._jax.walk import Cond, Scan, While, evaluate

Flags = tuple[bool, ...]
Found = tuple[Flags, bool]
"""The flags of results, and whether control flow depends on those of operands."""


class Forward:
    """Dependence through data and control flow. Other analyses replace what they know better."""

    def of(self, code: Jaxpr, flags: Sequence[bool]) -> Found:
        """For the results of code whose inputs (constvars apart) have these flags."""
        control = False

        def rule(eqn: JaxprEqn, given: list[bool]) -> Flags:
            nonlocal control
            found, inner = self.eqn(eqn, given)
            control = control or inner
            return found

        nothing = (False,) * len(code.constvars)
        return tuple(evaluate(code, flags, rule, consts=nothing, literal=_no_flag)), control

    def eqn(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        match eqn.primitive.name:
            case "cond":
                return self.cond(eqn, flags)
            case "while":
                return self.while_(eqn, flags)
            case "scan":
                return self.scan(eqn, flags)
        return self.other(eqn, flags)

    def other(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        """For an equation that is no control flow."""
        return (any(flags),) * len(eqn.outvars), False

    def cond(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        branch = Cond.of(eqn, flags)
        sides, controls = zip(*(self.of(code, branch.operands) for code in branch.branches))
        found = tuple(branch.index or any(each) for each in zip(*sides, strict=True))
        return found, branch.index or any(controls)

    def while_(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        loop = While.of(eqn, flags)

        def turn(carry: Sequence[bool]) -> Found:
            (goes_on,), first = self.of(loop.test, [*loop.test_consts, *carry])
            after, second = self.of(loop.body, [*loop.consts, *carry])
            if goes_on:
                after = tuple(a or b for a, b in zip(after, loop.changed, strict=True))
            return after, goes_on or first or second

        return settled(loop.init, turn)

    def scan(self, eqn: JaxprEqn, flags: Sequence[bool]) -> Found:
        loop = Scan.of(eqn, flags)
        return settled(
            loop.init, lambda carry: self.of(loop.body, [*loop.consts, *carry, *loop.xs])
        )


def settled(init: Sequence[bool], turn: Callable[[Sequence[bool]], Found]) -> Found:
    """Turns of a loop until its state gets no more flags; what a turn gives besides is that of the last."""
    carry = list(init)
    while True:
        found, control = turn(carry)
        after = [old or new for old, new in zip(carry, found, strict=False)]
        if after == carry:
            return (*carry, *found[len(carry) :]), control
        carry = after


def reached(eqns: Iterable[JaxprEqn], start: Iterable[Var]) -> set[Var]:
    """These variables, and those that straight code makes from some of them."""
    found = set(start)
    for eqn in eqns:
        if any(a in found for a in eqn.invars if not isinstance(a, Literal)):
            found.update(eqn.outvars)
    return found


def _no_flag(literal: Literal) -> bool:
    del literal
    return False
