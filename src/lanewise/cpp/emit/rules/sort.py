"""Rules of sorting.

`sort` is stable and orders as JAX does: zeros are equal whatever their sign, NaNs are equal and come last, complex
numbers go by real and then imaginary part. Short axes are sorted by rounds of comparing neighbours, which unroll and
stay in registers; longer ones by merging a permutation bottom-up, so that any number of operands moves once.

`top_k` keeps the best so far in order; a few of them in registers, past which every element goes whether it belongs
among them or not (a branch that some lane of a warp takes at almost every element costs more). It goes by XLA's total
order, where -0 is below 0 and a NaN's sign counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.rules.reduce import spread
from lanewise.cpp.emit.rules.shape import number
from lanewise.cpp.emit.values import Index, Value
from lanewise.cpp.emit.writer import Writer

# Longer axes are merged instead of compared neighbour by neighbour.
NETWORK = 8
# The most that `top_k` keeps in registers.
FEW = 8

_INT32 = np.dtype("int32")


def _before(keys: Sequence[tuple[str, str]], values: Sequence[Value]) -> str:
    """Whether the first of each pair of elements sorts before the second: by the first key, or the next if equal."""
    (first, second), value = keys[0], values[0]
    name = "lw_complex_before" if dtypes.is_complex(value.dtype) else "lw_before"
    if dtypes.is_narrow(value.dtype):
        first, second = f"float32({first})", f"float32({second})"
    less = f"{name}({first}, {second})"
    if len(keys) == 1:
        return less
    return f"({less} || (!{name}({second}, {first}) && {_before(keys[1:], values[1:])}))"


@rule("sort")
def sort(w: Writer, eqn: JaxprEqn) -> None:
    values = [w.value(atom) for atom in eqn.invars]
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    shape = values[0].shape
    size = shape[axis]
    others = [n for a, n in enumerate(shape) if a != axis]
    rooms = [w.store(var) for var in eqn.outvars]
    if not rooms[0].size:
        return
    if size <= NETWORK:
        for room, value in zip(rooms, values):
            w.copy(room, value)
        with w.loops(others) as outer:
            for start in range(size):
                with w.loops(((size - start % 2) // 2,)) as (pair,):
                    low = f"2 * {pair} + {start % 2}" if pair != 0 else start % 2
                    _swap(w, rooms, keys, axis, outer, low)
        return
    with w.loops(others) as outer:
        order, spare = w.local(_INT32, size), w.local(_INT32, size)
        with w.loops((size,)) as (i,):
            w.line(f"{order}[{i}] = {i};")

        def key(value: Value, index: str) -> str:
            return value.at(spread(shape, [axis], outer, [index]))

        test = _before([(key(v, "a"), key(v, "b")) for v in values[:keys]], values)
        before = w.fresh("before")
        w.line(f"auto {before} = [&](int32 a, int32 b) {{ return {test}; }};")
        # Runs double in length, going to and fro between the two arrays.
        length = 1
        while length < size:
            w.line(f"lw_merge_runs({order}, {spare}, {length}, {size}, {before});")
            order, spare = spare, order
            length *= 2
        with w.loops((size,)) as (i,):
            for room, value in zip(rooms, values):
                where = spread(shape, [axis], outer, [i])
                w.put(room, where, key(value, f"{order}[{i}]"))


def _swap(
    w: Writer, rooms: Sequence[Value], keys: int, axis: int, outer: Sequence[Index], low: Index
) -> None:
    """Exchange two neighbours that are in the wrong order."""
    shape = rooms[0].shape
    high = low + 1 if isinstance(low, int) else f"{low} + 1"
    pairs = [
        (
            room.at(spread(shape, [axis], outer, [low])),
            room.at(spread(shape, [axis], outer, [high])),
        )
        for room in rooms
    ]
    test = _before([(second, first) for first, second in pairs[:keys]], rooms)
    with w.block(f"if ({test})"):
        for room, (first, second) in zip(rooms, pairs):
            kept = w.let(first, room.dtype).text
            w.line(f"{first} = {second};")
            w.line(f"{second} = {kept};")


def _rank(element: str, dtype: Any) -> str:
    return f"lw_rank(float32({element}))" if dtypes.is_narrow(dtype) else f"lw_rank({element})"


def _rank_dtype(dtype: Any) -> Any:
    if not dtypes.is_float(dtype):
        return dtype
    return np.dtype("int64") if dtypes.ctype(dtype) == "float64" else _INT32


@rule("eq_to", "lt_to", "le_to")
def compare_totally(w: Writer, eqn: JaxprEqn) -> None:
    """Comparisons in the total order."""
    sign = {"eq_to": "==", "lt_to": "<", "le_to": "<="}[eqn.primitive.name]
    first, second = map(w.value, eqn.invars)
    if dtypes.is_complex(first.dtype):
        raise Unsupported("the total order of complex numbers")
    form = lambda a, b: f"({_rank(a, first.dtype)} {sign} {_rank(b, first.dtype)})"  # noqa: E731
    w.map(eqn.outvars[0], form, first, second)


@rule("top_k")
def top_k(w: Writer, eqn: JaxprEqn) -> None:
    value, (best, places) = w.value(eqn.invars[0]), eqn.outvars
    if dtypes.is_complex(value.dtype):
        raise Unsupported("top_k of complex numbers")
    count, axis = eqn.params["k"], eqn.params.get("axis", len(value.shape) - 1)
    axis %= len(value.shape)
    top, at = w.store(best), w.store(places)
    if not top.size:
        return

    def above(a: str, b: str) -> str:
        return f"{_rank(a, value.dtype)} > {_rank(b, value.dtype)}"

    with w.loops([n for a, n in enumerate(value.shape) if a != axis]) as outer:

        def place(index: Index) -> list[Index]:
            return spread(value.shape, [axis], outer, [index])

        index, slot = w.fresh("i"), w.fresh("slot")
        if count <= FEW:
            few = [
                w.local(dtype, count) for dtype in (value.dtype, _rank_dtype(value.dtype), _INT32)
            ]
            w.unroll(value.shape[axis])
            with w.block(f"for (int {index} = 0; {index} < {value.shape[axis]}; ++{index})"):
                found = w.let(value.at(place(index)), value.dtype).text
                rank = _rank(found, value.dtype)
                w.line(f"lw_keep_few<{count}>({', '.join(few)}, {found}, {rank}, {index});")
            with w.loops((count,)) as (kept,):
                w.put(top, place(kept), f"{few[0]}[{kept}]")
                w.put(at, place(kept), number(f"{few[2]}[{kept}]", places.aval.dtype))
            return
        with w.block(f"for (int {index} = 0; {index} < {value.shape[axis]}; ++{index})"):
            found = w.let(value.at(place(index)), value.dtype).text
            w.line(f"int {slot} = {index} < {count} ? {index} : {count};")
            with w.block(f"while ({slot} > 0 && {above(found, top.at(place(f'{slot} - 1')))})"):
                with w.block(f"if ({slot} < {count})"):
                    w.put(top, place(slot), top.at(place(f"{slot} - 1")))
                    w.put(at, place(slot), at.at(place(f"{slot} - 1")))
                w.line(f"--{slot};")
            with w.block(f"if ({slot} < {count})"):
                w.put(top, place(slot), found)
                w.put(at, place(slot), number(index, places.aval.dtype))
