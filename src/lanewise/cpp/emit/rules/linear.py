"""Rules of convolutions, factorizations and small solves, as the plain loops they are.

Convolutions of 16-bit floats accumulate in `float32`. Factorizations follow LAPACK's conventions for signs and pivots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.rules.product import cast, product_and_sum
from lanewise.cpp.emit.rules.reduce import accumulator
from lanewise.cpp.emit.values import Index, Place, Value, minus, plus, quotient, times
from lanewise.cpp.emit.writer import Writer

_INT32 = np.dtype("int32")
# Matrices of fewer rows are processed one by one: a vector would be mostly empty.
LEAST_ROW = 8


@contextmanager
def batches(w: Writer, shape: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """Loop over the leading axes of a stack of matrices."""
    with w.loops(shape[:-2]) as batch, w.block():
        yield batch


# -- convolutions ----------------------------------------------------------------------------------------


@rule("conv_general_dilated")
def conv_general_dilated(w: Writer, eqn: JaxprEqn) -> None:
    left, right = map(w.value, eqn.invars)
    (out,) = eqn.outvars
    p = eqn.params
    left_axes, right_axes, out_axes = p["dimension_numbers"]
    wide = accumulator(out.aval.dtype)
    multiply, add = product_and_sum(wide)
    room = w.store(out)
    if not room.size:
        return
    # Features come in groups: a group's outputs see its own inputs (`feature_group_count`), or its own part of the
    # batch (`batch_group_count`).
    group_inputs = right.shape[right_axes[1]]
    group_outputs = right.shape[right_axes[0]] // max(
        p["feature_group_count"], p["batch_group_count"]
    )
    with w.loops(room.shape) as outer:
        image, feature = outer[out_axes[0]], outer[out_axes[1]]
        group = quotient(feature, group_outputs)
        if p["batch_group_count"] > 1:
            image = plus(times(group, left.shape[left_axes[0]] // p["batch_group_count"]), image)
        total = w.room((), wide, "total")
        w.put(total, (), dtypes.literal(0, wide))
        kernel = [right.shape[axis] for axis in right_axes[2:]]
        with w.loops([group_inputs, *kernel]) as (inner, *inside):
            where: list[Index] = [0] * len(left.shape)
            weight: list[Index] = [0] * len(right.shape)
            where[left_axes[0]] = image
            where[left_axes[1]] = (
                plus(times(group, group_inputs), inner) if p["feature_group_count"] > 1 else inner
            )
            weight[right_axes[0]], weight[right_axes[1]] = feature, inner
            tests = []
            for number, axis in enumerate(left_axes[2:]):
                low, high = p["padding"][number]
                dilation = p["lhs_dilation"][number]
                along = times(outer[out_axes[2 + number]], p["window_strides"][number])
                place = minus(plus(along, times(inside[number], p["rhs_dilation"][number])), low)
                if not isinstance(place, int):
                    place = w.let(place, _INT32, "at").text
                if low != 0 or high != 0 or left.shape[axis] == 0:
                    tests.append(f"{place} >= 0 && {place} <= {(left.shape[axis] - 1) * dilation}")
                if dilation != 1:
                    tests.append(f"{place} % {dilation} == 0")
                where[axis] = place if dilation == 1 else f"{place} / {dilation}"
                weight[right_axes[2 + number]] = inside[number]
            with w.block(f"if ({' && '.join(tests)})" if tests else ""):
                a = cast(left.at(where), left.dtype, wide)
                b = cast(right.at(weight), right.dtype, wide)
                w.put(total, (), add(total.at(()), multiply(a, b)))
        w.put(room, outer, cast(total.at(()), wide, out.aval.dtype))


# -- factorizations and solves ---------------------------------------------------------------------------


def _real(dtype: Any) -> str:
    """The C++ type, after checking that the rule can work in it."""
    if dtypes.ctype(dtype) not in ("float32", "float64"):
        raise Unsupported(f"factorizations in {dtypes.ctype(dtype)}")
    return dtypes.ctype(dtype)


@rule("cholesky")
def cholesky(w: Writer, eqn: JaxprEqn) -> None:
    """Row by row, from the lower triangle; all NaN where the matrix is not positive definite."""
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    kind, size = _real(value.dtype), value.shape[-1]
    room = w.store(out)

    def one_by_one() -> None:
        with batches(w, room.shape) as batch:
            fine, i, j, k = (w.fresh(name) for name in ("fine", "row", "column", "k"))
            w.line(f"bool {fine} = true;")
            with w.block(f"for (int {i} = 0; {i} < {size}; ++{i})"):
                with w.block(f"for (int {j} = 0; {j} <= {i}; ++{j})"):
                    total = w.fresh("total")
                    w.line(f"{kind} {total} = {value.at((*batch, i, j))};")
                    with w.block(f"for (int {k} = 0; {k} < {j}; ++{k})"):
                        product = f"{room.at((*batch, i, k))} * {room.at((*batch, j, k))}"
                        w.line(f"{total} = {total} - {product};")
                    with w.block(f"if ({i} == {j})"):
                        w.line(f"{fine} = {fine} && {total} > 0;")
                        w.put(room, (*batch, i, j), f"sqrt({total})")
                    with w.block("else"):
                        w.put(room, (*batch, i, j), f"{total} / {room.at((*batch, j, j))}")
                with w.block(f"for (int {j} = {i} + 1; {j} < {size}; ++{j})"):
                    w.put(room, (*batch, i, j), dtypes.literal(0, value.dtype))
            _spoilt(w, fine, room, batch)

    if size < LEAST_ROW:
        one_by_one()
        return
    w.line("#ifdef __CUDACC__")
    one_by_one()
    w.line("#else")
    with batches(w, room.shape) as batch:
        _cholesky_by_rows(w, value, room, batch)
    w.line("#endif")


def _cholesky_by_rows(w: Writer, value: Value, room: Place, batch: Sequence[Index]) -> None:
    """The factor's transpose, a row at a time, in the upper triangle; then it is turned.

    Elements are adjacent there, so that a row is a vector. Each has the same bits as if computed one by one.
    """
    size = value.shape[-1]
    fine, i, j, k = (w.fresh(name) for name in ("fine", "row", "column", "k"))
    w.line(f"bool {fine} = true;")

    def at(row: Index, column: Index) -> str:
        return room.at((*batch, row, column))

    with w.block(f"for (int {i} = 0; {i} < {size}; ++{i})"):
        with w.block(f"for (int {j} = {i}; {j} < {size}; ++{j})"):
            w.line(f"{at(i, j)} = {value.at((*batch, j, i))};")
        with w.block(f"for (int {k} = 0; {k} < {i}; ++{k})"):
            factor = w.let(at(k, i), value.dtype).text
            w.line("LW_IN_STEP")
            with w.block(f"for (int {j} = {i}; {j} < {size}; ++{j})"):
                w.line(f"{at(i, j)} = {at(i, j)} - {factor} * {at(k, j)};")
        w.line(f"{fine} = {fine} && {at(i, i)} > 0;")
        root = w.let(f"sqrt({at(i, i)})", value.dtype).text
        w.line(f"{at(i, i)} = {root};")
        w.line("LW_IN_STEP")
        with w.block(f"for (int {j} = {i} + 1; {j} < {size}; ++{j})"):
            w.line(f"{at(i, j)} = {at(i, j)} / {root};")
    with w.block(f"for (int {i} = 0; {i} < {size}; ++{i})"):
        with w.block(f"for (int {j} = {i} + 1; {j} < {size}; ++{j})"):
            w.line(f"{at(j, i)} = {at(i, j)};")
            w.line(f"{at(i, j)} = {dtypes.literal(0, value.dtype)};")
    _spoilt(w, fine, room, batch)


def _spoilt(w: Writer, fine: str, room: Place, batch: Sequence[Index]) -> None:
    """All NaN unless the matrix was positive definite."""
    size = room.shape[-1]
    with w.block(f"if (!{fine})"), w.loops((size, size)) as (row, column):
        w.put(room, (*batch, row, column), dtypes.literal(np.nan, room.dtype))


@rule("triangular_solve")
def triangular_solve(w: Writer, eqn: JaxprEqn) -> None:
    """Substitution, one unknown after the other. `x a = b` is solved as `aᵀ xᵀ = bᵀ`."""
    matrix, right = map(w.value, eqn.invars)
    p = eqn.params
    if dtypes.is_complex(matrix.dtype):
        conjugate = bool(p["conjugate_a"])
    else:
        _real(matrix.dtype)
        conjugate = False
    size = matrix.shape[-1]
    transposed = p["transpose_a"] != (not p["left_side"])
    downward = p["lower"] != transposed
    room = w.store(eqn.outvars[0])
    if not room.size:
        return

    def coefficient(batch: Sequence[Index], row: Index, column: Index) -> str:
        element = matrix.at((*batch, column, row) if transposed else (*batch, row, column))
        return f"lw_complex_conj({element})" if conjugate else element

    def unknown(batch: Sequence[Index], row: Index, column: Index) -> tuple[Index, ...]:
        return (*batch, row, column) if p["left_side"] else (*batch, column, row)

    columns = right.shape[-1] if p["left_side"] else right.shape[-2]

    def one_by_one() -> None:
        with batches(w, room.shape) as batch, w.loops((columns,)) as (column,):
            step, k = w.fresh("step"), w.fresh("k")
            with w.block(f"for (int {step} = 0; {step} < {size}; ++{step})"):
                row = step if downward else w.let(f"{size - 1} - {step}", _INT32, "row").text
                total = w.room((), matrix.dtype, "total")
                w.put(total, (), right.at(unknown(batch, row, column)))
                span = (
                    f"int {k} = 0; {k} < {row}"
                    if downward
                    else f"int {k} = {row} + 1; {k} < {size}"
                )
                with w.block(f"for ({span}; ++{k})"):
                    known = room.at(unknown(batch, k, column))
                    w.put(total, (), f"{total.at(())} - {coefficient(batch, row, k)} * {known}")
                found = total.at(())
                if not p["unit_diagonal"]:
                    found = f"{found} / {coefficient(batch, row, row)}"
                w.put(room, unknown(batch, row, column), found)

    # Most kernels have none.
    from lanewise.cpp.emit.rules.substitution import Solve

    solve = Solve(matrix, right, room, downward, transposed, p["left_side"], p["unit_diagonal"])
    if size < LEAST_ROW or dtypes.is_complex(matrix.dtype):
        one_by_one()
        return
    w.line("#ifdef __CUDACC__")
    one_by_one()
    w.line("#else")
    with batches(w, room.shape) as batch:
        solve.write(w, batch)
    w.line("#endif")


@rule("lu")
def lu(w: Writer, eqn: JaxprEqn) -> None:
    """Gaussian elimination with the largest pivot of each column; also the pivots and the permutation they make."""
    value = w.value(eqn.invars[0])
    kind = _real(value.dtype)
    rows, columns = value.shape[-2:]
    room, pivots, order = (w.store(var) for var in eqn.outvars)
    w.copy(room, value)
    with batches(w, room.shape) as batch:

        def at(row: Index, column: Index) -> str:
            return room.at((*batch, row, column))

        with w.loops((rows,)) as (row,):
            w.put(order, (*batch, row), str(row))
        k, i, j, best = (w.fresh(name) for name in ("k", "row", "column", "best"))
        with w.block(f"for (int {k} = 0; {k} < {min(rows, columns)}; ++{k})"):
            w.line(f"int {best} = {k};")
            with w.block(f"for (int {i} = {k} + 1; {i} < {rows}; ++{i})"):
                w.line(f"if (fabs({at(i, k)}) > fabs({at(best, k)})) {best} = {i};")
            w.put(pivots, (*batch, k), best)
            with w.block(f"if ({best} != {k})"):
                with w.loops((columns,)) as (column,):
                    _exchange(w, kind, at(k, column), at(best, column))
                _exchange(w, "int32", order.at((*batch, k)), order.at((*batch, best)))
            with w.block(f"if ({at(k, k)} != 0)"):
                with w.block(f"for (int {i} = {k} + 1; {i} < {rows}; ++{i})"):
                    w.put(room, (*batch, i, k), f"{at(i, k)} / {at(k, k)}")
            with w.block(f"for (int {i} = {k} + 1; {i} < {rows}; ++{i})"):
                with w.block(f"for (int {j} = {k} + 1; {j} < {columns}; ++{j})"):
                    w.put(room, (*batch, i, j), f"{at(i, j)} - {at(i, k)} * {at(k, j)}")


def _exchange(w: Writer, kind: str, first: str, second: str) -> None:
    kept = w.fresh("kept")
    w.line(f"{kind} {kept} = {first};")
    w.line(f"{first} = {second};")
    w.line(f"{second} = {kept};")


@rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(w: Writer, eqn: JaxprEqn) -> None:
    pivots, size = w.value(eqn.invars[0]), eqn.params["permutation_size"]
    order = w.store(eqn.outvars[0])
    with w.loops(order.shape[:-1]) as batch:
        with w.loops((size,)) as (i,):
            w.put(order, (*batch, i), str(i))
        k = w.fresh("k")
        with w.block(f"for (int {k} = 0; {k} < {pivots.shape[-1]}; ++{k})"):
            other = w.let(pivots.at((*batch, k)), _INT32).text
            _exchange(w, "int32", order.at((*batch, k)), order.at((*batch, other)))
