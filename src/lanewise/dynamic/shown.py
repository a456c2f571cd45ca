"""The slice and the pieces of a program, in words."""

from __future__ import annotations

from lanewise._jax import JaxprEqn
from lanewise.core.primitives.facts import cost_of
from lanewise.dynamic.levels import ByLevels
from lanewise.dynamic.pieces import Kind


def shown(own: ByLevels) -> str:
    """What `lanewise.inspect` says of a program that is run by levels."""
    kinds = list(own.pieces.kinds.values())
    reads = ", ".join(map(str, sorted(own.reads)))
    head = f"control is decided by operands {reads}; {len(kinds)} pieces"
    return "\n".join([head, *map(_shown, kinds), f"slice\n{own.slice.program.text}"])


def _shown(kind: Kind) -> str:
    piece = kind.piece
    cost = cost_of(piece.code.eqns)
    rows = [*map(str, piece.rows[: len(kind.rows)])]
    payload = [
        f"{t} of control" for t in piece.rows[len(kind.rows) : len(kind.rows) + len(kind.payload)]
    ]
    takes = ", ".join([*rows, *payload, *(f"operand {i}" for i in kind.shared)]) or "nothing"
    gives = ", ".join(map(str, piece.results))
    names = ", ".join(dict.fromkeys(map(_name, piece.code.eqns)))
    where = f" ({kind.line})" if kind.line else ""
    return f"  {piece.name}: {takes} -> {gives}: {cost.operations:,.0f} operations: {names}{where}"


def _name(eqn: JaxprEqn) -> str:
    return eqn.primitive.name
