"""A program over a batch, before it runs: traced at one example, with its operands, lanes in front, and its job."""

from __future__ import annotations

import inspect as signature
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.core.objects import over_lanes, refuse_unpacked, taken
from lanewise.core.options import NAMES
from lanewise.job.job import Job, job_for
from lanewise.tracing.decorator import ProgramFunction, lift
from lanewise.tracing.signature import is_array_like
from lanewise.tracing.staging import Staged

_ARRAYS = (jax.Array, np.ndarray)


@dataclass(frozen=True)
class Arguments:
    """Arguments of a batch as a program takes them, and their leaves; `axes`: `in_axes` for what it takes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_axes: Any
    axes: Any
    leaves: tuple[Any, ...]
    tree: Any

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any) -> Arguments:
        for arg in args:
            refuse_unpacked(arg)
        args, kwargs = taken(args, kwargs)
        args, axes = over_lanes(args, in_axes)
        leaves, tree = jax.tree.flatten((args, kwargs))
        return cls(args, kwargs, in_axes, axes, tuple(leaves), tree)


@dataclass(frozen=True, eq=False)
class Batched:
    """A program traced at one example of a batch: what its calls with arguments of these types have in common.

    `axes`: of the leaves that are operands, the axis of lanes; `operand`: which leaves are.
    """

    program: ProgramFunction
    staged: Staged
    operand: tuple[bool, ...]
    axes: tuple[int | None, ...]
    lanes: tuple[int, ...]

    @property
    def varying(self) -> tuple[bool, ...]:
        own = self.staged.program.num_captures
        return (*[False] * own, *(axis is not None for axis in self.axes))

    def operands(self, leaves: Sequence[Any]) -> list[Any]:
        """The operands of a call with these leaves; NumPy's arrays stay in the host's memory."""
        given = (x for x, flag in zip(leaves, self.operand, strict=True) if flag)
        arrays = (x if isinstance(x, _ARRAYS) else jax.numpy.asarray(x) for x in given)
        lanes_first = (
            jax.numpy.moveaxis(x, axis, 0) if axis else x
            for x, axis in zip(arrays, self.axes, strict=True)
        )
        return [*self.staged.captures, *lanes_first]

    def job(self, operands: Sequence[Any], **changes: Any) -> Job:
        """What is asked for, where the operands are; `changes` of the program's options."""
        mapped = tuple((flag,) if self.lanes else () for flag in self.varying)
        platform = _jax.placed(operands)[0]
        options = self.program.options.updated(**changes)
        return job_for(self.staged.program, self.lanes, mapped, options, platform=platform)


def program_of(fun: Callable[..., Any], kwargs: dict[str, Any], asks: str) -> ProgramFunction:
    """The program of what the public function of the name `asks` is given, with keyword arguments that are its own."""
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    try:
        signature.signature(program.python).bind_partial(**kwargs)
    except (TypeError, ValueError):
        meant = [name for name in kwargs if name in NAMES]
        if meant:
            said = ", ".join(f"{name}={kwargs[name]!r}" for name in meant)
            raise OptionError(
                f"{asks} gives keyword arguments to the program, which takes no {', '.join(meant)}. Options are the"
                f" program's own: {asks}(program.with_options({said}), ...)."
            ) from None
    return program


def batched(program: ProgramFunction, given: Arguments) -> Batched:
    """The program traced at the first example."""
    leaves = [jax.numpy.asarray(x) if is_array_like(x) else x for x in given.leaves]
    axes = [
        axis if is_array_like(leaf) else None
        for axis, leaf in zip(_leaf_axes(given), leaves, strict=True)
    ]
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is not None and not -leaf.ndim <= axis < leaf.ndim:
            raise OptionError(
                f"in_axes={given.in_axes!r} maps axis {axis} of an argument of shape {leaf.shape}; give a batch,"
                " or in_axes=None for a lone call."
            )
    size = {leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None}
    if len(size) > 1:
        raise OptionError(
            f"arguments have different sizes along in_axes={given.in_axes!r}: {sorted(size)}."
        )
    examples = [
        leaf if axis is None else jax.lax.index_in_dim(leaf, 0, axis, keepdims=False)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(given.tree, examples)
    staged, _ = program.stage(*args, **kwargs)
    numbers = program.dynamic(range(len(leaves)), args, kwargs)
    operand = tuple(i in numbers for i in range(len(leaves)))
    return Batched(program, staged, operand, tuple(axes[i] for i in numbers), tuple(size))


def _leaf_axes(given: Arguments) -> list[int | None]:
    """One axis for each leaf, keyword arguments along axis 0 as `jax.vmap` has it."""
    in_axes = given.in_axes
    try:
        by_position = _jax.broadcast_axes(given.axes, given.args)
    except ValueError as error:
        raise OptionError(f"in_axes={in_axes!r} does not fit the arguments: {error}") from None
    if not all(axis is None or isinstance(axis, int) for axis in by_position):
        raise OptionError(
            f"in_axes={in_axes!r} must be an int, None, or a tuple with one of these for each argument."
        )
    lone = all(axis is None for axis in by_position) and bool(by_position)
    return [*by_position, *(None if lone else 0 for _ in jax.tree.leaves(given.kwargs))]
