"""Rules of indexing at run time: dynamic slices, gather, scatter.

JAX's `gather` reads windows of the operand whose corners an index vector gives; `scatter` combines windows of updates
into it. What happens to a window that lies outside is XLA's: clipped to the nearest window inside (`CLIP`, and a
`gather` that promised), filled or dropped whole (`FILL_OR_DROP`, and a `scatter` that promised).

One index vector, the usual case of a program for one example, is read once into names, and the result of a `gather` or
`dynamic_slice` is then a view of the operand. Scatters write in place where nothing else needs the operand's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.core.accumulate import Places
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.rules.shape import rename
from lanewise.cpp.emit.values import Index, Scalar, Value, plus, view, window
from lanewise.cpp.emit.writer import Writer

_INT32 = np.dtype("int32")
_BOOL = np.dtype(bool)


def clipped(index: str, most: int) -> Index:
    """An index clipped to 0 .. most, folded where it is known."""
    if most <= 0:
        return 0
    return min(int(index), most) if index.isdigit() else f"lw_clip({index}, {most})"


# -- dynamic slices --------------------------------------------------------------------------------------


def corner_of(
    w: Writer, starts: Sequence[Value], shape: Sequence[int], window: Sequence[int]
) -> list[Index]:
    """Where a window begins, clipped so that it lies inside."""
    corner: list[Index] = []
    for start, size, width in zip(starts, shape, window):
        at = clipped(start.at(()), size - width)
        corner.append(at if isinstance(at, int) else w.let(at, _INT32, "at").text)
    return corner


@rule("dynamic_slice")
def dynamic_slice(w: Writer, eqn: JaxprEqn) -> None:
    value, *starts = map(w.value, eqn.invars)
    sizes = eqn.params["slice_sizes"]
    corner = corner_of(w, starts, value.shape, sizes)
    part = window(value, corner, sizes) if eqn.outvars[0].aval.size > 1 else None
    if part is not None and w.threads.own_arrays:
        w.define(eqn.outvars[0], part)
        return

    def element(indices: tuple[Index, ...]) -> str:
        return value.at([plus(at, i) for at, i in zip(corner, indices)])

    rename(w, eqn.outvars[0], view(sizes, value.dtype, element, value, in_rows=value.in_rows))


@rule("dynamic_update_slice")
def dynamic_update_slice(w: Writer, eqn: JaxprEqn) -> None:
    operand, update, *starts = map(w.value, eqn.invars)
    corner = corner_of(w, starts, operand.shape, update.shape)
    update = _apart(w, update, operand)
    room = w.editable(eqn.invars[0])
    with w.loops(update.shape) as indices:
        if update.size:
            w.put(room, [plus(at, i) for at, i in zip(corner, indices)], update.at(indices))
    w.give(eqn.outvars[0], room)


def _apart(w: Writer, value: Value, operand: Value) -> Value:
    """The value itself, or a copy if it reads the memory that is about to be written."""
    if not value.roots & operand.roots:
        return value
    room = w.room(value.shape, value.dtype)
    w.copy(room, value)
    return room


# -- gather ----------------------------------------------------------------------------------------------


@rule("gather")
def gather(w: Writer, eqn: JaxprEqn) -> None:
    operand, starts = map(w.value, eqn.invars)
    (out,) = eqn.outvars
    numbers, mode = eqn.params["dimension_numbers"], _mode(eqn.params["mode"])
    windows = eqn.params["slice_sizes"]
    most = [size - window for size, window in zip(operand.shape, windows)]
    offset_axes = [int(axis) for axis in numbers.offset_dims]
    batch_axes = [axis for axis in range(len(out.aval.shape)) if axis not in offset_axes]
    flat_axes = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window_axes = [axis for axis in range(len(operand.shape)) if axis not in flat_axes]
    fills = mode == GatherScatterMode.FILL_OR_DROP
    filler = _filler(w, eqn) if fills else ""

    def corner_at(batch: Sequence[Index]) -> tuple[list[Index], str]:
        """Where the window of an index vector begins, and the test that it lies inside ("" if none is needed)."""
        corner: list[Index] = [0] * len(operand.shape)
        tests = []
        for axis, batch_axis in zip(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims
        ):
            corner[axis] = batch[batch_axis]
        for place, axis in enumerate(numbers.start_index_map):
            start = starts.at((*batch, place))
            corner[axis] = f"(int32){_grouped(start)}" if fills else clipped(start, most[axis])
            if fills:
                tests.append(f"lw_inside({start}, {most[axis]})")
        return corner, " && ".join(tests)

    def element_of(corner: Sequence[Index], inside: str, indices: Sequence[Index]) -> str:
        where = list(corner)
        for axis, offset in zip(window_axes, offset_axes):
            where[axis] = plus(corner[axis], indices[offset])
        found = operand.at(where) if operand.size else filler
        return f"({inside} ? {found} : {filler})" if inside else found

    if starts.size == len(numbers.start_index_map) and out.aval.size > 1:
        found, inside = corner_at([0] * len(batch_axes))
        corner = [at if isinstance(at, int) else w.let(at, _INT32, "at").text for at in found]
        test = w.let(inside, _BOOL, "inside").text if inside else ""
        reads = view(out.aval.shape, operand.dtype, lambda i: element_of(corner, test, i), operand)
        rename(w, out, reads)
        return

    def element(indices: tuple[Index, ...]) -> str:
        corner, inside = corner_at([indices[axis] for axis in batch_axes])
        return element_of(corner, inside, indices)

    w.compute(out, view(out.aval.shape, operand.dtype, element, operand, starts))


def _mode(given: Any) -> Any:
    mode = GatherScatterMode.from_any(given)
    if mode == GatherScatterMode.ONE_HOT:
        raise Unsupported("the mode ONE_HOT")
    return mode


def _filler(w: Writer, eqn: JaxprEqn) -> str:
    """What a window outside is filled with."""
    dtype, given = eqn.outvars[0].aval.dtype, eqn.params["fill_value"]
    if _jax.is_extended(dtype):
        return f"{dtypes.ctype(dtype)}()"
    if given is None:
        given = False
        if jnp.issubdtype(dtype, jnp.inexact):
            given = np.nan
        elif jnp.issubdtype(dtype, jnp.integer):
            signed = jnp.issubdtype(dtype, jnp.signedinteger)
            given = jnp.iinfo(dtype).min if signed else jnp.iinfo(dtype).max
    return w.constant(np.asarray(given).astype(dtype), dtype).at(())


def _grouped(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"


# -- scatter ---------------------------------------------------------------------------------------------


@rule("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
def scatter(w: Writer, eqn: JaxprEqn) -> None:
    operand, starts, updates = map(w.value, eqn.invars)
    updates, starts = _apart(w, updates, operand), _apart(w, starts, operand)
    room = w.editable(eqn.invars[0])
    w.give(eqn.outvars[0], room)

    def put(where: Sequence[Index], update: str) -> None:
        w.put(room, where, _combined(w, eqn, room.at(where), update))

    places = Places(eqn.params["dimension_numbers"], eqn.params["mode"])
    at_windows(w, operand.shape, starts, updates, places, put)


def at_windows(
    w: Writer,
    shape: Sequence[int],
    starts: Value,
    updates: Value,
    places: Places,
    put: Callable[[Sequence[Index], str], None],
) -> None:
    """Put each element of the updates where its window lies in an array of this shape, if it lies there."""
    numbers, clip = places.dimension_numbers, _mode(places.mode) == GatherScatterMode.CLIP
    flat_axes = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window_axes = [axis for axis in range(len(shape)) if axis not in flat_axes]
    update_axes = [int(axis) for axis in numbers.update_window_dims]
    batch_axes = [axis for axis in range(len(updates.shape)) if axis not in update_axes]
    width = [1] * len(shape)
    for axis, update_axis in zip(window_axes, update_axes):
        width[axis] = updates.shape[update_axis]
    if not updates.size or 0 in shape:
        return
    # One index vector after the other; of several that hit the same element the last one counts, as XLA:CPU has it.
    with w.loops([updates.shape[axis] for axis in batch_axes]) as batch:
        corner: list[Index] = [0] * len(shape)
        tests = []
        for axis, batch_axis in zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
        ):
            corner[axis] = batch[batch_axis]
        for place, axis in enumerate(numbers.scatter_dims_to_operand_dims):
            start, most = starts.at((*batch, place)), shape[axis] - width[axis]
            at = clipped(start, most) if clip else f"(int32){_grouped(start)}"
            corner[axis] = at if isinstance(at, int) else w.let(at, _INT32, "at").text
            if not clip:
                tests.append(f"lw_inside({start}, {most})")
        with w.block(f"if ({' && '.join(tests)})" if tests else ""):
            with w.loops([updates.shape[axis] for axis in update_axes]) as window:
                indices: list[Index] = [0] * len(updates.shape)
                for axis, index in [*zip(batch_axes, batch), *zip(update_axes, window)]:
                    indices[axis] = index
                where = list(corner)
                for axis, index in zip(window_axes, window):
                    where[axis] = plus(corner[axis], index)
                put(where, updates.at(indices))


def _combined(w: Writer, eqn: JaxprEqn, old: str, update: str) -> str:
    """The element that an update makes of the one that was there."""
    jaxpr, consts = eqn.params["update_jaxpr"], eqn.params["update_consts"]
    if jaxpr is None:
        return update
    if consts:
        jaxpr = _jax.close_jaxpr(jaxpr, consts)
    dtype = eqn.outvars[0].aval.dtype
    (new,) = w.run(jaxpr, [Scalar((), dtype, old), Scalar((), dtype, update)])
    return new.at(())
