"""The rule of `dot_general`: a lane's own product of vectors and matrices.

A sum of products has no order of its own in XLA, whose library cuts it as suits the machine. So long ones are written
in a form that a host's vector units take, each chosen by what is contiguous in memory:

* *sums*: both operands are contiguous along the summed axis (`matrix @ vector`). Several answers are summed at once,
  since one sum alone waits for each of its additions, and each in as many parts as a vector has elements. If one is a
  whole matrix, see `rows.py`.
* *rows*: a matrix is stored row by row (`vectors @ matrix`): see `rows.py`.
* *tall*: both are contiguous along the answer's axes (`x.T @ g`), in whole tiles: outer products added many at a time.
  If the answer is only added to a sum of all lanes, they are added to that.
* *spread*: an operand is contiguous along the answer's last axis, in another way. Each term is added to all of the
  answer, a few terms at a time, so that the answer is read and written less often.

Short ones, other types and other layouts are plain loops. Nothing is shared between lanes; products of 16-bit floats
accumulate in `float32`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from lanewise._jax import DropVar, JaxprEqn, Var
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.rules.reduce import accumulator, combine
from lanewise.cpp.emit.rules.rows import in_one_piece, write_rows
from lanewise.cpp.emit.values import Index, Place, Stored, Value, plus, view
from lanewise.cpp.emit.writer import Writer

# From this many elements on, vector code is worth its prologue and its epilogue.
LONG = 16
# How many sums go on at once, and how many terms are spread at once.
AT_ONCE = 4


def cast(element: str, dtype: Any, to: Any) -> str:
    """An element as another number type, where that is a plain conversion."""
    if dtype == to:
        return element
    if dtypes.is_complex(to):
        return f"complex64(float32({element}))"
    return f"{dtypes.ctype(to)}({element})"


def product_and_sum(dtype: Any) -> tuple[Callable[[str, str], str], Callable[[str, str], str]]:
    """How a sum of products goes in a dtype; of truth values it is "any of all"."""
    if dtypes.is_bool(dtype):
        return combine("and", dtype), combine("or", dtype)
    return combine("prod", dtype), combine("sum", dtype)


@dataclass(frozen=True)
class _Operand:
    """One side of a product, and which of its axes are which."""

    value: Value
    batch: tuple[int, ...]
    summed: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        rank = len(self.value.shape)
        return tuple(a for a in range(rank) if a not in (*self.summed, *self.batch))

    def at(self, batch: Sequence[Index], free: Sequence[Index], summed: Sequence[Index]) -> str:
        indices: list[Index] = [0] * len(self.value.shape)
        for axes, given in ((self.batch, batch), (self.free, free), (self.summed, summed)):
            for axis, index in zip(axes, given, strict=True):
                indices[axis] = index
        return self.value.at(indices)

    def lies_along(self, axis: int) -> bool:
        """Whether elements along this axis are contiguous."""
        return axis == len(self.value.shape) - 1


@dataclass(frozen=True)
class _Product:
    left: _Operand
    right: _Operand
    wide: Any  # what sums are held in

    @property
    def terms(self) -> list[int]:
        return [self.left.value.shape[axis] for axis in self.left.summed]

    def factors(self, outer: Sequence[Index], inner: Sequence[Index]) -> tuple[str, str]:
        """The two elements of a term of the answer at `outer`."""
        batches, frees = len(self.left.batch), len(self.left.free)
        batch, first, second = outer[:batches], outer[batches:][:frees], outer[batches + frees :]
        return (
            cast(self.left.at(batch, first, inner), self.left.value.dtype, self.wide),
            cast(self.right.at(batch, second, inner), self.right.value.dtype, self.wide),
        )

    def added(self, total: str, outer: Sequence[Index], inner: Sequence[Index]) -> str:
        """`total` and one term more."""
        multiply, add = product_and_sum(self.wide)
        return add(total, multiply(*self.factors(outer, inner)))

    def fused(self, total: str, outer: Sequence[Index], inner: Sequence[Index]) -> str:
        a, b = self.factors(outer, inner)
        return f"lw_multiply_add({a}, {b}, {total})"

    def in_memory(self, w: Writer) -> _Product:
        """The same product of operands whose rows are in memory."""
        left, right = (
            side if side.value.in_rows else replace(side, value=w.named(side.value))
            for side in (self.left, self.right)
        )
        return _Product(left, right, self.wide)

    @property
    def sums(self) -> bool:
        return bool(self.terms) and (
            self.terms[-1] >= LONG
            and self.left.value.dtype == self.right.value.dtype == self.wide
            and self.left.lies_along(self.left.summed[-1])
            and self.right.lies_along(self.right.summed[-1])
        )

    @property
    def rows(self) -> bool:
        """Whether it is rows by one matrix that is stored row by row."""
        return (
            len(self.terms) == 1
            and not self.left.batch
            and self.right.summed == (0,)
            and len(self.right.value.shape) == 2
            and self.left.lies_along(self.left.summed[0])
            and self.left.value.dtype == self.right.value.dtype == self.wide
            and in_one_piece(self.right.value)
        )

    @property
    def turned(self) -> tuple[Value, Value] | None:
        """The rows and the matrix, if this is rows by the transpose of a matrix that is stored row by row."""
        if len(self.terms) != 1 or self.left.batch:
            return None
        for rows, matrix in ((self.left, self.right), (self.right, self.left)):
            # As the first operand, a matrix has its answers in columns: those of one vector are laid out as a row is.
            first = matrix is self.left and len(rows.value.shape) > 1
            whole = len(matrix.value.shape) == 2 and in_one_piece(matrix.value) and not first
            if whole and matrix.summed == (1,) and matrix.value.shape[0] >= LONG:
                return rows.value, matrix.value
        return None

    @property
    def tall(self) -> bool:
        """Whether two matrices are summed over their rows (`x.T @ g`), in whole tiles."""
        sides = (self.left, self.right)
        return (
            len(self.terms) == 1
            and all(len(s.value.shape) == 2 and s.summed == (0,) and not s.batch for s in sides)
            and self.left.value.dtype == self.right.value.dtype == self.wide
            and self.left.value.shape[1] % 8 == 0
            and self.right.value.shape[1] % LONG == 0
        )

    @property
    def spreads(self) -> bool:
        """Whether the last axis of the answer is long and contiguous in the operand that has it."""
        having = self.right if self.right.free else self.left
        return bool(having.free and self.terms) and (
            having.lies_along(having.free[-1])
            and having.value.shape[having.free[-1]] >= LONG
            and self.terms[-1] >= AT_ONCE
        )


@rule("dot_general")
def dot_general(w: Writer, eqn: JaxprEqn) -> None:
    left, right = map(w.value, eqn.invars)
    (out,) = eqn.outvars
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    product = _Product(
        _Operand(left, tuple(left_batch), tuple(left_sum)),
        _Operand(right, tuple(right_batch), tuple(right_sum)),
        accumulator(out.aval.dtype),
    )
    if not left_sum and product.wide == out.aval.dtype:
        multiply, _ = product_and_sum(product.wide)
        outer = view(
            out.aval.shape,
            out.aval.dtype,
            lambda at: multiply(*product.factors(at, ())),
            left,
            right,
        )
        w.compute(out, outer)
        return
    room = w.store(out)
    if not room.size:
        return
    fuses = dtypes.ctype(product.wide) in ("float32", "float64") and left.size and right.size
    fuses = fuses and product.wide == out.aval.dtype
    if fuses and product.sums:
        if not w.threads.own_arrays or product.turned is None:
            _sums(w, product, room)
            return
        # A thread of a GPU has neither vectors nor its arrays in one piece.
        w.line("#ifdef __CUDACC__")
        _sums(w, product, room)
        w.line("#else")
        with w.block():
            write_rows(w, *product.turned, room, turned=True)
        w.line("#endif")
    elif fuses and product.spreads and w.threads.own_arrays:
        if product.tall:
            w.line("#ifdef __CUDACC__")
            _spread(w, product, room)
            w.line("#else")
            with w.block():
                _tall(w, product, room, _sum_of(w, out))
            w.line("#endif")
            return
        if not product.rows:
            _spread(w, product, room)
            return
        w.line("#ifdef __CUDACC__")
        _spread(w, product, room)
        w.line("#else")
        with w.block():
            write_rows(w, product.left.value, product.right.value, room)
        w.line("#endif")
    else:
        _plain(w, product, room)


def _plain(w: Writer, product: _Product, room: Place) -> None:
    with w.loops(room.shape) as outer:
        total = w.room((), product.wide, "total")
        w.put(total, (), dtypes.literal(0, product.wide))
        if product.left.value.size and product.right.value.size:
            with w.loops(product.terms) as inner:
                w.put(total, (), product.added(total.at(()), outer, inner))
        w.put(room, outer, cast(total.at(()), product.wide, room.dtype))


@contextmanager
def _stepping(w: Writer, size: int) -> Iterator[str]:
    """A loop over an axis in steps of `AT_ONCE`."""
    index = w.fresh("i")
    with w.block(f"for (int {index} = 0; {index} < {size}; {index} += {AT_ONCE})"):
        yield index


def _sums(w: Writer, product: _Product, room: Place) -> None:
    product = product.in_memory(w)
    *front, last = room.shape or (1,)
    whole = last - last % AT_ONCE
    if whole:
        with w.loops(front) as outer, _stepping(w, whole) as step:
            _sums_at(w, product, room, [(*outer, plus(step, n)) for n in range(AT_ONCE)])
    if whole < last:
        with w.loops(front) as outer, w.block():
            left = range(whole, last)
            _sums_at(w, product, room, [(*outer, n) if room.shape else () for n in left])


def _sums_at(w: Writer, product: _Product, room: Place, places: list[tuple[Index, ...]]) -> None:
    """The answers at these places, together."""
    *front, size = product.terms
    kind, count = dtypes.ctype(product.wide), len(places)
    totals = w.fresh("totals")
    w.line(f"{kind} {totals}[{count}] = {{}};")
    with w.loops(front) as inner, w.block():
        # A thread of a GPU has no vectors, nor its arrays in one piece: it adds one term after the other to each sum.
        # If several threads run a lane, each adds its part.
        w.line("#ifdef __CUDACC__")
        k = w.fresh("k")
        first, step = w.threads.part
        w.line("LW_UNROLL_FOUR")
        with w.block(f"for (int {k} = {first}; {k} < {size}; {k} += {step})"):
            for n, outer in enumerate(places):
                total = f"{totals}[{n}]"
                w.line(f"{total} = {product.fused(total, outer, (*inner, k))};")
        for line in w.threads.joined([f"{totals}[{n}]" for n in range(count)]):
            w.line(line)
        w.line("#else")
        pairs = [product.factors(outer, (*inner, 0)) for outer in places]
        for name, elements in (("a", [a for a, _ in pairs]), ("b", [b for _, b in pairs])):
            addresses = ", ".join(f"&{element}" for element in elements)
            w.line(f"const {kind}* const {name}[{count}] = {{{addresses}}};")
        w.line(f"lw_dots<{count}, {size}>(a, b, {totals});")
        w.line("#endif")
    for n, outer in enumerate(places):
        w.put(room, outer, f"{totals}[{n}]")


def _sum_of(w: Writer, out: Var) -> Stored | None:
    """The sum of all lanes that a product is added to, if that is all it is for; it is marked as added."""
    reader = None if isinstance(out, DropVar) else w.scope.uses.only_reader(out)
    if reader is None or reader.primitive.name != "accumulate" or len(reader.invars) != 1:
        return None
    whole = w.sums[reader.params["number"]]
    if (whole.shape, whole.dtype) != (tuple(out.aval.shape), out.aval.dtype):
        return None
    w.scope.added.add(out)
    return whole


def _tall(w: Writer, product: _Product, room: Place, whole: Stored | None) -> None:
    """A sum of outer products, which tiles of the answer are added to (`rules/sums.py`); for a host alone."""
    left, right = (
        side.value if in_one_piece(side.value) else w.named(side.value)
        for side in (product.left, product.right)
    )
    (terms, high), wide = left.shape, right.shape[1]
    kind = answer_kind = dtypes.ctype(room.dtype)
    answer = f"&{(whole or room).flat(0)}"
    if whole is None:
        w.line(f"memset({answer}, 0, {room.size} * sizeof({kind}));")
    else:
        answer_kind = f"lw_sum<{kind}>::type"
    given = f"{answer}, &{left.flat(0)}, &{right.flat(0)}"
    sizes = f"{terms}, {high}, {wide}, {high}, {wide}"
    w.line(f"lw_add_products<{kind}, {answer_kind}>({given}, {sizes});")


def _spread(w: Writer, product: _Product, room: Place) -> None:
    *front, last = room.shape
    *outside, terms = product.terms
    whole = terms - terms % AT_ONCE

    def spread(outer: Sequence[Index], inners: list[tuple[Index, ...]]) -> None:
        i = w.fresh("i")
        w.line("LW_IN_STEP")
        with w.block(f"for (int {i} = 0; {i} < {last}; ++{i})"):
            total = room.at((*outer, i))
            for inner in inners:
                total = product.fused(total, (*outer, i), inner)
            w.put(room, (*outer, i), total)

    with w.loops(front) as outer, w.block():
        with w.loops((last,)) as (i,):
            w.put(room, (*outer, i), dtypes.literal(0, room.dtype))
        with w.loops(outside) as inner, w.block():
            with _stepping(w, whole) as step:
                spread(outer, [(*inner, plus(step, n)) for n in range(AT_ONCE)])
            for n in range(whole, terms):
                spread(outer, [(*inner, n)])
