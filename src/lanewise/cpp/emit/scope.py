"""What is known of the variables of one piece of code while it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from lanewise._jax import JaxprEqn, Var
from lanewise.blocks.analysis import Known
from lanewise.cpp.emit.uses import Uses
from lanewise.cpp.emit.values import Stored, Value


@dataclass
class Scope:
    """The values of one piece of code while it is written.

    `owned`: variables whose memory this code may write over once nothing wants it any more. `destinations`: where a
    variable's value goes in the end, so that it may be computed there. `current`: the equation being written, with
    those `ahead` of it, the last one first; `made_by` tells which of those before it made a variable. `known`: the
    numbers among the scalars, which need no code.
    """

    uses: Uses
    values: dict[Var, Value] = field(default_factory=dict)
    owned: set[Var] = field(default_factory=set)
    destinations: dict[Var, Stored] = field(default_factory=dict)
    current: JaxprEqn | None = None
    known: Known = field(default_factory=dict)
    ahead: list[JaxprEqn] = field(default_factory=list)
    made_by: dict[Var, JaxprEqn] = field(default_factory=dict)
