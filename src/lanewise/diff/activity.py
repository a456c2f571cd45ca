"""Which values are active: those that depend on what is differentiated and have a derivative at all.

A value that is not active has no adjoint. The analysis follows dependence only, so a value found active may have an
adjoint of zero; one found not active has none. Loops are followed until nothing more is active.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lanewise import _jax
from lanewise.core.program import call_p

Active = _jax.Flags

OnCall = Callable[[_jax.JaxprEqn, Sequence[bool]], None]
"""What to do at a call, given which of its operands are active: perhaps more than once, with more of them each time."""


def active_outputs(
    jaxpr: _jax.Jaxpr, active: Sequence[bool], on_call: OnCall | None = None
) -> Active:
    """Which results are active when these inputs are."""
    return _Activity(on_call).of(jaxpr, active)[0]


def active_results(
    eqn: _jax.JaxprEqn, active: Sequence[bool], on_call: OnCall | None = None
) -> Active:
    """Which results of an equation are active."""
    return _Activity(on_call).eqn(eqn, active)[0]


def active_carry(eqn: _jax.JaxprEqn, active: Sequence[bool]) -> Active:
    """Which of the state of a `while` is active, in any iteration."""
    return _Activity().while_(eqn, active)[0]


def active_in_scan(eqn: _jax.JaxprEqn, active: Sequence[bool]) -> tuple[Active, Active]:
    """Which inputs of a `scan`'s body are active in any iteration, and which of its results."""
    loop, found = _jax.Scan.of(eqn, active), _Activity().scan(eqn, active)[0]
    return (*loop.consts, *loop.divided(found)[0], *loop.xs), found


@dataclass(frozen=True)
class _Activity(_jax.Forward):
    on_call: OnCall | None = None

    def eqn(self, eqn: _jax.JaxprEqn, flags: Sequence[bool]) -> _jax.Found:
        found, control = super().eqn(eqn, flags)
        pairs = zip(found, eqn.outvars, strict=True)
        return tuple(flag and _jax.has_tangent(var.aval) for flag, var in pairs), control

    def other(self, eqn: _jax.JaxprEqn, flags: Sequence[bool]) -> _jax.Found:
        if self.on_call is not None and eqn.primitive is call_p:
            self.on_call(eqn, flags)
        return super().other(eqn, flags)

    def cond(self, eqn: _jax.JaxprEqn, flags: Sequence[bool]) -> _jax.Found:
        # No index has a tangent, nor a test.
        return super().cond(eqn, (False, *flags[1:]))

    def while_(self, eqn: _jax.JaxprEqn, flags: Sequence[bool]) -> _jax.Found:
        loop = _jax.While.of(eqn, flags)
        return _jax.settled(loop.init, lambda carry: self.of(loop.body, [*loop.consts, *carry]))
