"""Rules of reductions: plain ones, `argmax` and `argmin`, running ones (`cumsum` and its like), and those of windows
(pooling, its gradients, and running reductions that JAX writes as windows).

Every reduction is a loop with an accumulator; a host has several of those for a long sum, maximum or minimum, or a row
of them where results are adjacent. Sums and
products of 16-bit floats accumulate in `float32`, as XLA has them; integers wrap; a NaN wins every maximum and minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.rules.shape import number
from lanewise.cpp.emit.values import (
    Index,
    Place,
    Scalar,
    Value,
    minus,
    plus,
    ravel,
    remainder,
    times,
    view,
)
from lanewise.cpp.emit.writer import Writer

Combine = Callable[[str, str], str]
# The parts of a long reduction: the elements of a host's vector.
PARTS = 16


def accumulator(dtype: Any) -> Any:
    """What a reduction of this dtype accumulates in."""
    return np.dtype("float32") if dtypes.is_narrow(dtype) else dtype


def converted(element: str, dtype: Any, to: Any) -> str:
    """An element of a real dtype as another one that holds all its values."""
    return element if dtype == to else f"{dtypes.ctype(to)}({element})"


def combine(kind: str, dtype: Any) -> Combine:
    """The expression that joins two elements: `sum`, `prod`, `max`, `min`, `and`, `or`, `xor`, `logsumexp`."""
    name = dtypes.ctype(dtype)
    if kind in ("sum", "prod"):
        if dtypes.is_signed(dtype) or dtypes.is_unsigned(dtype):
            helper = "lw_add" if kind == "sum" else "lw_mul"
            return lambda a, b: f"{helper}({a}, {b})"
        sign = "+" if kind == "sum" else "*"
        return lambda a, b: f"({a} {sign} {b})"
    if kind in ("max", "min"):
        return lambda a, b: f"lw_{kind}({a}, {b})"
    if kind == "logsumexp":
        return lambda a, b: f"lw_log_add({a}, {b})"
    sign = {"and": "&", "or": "|", "xor": "^"}[kind]
    return lambda a, b: f"{name}({a} {sign} {b})"


def identity(kind: str, dtype: Any) -> Any:
    """What a reduction of nothing gives."""
    if kind in ("sum", "or", "xor"):
        return False if dtypes.is_bool(dtype) else 0
    if kind == "prod":
        return 1
    if kind == "and":
        if dtypes.is_bool(dtype):
            return True
        return -1 if dtypes.is_signed(dtype) else jnp.iinfo(dtype).max
    least = kind in ("max", "logsumexp")
    if dtypes.is_bool(dtype):
        return not least
    if jnp.issubdtype(dtype, jnp.inexact):
        return -np.inf if least else np.inf
    return jnp.iinfo(dtype).min if least else jnp.iinfo(dtype).max


def spread(
    shape: Sequence[int], axes: Sequence[int], outer: Sequence[Index], inner: Sequence[Index]
) -> list[Index]:
    """Indices of the operand: `inner` along `axes`, `outer` along the others."""
    ahead, along = iter(outer), iter(inner)
    return [next(along) if axis in axes else next(ahead) for axis in range(len(shape))]


@rule(*"reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor".split())
def reduce_with(w: Writer, eqn: JaxprEqn) -> None:
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    kind, axes = eqn.primitive.name.removeprefix("reduce_"), sorted(eqn.params["axes"])
    dtype = out.aval.dtype
    wide = accumulator(dtype)
    join = combine(kind, wide)
    start = dtypes.literal(identity(kind, wide), wide)
    room = w.store(out)

    def one_by_one() -> None:
        with w.loops(room.shape) as outer:
            total = w.room((), wide, "total")
            w.put(total, (), start)
            with w.loops([value.shape[axis] for axis in axes]) as inner:
                if value.size:
                    element = value.at(spread(value.shape, axes, outer, inner))
                    w.put(total, (), join(total.at(()), converted(element, dtype, wide)))
            w.put(room, outer, converted(total.at(()), wide, dtype))

    reach = _reach(value, axes)
    if (
        kind not in ("max", "min", "sum")
        or reach is None
        or not w.threads.own_arrays
        or wide != dtype
    ):
        one_by_one()
        return
    # A thread of a GPU has no vectors.
    w.line("#ifdef __CUDACC__")
    one_by_one()
    w.line("#else")
    if reach == "rows":
        _by_rows(w, kind, value, room, axes)
    else:
        _in_parts(w, kind, value, room, axes)
    w.line("#endif")


def _reach(value: Value, axes: Sequence[int]) -> str | None:
    """How a host reduces along axes with vectors: "parts" or "rows", or None.

    What is next to a reduced element and goes into another result is as long as the axes after the reduced ones.
    """
    if not value.size or not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    reduced = math.prod(value.shape[axis] for axis in axes)
    beside = math.prod(value.shape[axes[-1] + 1 :])
    if beside >= PARTS and reduced > 1:
        return "rows"
    if reduced < PARTS or not (len(axes) == 1 or (beside == 1 and value.linear)):
        return None
    return "parts"


def _by_rows(w: Writer, kind: str, value: Value, room: Place, axes: Sequence[int]) -> None:
    """A row of results at a time: each element is joined to its own, in the order of `one_by_one`."""
    join, first = combine(kind, value.dtype), axes[0]
    beside = value.shape[axes[-1] + 1 :]
    start = dtypes.literal(identity(kind, value.dtype), value.dtype)
    with w.loops(value.shape[:first]) as ahead:
        with w.loops(beside) as after:
            w.put(room, (*ahead, *after), start)
        with w.loops([value.shape[axis] for axis in axes]) as along, _in_step(w, beside) as after:
            to = (*ahead, *after)
            w.put(room, to, join(room.at(to), value.at((*ahead, *along, *after))))


@contextmanager
def _in_step(w: Writer, shape: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """Loops, the last of which has independent turns."""
    *most, last = shape
    i = w.fresh("i")
    with w.loops(most) as outer:
        w.line("LW_IN_STEP")
        with w.block(f"for (int {i} = 0; {i} < {last}; ++{i})"):
            yield (*outer, i)


def _in_parts(w: Writer, kind: str, value: Value, room: Place, axes: Sequence[int]) -> None:
    """A sum, the largest or the smallest along axes: of as many parts as a vector holds, then of two each.

    One number after the other, each would wait for the one before. A sum has no order of its own in XLA.
    """
    join, size = combine(kind, value.dtype), math.prod(value.shape[axis] for axis in axes)
    with w.loops(room.shape) as outer, w.block():

        def element(index: Index) -> str:
            if len(axes) == 1:
                return value.at(spread(value.shape, axes, outer, [index]))
            ahead = ravel(room.shape, outer) if outer else 0
            return value.flat(plus(times(ahead, size), index))

        parts, i, k = w.fresh("parts"), w.fresh("i"), w.fresh("k")
        w.line(f"{dtypes.ctype(value.dtype)} {parts}[{PARTS}];")
        w.line("LW_IN_STEP")
        with w.block(f"for (int {i} = 0; {i} < {PARTS}; ++{i})"):
            w.line(f"{parts}[{i}] = {element(i)};")
        whole = size - size % PARTS
        if whole > PARTS:
            with w.block(f"for (int {k} = {PARTS}; {k} < {whole}; {k} += {PARTS})"):
                w.line("LW_IN_STEP")
                with w.block(f"for (int {i} = 0; {i} < {PARTS}; ++{i})"):
                    w.line(f"{parts}[{i}] = {join(f'{parts}[{i}]', element(plus(k, i)))};")
        if whole < size:
            with w.block(f"for (int {i} = 0; {i} < {size - whole}; ++{i})"):
                w.line(f"{parts}[{i}] = {join(f'{parts}[{i}]', element(plus(i, whole)))};")
        half = PARTS // 2
        while half:
            w.line("LW_IN_STEP")
            with w.block(f"for (int {i} = 0; {i} < {half}; ++{i})"):
                w.line(f"{parts}[{i}] = {join(f'{parts}[{i}]', f'{parts}[{i} + {half}]')};")
            half //= 2
        w.put(room, outer, f"{parts}[0]")


@rule("argmax", "argmin")
def arg_extreme(w: Writer, eqn: JaxprEqn) -> None:
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    (axis,) = eqn.params["axes"]
    better = "lw_wins" if eqn.primitive.name == "argmax" else "lw_loses"
    plain = np.dtype("float32") if dtypes.is_narrow(value.dtype) else value.dtype
    room = w.store(out)
    with w.loops(room.shape) as outer:
        first = value.at(spread(value.shape, [axis], outer, [0]))
        best = w.room((), plain, "best")
        w.put(best, (), converted(first, value.dtype, plain))
        w.put(room, outer, number(0, out.aval.dtype))
        index = w.fresh("i")
        w.unroll(value.shape[axis])
        with w.block(f"for (int {index} = 1; {index} < {value.shape[axis]}; ++{index})"):
            element = value.at(spread(value.shape, [axis], outer, [index]))
            found = w.let(converted(element, value.dtype, plain), plain).text
            with w.block(f"if ({better}({found}, {best.at(())}))"):
                w.put(best, (), found)
                w.put(room, outer, number(index, out.aval.dtype))


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(w: Writer, eqn: JaxprEqn) -> None:
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    axis, size = eqn.params["axis"], value.shape[eqn.params["axis"]]
    kind, dtype = eqn.primitive.name.removeprefix("cum"), out.aval.dtype
    wide = accumulator(dtype)
    join = combine(kind, wide)
    room = w.store(out)
    if not room.size:
        return
    with w.loops([n for a, n in enumerate(value.shape) if a != axis]) as outer:
        total = w.room((), wide, "total")
        w.put(total, (), dtypes.literal(identity(kind, wide), wide))
        with w.loops((size,)) as (step,):
            along = minus(size - 1, step) if eqn.params["reverse"] else step
            where = spread(value.shape, [axis], outer, [along])
            element = converted(value.at(where), dtype, wide)
            w.put(total, (), join(total.at(()), element))
            w.put(room, where, converted(total.at(()), wide, dtype))


@rule("reduce")
def reduce(w: Writer, eqn: JaxprEqn) -> None:
    """Any operator, given as a jaxpr; several operands are reduced together."""
    values = [w.value(atom) for atom in eqn.invars]
    operands, starts = values[: len(values) // 2], values[len(values) // 2 :]
    axes = sorted(eqn.params["dimensions"])
    rooms = [w.store(var) for var in eqn.outvars]
    with w.loops(rooms[0].shape) as outer:
        totals = [w.room((), start.dtype, "total") for start in starts]
        for total, start in zip(totals, starts):
            w.put(total, (), start.at(()))
        with w.loops([operands[0].shape[axis] for axis in axes]) as inner:
            if operands[0].size:
                where = spread(operands[0].shape, axes, outer, inner)
                found = [w.let(x.at(where), x.dtype) for x in operands]
                join_into(w, eqn.params["jaxpr"], totals, found)
        for room, total in zip(rooms, totals):
            w.put(room, outer, total.at(()))


def join_into(w: Writer, jaxpr: Any, totals: Sequence[Any], found: Sequence[Value]) -> None:
    """Accumulators become the jaxpr's results for them and the elements found."""
    with w.block():
        outs = w.run(jaxpr, [*totals, *found])
        # Named first: a result may be another accumulator.
        new = [Scalar((), out.dtype, w.let(out.at(()), out.dtype).text) for out in outs]
        for total, out in zip(totals, new):
            w.put(total, (), out.at(()))


# -- windows --------------------------------------------------------------------------------------------

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
    w.copy(room, view(room.shape, dtype, lambda _: dtypes.literal(0, dtype)))
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
