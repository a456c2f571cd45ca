"""Triangular solves on a host, with rows as vectors.

Substitution takes one unknown after the other, and each is a sum of products with those before it: added up one by one,
every product waits for the one before. So a row of unknowns is solved at a time where several right sides are
adjacent. Where there is one vector of unknowns, what is known is taken from all equations that are left, if their
coefficients are adjacent; or else the products are added up in parts, as long sums are (`reduce.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules.reduce import PARTS
from lanewise.cpp.emit.values import Index, Place, Value
from lanewise.cpp.emit.writer import Writer

# From this many right sides on, they are solved side by side.
LEAST_BESIDE = 4

_INT32 = np.dtype("int32")


@dataclass(frozen=True)
class Solve:
    """`a x = b`, or with `left` false `x a = b`, as `triangular_solve` has it.

    `downward`: the first unknown is known first. `transposed`: coefficients of an equation are in a column.
    """

    matrix: Value
    right: Value
    room: Place
    downward: bool
    transposed: bool
    left: bool
    unit_diagonal: bool

    @property
    def size(self) -> int:
        return self.matrix.shape[-1]

    @property
    def columns(self) -> int:
        return self.right.shape[-1] if self.left else self.right.shape[-2]

    def write(self, w: Writer, batch: Sequence[Index]) -> None:
        """The loops for one matrix of a stack."""
        if self.left and self.columns >= LEAST_BESIDE:
            self._side_by_side(w, batch)
            return
        with w.loops((self.columns,)) as (column,):
            if self.transposed:
                self._taken_from_others(w, batch, column)
            else:
                self._in_parts(w, batch, column)

    def _coefficient(self, batch: Sequence[Index], row: Index, column: Index) -> str:
        at = (column, row) if self.transposed else (row, column)
        return self.matrix.at((*batch, *at))

    def _unknown(self, batch: Sequence[Index], row: Index, column: Index) -> str:
        return self.room.at((*batch, row, column) if self.left else (*batch, column, row))

    def _given(self, batch: Sequence[Index], row: Index, column: Index) -> str:
        return self.right.at((*batch, row, column) if self.left else (*batch, column, row))

    def _row(self, w: Writer, step: str) -> str:
        return step if self.downward else w.let(f"{self.size - 1} - {step}", _INT32, "row").text

    def _side_by_side(self, w: Writer, batch: Sequence[Index]) -> None:
        step, k, i = w.fresh("step"), w.fresh("k"), w.fresh("i")
        beside = f"for (int {i} = 0; {i} < {self.columns}; ++{i})"
        with w.block(f"for (int {step} = 0; {step} < {self.size}; ++{step})"):
            row = self._row(w, step)
            mine = self._unknown(batch, row, i)
            with w.block(beside):
                w.line(f"{mine} = {self._given(batch, row, i)};")
            known = (f"0; {k} < {row}") if self.downward else f"{row} + 1; {k} < {self.size}"
            with w.block(f"for (int {k} = {known}; ++{k})"):
                factor = w.let(self._coefficient(batch, row, k), self.matrix.dtype).text
                w.line("LW_IN_STEP")
                with w.block(beside):
                    w.line(f"{mine} = {mine} - {factor} * {self._unknown(batch, k, i)};")
            if not self.unit_diagonal:
                divisor = w.let(self._coefficient(batch, row, row), self.matrix.dtype).text
                w.line("LW_IN_STEP")
                with w.block(beside):
                    w.line(f"{mine} = {mine} / {divisor};")

    def _taken_from_others(self, w: Writer, batch: Sequence[Index], column: Index) -> None:
        step, i = w.fresh("step"), w.fresh("i")
        with w.block(f"for (int {i} = 0; {i} < {self.size}; ++{i})"):
            w.line(f"{self._unknown(batch, i, column)} = {self._given(batch, i, column)};")
        with w.block(f"for (int {step} = 0; {step} < {self.size}; ++{step})"):
            row = self._row(w, step)
            mine = self._unknown(batch, row, column)
            if not self.unit_diagonal:
                w.line(f"{mine} = {mine} / {self._coefficient(batch, row, row)};")
            found = w.let(mine, self.matrix.dtype).text
            others = f"{row} + 1; {i} < {self.size}" if self.downward else f"0; {i} < {row}"
            w.line("LW_IN_STEP")
            with w.block(f"for (int {i} = {others}; ++{i})"):
                other = self._unknown(batch, i, column)
                w.line(f"{other} = {other} - {self._coefficient(batch, i, row)} * {found};")

    def _in_parts(self, w: Writer, batch: Sequence[Index], column: Index) -> None:
        step, k, i = w.fresh("step"), w.fresh("k"), w.fresh("i")
        kind = dtypes.ctype(self.matrix.dtype)
        with w.block(f"for (int {step} = 0; {step} < {self.size}; ++{step})"):
            row = self._row(w, step)
            first, end = ("0", row) if self.downward else (f"{row} + 1", str(self.size))
            total, parts = w.fresh("total"), w.fresh("parts")
            w.line(f"{kind} {total} = {self._given(batch, row, column)};")
            w.line(f"int {k} = {first};")
            with w.block(f"if ({end} - {k} >= {PARTS})"):
                w.line(f"{kind} {parts}[{PARTS}] = {{}};")
                with w.block(f"for (; {k} + {PARTS} <= {end}; {k} += {PARTS})"):
                    w.line("LW_IN_STEP")
                    with w.block(f"for (int {i} = 0; {i} < {PARTS}; ++{i})"):
                        there = f"{k} + {i}"
                        factor = self._coefficient(batch, row, f"({there})")
                        known = self._unknown(batch, f"({there})", column)
                        w.line(f"{parts}[{i}] = {parts}[{i}] + {factor} * {known};")
                half = PARTS // 2
                while half:
                    w.line("LW_IN_STEP")
                    with w.block(f"for (int {i} = 0; {i} < {half}; ++{i})"):
                        w.line(f"{parts}[{i}] = {parts}[{i}] + {parts}[{i} + {half}];")
                    half //= 2
                w.line(f"{total} = {total} - {parts}[0];")
            with w.block(f"for (; {k} < {end}; ++{k})"):
                known = self._unknown(batch, k, column)
                w.line(f"{total} = {total} - {self._coefficient(batch, row, k)} * {known};")
            if not self.unit_diagonal:
                w.line(f"{total} = {total} / {self._coefficient(batch, row, row)};")
            w.line(f"{self._unknown(batch, row, column)} = {total};")
