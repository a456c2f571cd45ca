"""Rules of what moves elements and computes nothing.

Most of it is a view: the result names its operand's elements by other indices, and no code is written. Results that
gather elements of several operands (`concatenate`, `pad`, `stack`) are stored, each operand's element read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lanewise._jax import JaxprEqn, Var
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.values import (
    Index,
    Mapped,
    Part,
    Reshaped,
    Scalar,
    Stored,
    Unwritten,
    Value,
    minus,
    plus,
    ravel,
    remainder,
    times,
    view,
    window,
)
from lanewise.cpp.emit.writer import Writer


def rename(w: Writer, var: Var, value: Value) -> None:
    """Bind an outvar to a view; one element gets a name, as every scalar does."""
    if value.shape or isinstance(value, Scalar):
        w.define(var, value)
    else:
        w.compute(var, value)


def with_shape(value: Value, shape: Sequence[int]) -> Value:
    """The elements in the same row-major order under another shape."""
    shape = tuple(shape)
    if value.shape == shape:
        return value
    if isinstance(value, Stored | Part) and shape:
        return replace(value, shape=shape)
    if 0 in shape:
        return Reshaped(shape, value.dtype, value)
    groups = _split_axes(value.shape, shape)
    if groups is None:
        return Reshaped(shape, value.dtype, value)

    # Axes are only split, and those of one element come or go: no division is needed to find the element.
    def element(indices: tuple[Index, ...]) -> str:
        moved: list[Index] = [0] * len(value.shape)
        for axis, parts in groups.items():
            moved[axis] = ravel([shape[part] for part in parts], [indices[part] for part in parts])
        return value.at(moved)

    last = len(shape) - 1, len(value.shape) - 1
    in_rows = value.in_rows and bool(groups) and (max(groups.values())[-1], max(groups)) == last
    return view(shape, value.dtype, element, value, in_rows=in_rows)


def _split_axes(before: Sequence[int], after: Sequence[int]) -> dict[int, list[int]] | None:
    """The new axes that each axis is split into, by row-major order; None if some are joined.

    >>> _split_axes((16, 1, 128), (16, 4, 32))
    {0: [0], 2: [1, 2]}
    >>> _split_axes((16, 4, 32), (16, 128)) is None
    True
    """
    found: dict[int, list[int]] = {}
    ahead = iter([axis for axis, size in enumerate(after) if size != 1])
    for axis, size in enumerate(before):
        parts: list[int] = []
        while math.prod(after[part] for part in parts) < size:
            parts.append(next(ahead))
        if math.prod(after[part] for part in parts) != size:
            return None
        if parts:
            found[axis] = parts
    return found


def permuted(value: Value, permutation: Sequence[int]) -> Value:
    """The value with its axes in another order."""
    shape = [value.shape[axis] for axis in permutation]
    places = [permutation.index(axis) for axis in range(len(permutation))]
    in_rows = value.in_rows and places[-1:] == [len(places) - 1]
    element = lambda i: value.at([i[place] for place in places])  # noqa: E731
    return view(shape, value.dtype, element, value, in_rows=in_rows)


def part(value: Value, axis: int, start: int, size: int) -> Value:
    """`size` elements of one axis, from `start`."""
    shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])

    def element(indices: tuple[Index, ...]) -> str:
        moved = list(indices)
        moved[axis] = plus(indices[axis], start)
        return value.at(moved)

    return view(shape, value.dtype, element, value, in_rows=value.in_rows)


def number(index: Index, dtype: Any) -> str:
    """An index as a number of a dtype."""
    if isinstance(index, int):
        return dtypes.literal(index, dtype)
    if dtypes.is_narrow(dtype) or dtypes.is_complex(dtype):
        return f"{dtypes.ctype(dtype)}(float32({index}))"
    return f"{dtypes.ctype(dtype)}({index})"


@rule("broadcast_in_dim")
def broadcast_in_dim(w: Writer, eqn: JaxprEqn) -> None:
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars
    shape, axes = tuple(out.aval.shape), eqn.params["broadcast_dimensions"]
    if not value.shape and shape:
        w.define(out, Mapped(shape, value.dtype, lambda element: element, (value,)))
        return

    def element(indices: tuple[Index, ...]) -> str:
        return value.at([0 if s == 1 else indices[a] for s, a in zip(value.shape, axes)])

    rename(w, out, view(shape, value.dtype, element, value))


@rule("reshape")
def reshape(w: Writer, eqn: JaxprEqn) -> None:
    value = w.value(eqn.invars[0])
    if eqn.params["dimensions"] is not None:
        value = permuted(value, eqn.params["dimensions"])
    rename(w, eqn.outvars[0], with_shape(value, eqn.outvars[0].aval.shape))


@rule("squeeze", "expand_dims")
def squeeze(w: Writer, eqn: JaxprEqn) -> None:
    rename(w, eqn.outvars[0], with_shape(w.value(eqn.invars[0]), eqn.outvars[0].aval.shape))


@rule("transpose")
def transpose(w: Writer, eqn: JaxprEqn) -> None:
    permutation = tuple(eqn.params["permutation"])
    rename(w, eqn.outvars[0], permuted(w.value(eqn.invars[0]), permutation))


@rule("rev")
def rev(w: Writer, eqn: JaxprEqn) -> None:
    value, axes = w.value(eqn.invars[0]), eqn.params["dimensions"]

    def element(indices: tuple[Index, ...]) -> str:
        return value.at(
            [minus(value.shape[a] - 1, i) if a in axes else i for a, i in enumerate(indices)]
        )

    rename(w, eqn.outvars[0], view(value.shape, value.dtype, element, value))


@rule("slice")
def slice_(w: Writer, eqn: JaxprEqn) -> None:
    value, starts = w.value(eqn.invars[0]), eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    shape = eqn.outvars[0].aval.shape
    whole = window(value, starts, shape) if shape and set(strides) == {1} else None
    if whole is not None and w.threads.own_arrays:
        w.define(eqn.outvars[0], whole)
        return

    def element(indices: tuple[Index, ...]) -> str:
        return value.at(
            [plus(times(i, by), start) for i, start, by in zip(indices, starts, strides)]
        )

    in_rows = value.in_rows and strides[-1] == 1
    rename(w, eqn.outvars[0], view(shape, value.dtype, element, value, in_rows=in_rows))


@rule("split")
def split(w: Writer, eqn: JaxprEqn) -> None:
    value, axis = w.value(eqn.invars[0]), eqn.params["axis"]
    start = 0
    for var, size in zip(eqn.outvars, eqn.params["sizes"]):
        rename(w, var, part(value, axis, start, size))
        start += size


@rule("unstack")
def unstack(w: Writer, eqn: JaxprEqn) -> None:
    value, axis = w.value(eqn.invars[0]), eqn.params["axis"]
    for place, var in enumerate(eqn.outvars):
        rename(w, var, with_shape(part(value, axis, place, 1), var.aval.shape))


@rule("tile")
def tile(w: Writer, eqn: JaxprEqn) -> None:
    value, (out,) = w.value(eqn.invars[0]), eqn.outvars

    def element(indices: tuple[Index, ...]) -> str:
        pairs = zip(indices, value.shape, out.aval.shape)
        return value.at([i if size == all_ else remainder(i, size) for i, size, all_ in pairs])

    rename(w, out, view(out.aval.shape, value.dtype, element, value))


@rule("iota")
def iota(w: Writer, eqn: JaxprEqn) -> None:
    (out,), axis = eqn.outvars, eqn.params["dimension"]
    dtype = out.aval.dtype
    w.define(out, view(out.aval.shape, dtype, lambda indices: number(indices[axis], dtype)))


@rule("unfilled")
def unfilled(w: Writer, eqn: JaxprEqn) -> None:
    """A tape at its start (`diff/tape.py`): no code. A reader that needs an element gets what XLA would give, zero."""
    (out,) = eqn.outvars
    zero = dtypes.literal(0, out.aval.dtype)
    w.define(out, Unwritten(tuple(out.aval.shape), out.aval.dtype, zero))


@rule("empty2")
def empty2(w: Writer, eqn: JaxprEqn) -> None:
    """A scalar of any value, which JAX puts where a branch has nothing to give (the derivative of `jnp.diagonal`)."""
    (out,) = eqn.outvars
    w.define(out, Unwritten((), out.aval.dtype, dtypes.literal(0, out.aval.dtype)))


@rule("concatenate")
def concatenate(w: Writer, eqn: JaxprEqn) -> None:
    axis, room = eqn.params["dimension"], w.store(eqn.outvars[0])
    start = 0
    for atom in eqn.invars:
        value = w.value(atom)
        with w.loops(value.shape) as indices:
            moved = list(indices)
            moved[axis] = plus(indices[axis], start)
            if value.size:
                w.put(room, moved, value.at(indices))
        start += value.shape[axis]


@rule("stack")
def stack(w: Writer, eqn: JaxprEqn) -> None:
    axis, room = eqn.params["axis"], w.store(eqn.outvars[0])
    for place, atom in enumerate(eqn.invars):
        value = w.value(atom)
        with w.loops(value.shape) as indices:
            w.put(room, (*indices[:axis], place, *indices[axis:]), value.at(indices))


@rule("pad")
def pad(w: Writer, eqn: JaxprEqn) -> None:
    """Fill, then write the operand's elements where they go; negative padding leaves some out."""
    value, filler = w.value(eqn.invars[0]), w.value(eqn.invars[1])
    config = eqn.params["padding_config"]
    room = w.store(eqn.outvars[0])
    if room.size != value.size or any(low or high for low, high, _ in config):
        w.copy(room, Mapped(room.shape, room.dtype, lambda element: element, (filler,)))
    if not value.size or not room.size:
        return
    with w.loops(value.shape) as indices:
        moved: list[Index] = []
        inside: list[str] = []
        for axis, (low, high, interior) in enumerate(config):
            target = plus(times(indices[axis], interior + 1), low)
            moved.append(target)
            if low < 0:
                inside.append(f"{target} >= 0")
            if high < 0:
                inside.append(f"{target} < {room.shape[axis]}")
        if inside:
            with w.block(f"if ({' && '.join(inside)})"):
                w.put(room, moved, value.at(indices))
        else:
            w.put(room, moved, value.at(indices))
