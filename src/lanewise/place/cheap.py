"""Operations that take no longer than a message would."""

from __future__ import annotations

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.core.primitives.facts import Effort, effort_of, is_call


def is_cheap(eqn: JaxprEqn) -> bool:
    """Whether computing an equation at several places costs less than sending what it gives, to the same bits."""
    held = _jax.equations((eqn,))
    return all(is_call(each) or effort_of(each) <= Effort.EXACT for each in held)
