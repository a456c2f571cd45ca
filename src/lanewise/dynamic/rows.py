"""The record that a slice writes, and what is known at a place of the code while it is written.

A row's number is `call * results + place`, with as many results for each call as the piece with the most has: so the
call that made it, and its level, is found by a division. What a lane is given as an operand has a negative number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanewise import _jax
from lanewise._jax import Var
from lanewise.dynamic.code import Plain
from lanewise.dynamic.waits import Level, above

# Words of a row before its operands: the piece, and the level.
HEAD = 2

INT = np.dtype(np.int32)


@dataclass(frozen=True)
class Shape:
    """Of a record: results of a call, words of a row, rows. The first walk writes nothing."""

    results: int
    width: int
    room: int
    writes: bool

    @property
    def tape(self) -> _jax.ShapedArray:
        return _jax.shaped((self.room, self.width), INT)


class Row(NamedTuple):
    """A value as the slice has it: its number, and what the walk knows of its level."""

    number: Any
    level: Level


@dataclass
class Known:
    """What is known at a place of the code being traced: values of control, rows, what is pending, and the record."""

    held: dict[int, Any]  # operands of the program, by number
    top: Any
    tape: Any
    control: dict[Var, Any] = field(default_factory=dict)
    rows: dict[Var, Row] = field(default_factory=dict)
    pending: dict[Var, Plain] = field(default_factory=dict)

    def inner(self, top: Any, tape: Any) -> Known:
        return Known(self.held, top, tape, dict(self.control), dict(self.rows), dict(self.pending))

    @property
    def levels(self) -> dict[Any, Level]:
        return {var: row.level for var, row in self.rows.items()}


def record(
    known: Known,
    shape: Shape,
    piece: int,
    results: int,
    read: Sequence[Row],
    payload: Sequence[Any],
    lane_rows: bool,
) -> list[Row]:
    """Append a call of a piece, of rows and words of payload; gives its results. `lane_rows`: lanes are given some."""
    level = above([row.level for row in read])
    number = known.top * shape.results
    rows = [Row(number + j if j else number, level) for j in range(results)]
    if shape.writes:
        operands = [row.number for row in read]
        at = _level(known, shape, operands, lane_rows)
        new = jnp.stack([jnp.int32(piece), at, *operands, *payload])[None]
        known.tape = lax.dynamic_update_slice(
            known.tape, new, (known.top, jnp.int32(0)), allow_negative_indices=False
        )
        known.top = known.top + 1
    return rows


def _level(known: Known, shape: Shape, operands: Sequence[Any], lane_rows: bool) -> Any:
    """One more than the highest level of what is read; 0 where no call made it."""
    found = jnp.int32(0)
    for row in operands:
        call = row if shape.results == 1 else lax.div(row, jnp.int32(shape.results))
        at = lax.dynamic_slice(
            known.tape, (call, jnp.int32(1)), (1, 1), allow_negative_indices=False
        )[0, 0]
        after = at + 1
        if lane_rows:
            after = jnp.where(row < 0, 0, after)
        found = jnp.maximum(found, after)
    return found
