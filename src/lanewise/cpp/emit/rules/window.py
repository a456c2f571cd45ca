"""Rules of windowed reductions: pooling, its gradients, and running reductions that JAX writes as windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.rules.reduce import accumulator, combine, converted, identity, join_into
from lanewise.cpp.emit.values import Index, minus, plus, ravel, remainder, times
from lanewise.cpp.emit.writer import Writer

_INT32 = np.dtype("int32")


@contextmanager
def window(
    w: Writer, shape: Sequence[int], outer: Sequence[Index], params: dict[str, Any]
) -> Iterator[list[Index]]:
    """Loop over the elements of an operand that the window at `outer` covers; padding and holes are left out."""
    rank = len(shape)
    base = params.get("base_dilation") or (1,) * rank
    dilation = params.get("window_dilation") or (1,) * rank
    with w.loops(params["window_dimensions"]) as inside:
        indices: list[Index] = []
        tests: list[str] = []
        for axis in range(rank):
            low, high = params["padding"][axis]
            stride = params["window_strides"][axis]
            place = minus(
                plus(times(outer[axis], stride), times(inside[axis], dilation[axis])), low
            )
            if not isinstance(place, int):
                place = w.let(place, _INT32, "at").text
            reach = (shape[axis] - 1) * base[axis]
            if low > 0 or shape[axis] == 0:
                tests.append(f"{place} >= 0")
            if low + high > 0 or low < 0 or shape[axis] == 0:
                tests.append(f"{place} <= {reach}")
            if base[axis] != 1:
                tests.append(f"{remainder(place, base[axis])} == 0")
            indices.append(place if base[axis] == 1 else f"{place} / {base[axis]}")
        with w.block(f"if ({' && '.join(tests)})" if tests else ""):
            yield indices


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def reduce_window_with(w: Writer, eqn: JaxprEqn) -> None:
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    kind, dtype = eqn.primitive.name.removeprefix("reduce_window_"), out.aval.dtype
    wide = accumulator(dtype)
    join = combine(kind, wide)
    room = w.store(out)
    if not room.size:
        return
    with w.loops(room.shape) as outer:
        total = w.room((), wide, "total")
        w.put(total, (), dtypes.literal(identity(kind, wide), wide))
        with window(w, value.shape, outer, eqn.params) as indices:
            w.put(total, (), join(total.at(()), converted(value.at(indices), dtype, wide)))
        w.put(room, outer, converted(total.at(()), wide, dtype))


@rule("reduce_window")
def reduce_window(w: Writer, eqn: JaxprEqn) -> None:
    """Any operator, given as a jaxpr; padding counts as the initial value, which is the operator's identity."""
    values = [w.value(atom) for atom in eqn.invars]
    operands, starts = values[: len(values) // 2], values[len(values) // 2 :]
    rooms = [w.store(var) for var in eqn.outvars]
    if not rooms[0].size:
        return
    with w.loops(rooms[0].shape) as outer:
        totals = [w.room((), start.dtype, "total") for start in starts]
        for total, start in zip(totals, starts):
            w.put(total, (), start.at(()))
        with window(w, operands[0].shape, outer, eqn.params) as indices:
            join_into(
                w, eqn.params["jaxpr"], totals, [w.let(x.at(indices), x.dtype) for x in operands]
            )
        for room, total in zip(rooms, totals):
            w.put(room, outer, total.at(()))


@rule("select_and_scatter_add")
def select_and_scatter_add(w: Writer, eqn: JaxprEqn) -> None:
    """The gradient of pooling: each window's cotangent goes to the element that was selected in it."""
    source, operand = map(w.value, eqn.invars)
    (out,) = eqn.outvars
    dtype = out.aval.dtype
    room = w.store(out)
    w.copy(room, w.view(room.shape, dtype, lambda _: dtypes.literal(0, dtype)))
    if not source.size or not operand.size:
        return
    join = combine("sum", dtype)
    with w.loops(source.shape) as outer:
        chosen = _select(w, operand, outer, eqn.params)
        with w.block(f"if ({chosen} >= 0)"):
            now = converted(room.flat(chosen), dtype, accumulator(dtype))
            new = join(now, converted(source.at(outer), dtype, accumulator(dtype)))
            w.put_flat(room, chosen, converted(new, accumulator(dtype), dtype))


@rule("select_and_gather_add")
def select_and_gather_add(w: Writer, eqn: JaxprEqn) -> None:
    """The derivative of pooling: the tangent of the element selected in each window."""
    tangents, operand = map(w.value, eqn.invars)
    (out,) = eqn.outvars
    room = w.store(out)
    zero = dtypes.literal(0, out.aval.dtype)
    if not room.size:
        return
    with w.loops(room.shape) as outer:
        chosen = _select(w, operand, outer, eqn.params)
        w.put(room, outer, f"{chosen} < 0 ? {zero} : {tangents.flat(chosen)}")


def _select(w: Writer, operand: Any, outer: Sequence[Index], params: dict[str, Any]) -> str:
    """The position of the first largest (`ge`) or smallest (`le`) element of a window; -1 if it covers none."""
    sign = {"ge": ">=", "le": "<="}[params["select_prim"].name]
    best = w.room((), operand.dtype, "best")
    chosen = w.fresh("chosen")
    w.line(f"int {chosen} = -1;")
    with window(w, operand.shape, outer, params) as indices:
        found = w.let(operand.at(indices), operand.dtype).text
        with w.block(f"if ({chosen} < 0 || !({best.at(())} {sign} {found}))"):
            w.put(best, (), found)
            w.line(f"{chosen} = {ravel(operand.shape, indices)};")
    return chosen
