"""Axes of lanes: flattened into one for a machine, and what there is where one has no lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise.core.program import Program

# For each operand, which axes of lanes it has.
Mapped = tuple[tuple[bool, ...], ...]


def lanes_first(
    operands: Sequence[Any], lanes: tuple[int, ...], mapped: Mapped
) -> tuple[list[Any], list[bool]]:
    """Operands with all their lane axes flattened into one; those that do not vary stay as they are."""
    flat, flags = [], []
    for value, axes in zip(operands, mapped, strict=True):
        varies = any(axes)
        if varies:
            inner = value.shape[sum(axes) :]
            spread = tuple(size if has else 1 for size, has in zip(lanes, axes, strict=True))
            value = jnp.broadcast_to(value.reshape(*spread, *inner), (*lanes, *inner))
            value = value.reshape(math.prod(lanes), *inner)
        flat.append(value)
        flags.append(varies)
    return flat, flags


def one_lane(program: Program) -> Callable[..., list[Any]]:
    """A program without recursion as an ordinary function."""
    entry = program.functions[program.entry]

    def run(*values: Any) -> list[Any]:
        captured = [values[i] for i in entry.captures]
        return _jax.eval_jaxpr(entry.jaxpr, *captured, *values[program.num_captures :])

    return run


def of_rows(
    operands: Sequence[Any], rows: Any, lanes: tuple[int, ...], mapped: Mapped
) -> tuple[list[Any], Mapped]:
    """The operands of some lanes, and which of them have an axis of those lanes."""
    flat, flags = lanes_first(operands, lanes, mapped)
    taken = [x[rows] if varies else x for x, varies in zip(flat, flags, strict=True)]
    return taken, tuple((varies,) for varies in flags)


def with_constants(constants: Sequence[Any], mapped: Mapped, lanes: tuple[int, ...]) -> Mapped:
    """Which lane axes operands have, those of a program's constants first, which have none."""
    return (*[(False,) * len(lanes)] * len(constants), *mapped)


def with_axes(
    value: Any, found: tuple[bool, ...], wanted: tuple[bool, ...], lanes: tuple[int, ...]
) -> Any:
    """A value that has these of the lane axes in front, with those that are wanted."""
    for axis, (have, want) in enumerate(zip(found, wanted, strict=True)):
        place = sum(wanted[:axis])
        if want and not have:
            whole = jnp.expand_dims(value, place)
            value = jnp.broadcast_to(
                whole, (*whole.shape[:place], lanes[axis], *whole.shape[place + 1 :])
            )
        elif have and not want:
            # By what it depends on, the answer is the same for all of the axis.
            value = jax.lax.index_in_dim(value, 0, place, keepdims=False)
    return value
