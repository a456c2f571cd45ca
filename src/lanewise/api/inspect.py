"""`lanewise.inspect`: a program, its blocks, their storage and cost, and how it would run."""

from __future__ import annotations

import inspect as signature
from collections.abc import Callable
from typing import Any

import jax

from lanewise import _jax
from lanewise.api.inspection import Inspection, levels_of
from lanewise.blocks.analysis import storage
from lanewise.core.errors import OptionError
from lanewise.core.objects import over_lanes, taken
from lanewise.core.options import NAMES
from lanewise.job.job import blocks_of, job_for
from lanewise.rules.run import on_host
from lanewise.tracing.decorator import ProgramFunction, lift
from lanewise.tracing.signature import is_array_like


def inspect(fun: Callable[..., Any], *args: Any, in_axes: Any = 0, **kwargs: Any) -> Inspection:
    """Show how a program would run for these arguments, batched along `in_axes` (None for a lone call).

    Nothing runs but, where it decides how, a sample of the lanes, as in a call outside `jit`; inside it the code alone
    decides. `fun` may be a program, a plain function (lifted first) or what `lanewise.vmap` takes; options are the
    program's own.

    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.program
    ... def halvings(n):
    ...     count = 0
    ...     while n > 1:
    ...         n = n // 2
    ...         count += 1
    ...     return count
    >>> found = lw.inspect(halvings.with_options(carrier="ticks"), jnp.arange(8))
    >>> print(found.plan.schedule, "by", found.plan.carrier)
    plain by ticks
    >>> "while" in found.program.text
    True
    """
    program = fun if isinstance(fun, ProgramFunction) else lift(fun)
    _refuse_options(program, kwargs)
    args, kwargs = taken(args, kwargs)
    args, in_axes = over_lanes(args, in_axes)
    args, kwargs = jax.tree.map(_array, (args, kwargs))
    leaves, tree = jax.tree.flatten((args, kwargs))
    axes = _leaf_axes(in_axes, args, kwargs)
    axes = [axis if is_array_like(leaf) else None for axis, leaf in zip(axes, leaves, strict=True)]
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is not None and not -leaf.ndim <= axis < leaf.ndim:
            raise OptionError(
                f"in_axes={in_axes!r} maps axis {axis} of an argument of shape {leaf.shape}; give a batch,"
                " or in_axes=None for a lone call."
            )
    size = {leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None}
    if len(size) > 1:
        raise OptionError(
            f"arguments have different sizes along in_axes={in_axes!r}: {sorted(size)}."
        )
    examples = [
        leaf if axis is None else jax.lax.index_in_dim(leaf, 0, axis, keepdims=False)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    one_args, one_kwargs = jax.tree.unflatten(tree, examples)
    staged, one = program.stage(*one_args, **one_kwargs)
    captures = staged.program.num_captures
    batched = [axis is not None for axis in axes]
    varying = [*([False] * captures), *program.dynamic(batched, one_args, one_kwargs)]
    lanes_first = [
        leaf if axis is None else jax.numpy.moveaxis(leaf, axis, 0)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    operands = [*one[:captures], *program.dynamic(lanes_first, one_args, one_kwargs)]
    lanes = tuple(size)
    mapped = tuple((flag,) if lanes else () for flag in varying)
    platform = _jax.placed(operands)[0]
    job = job_for(staged.program, lanes, mapped, program.options, platform=platform)
    found = on_host(job).plan(operands)
    blocks = (
        found.linked.program
        if found.linked
        else blocks_of(staged.program, varying, program.options)
    )
    return Inspection(
        staged.program,
        blocks,
        storage(blocks, varying),
        found,
        lanes[0] if lanes else None,
        program.options,
        levels_of(found),
    )


def _refuse_options(program: ProgramFunction, kwargs: dict[str, Any]) -> None:
    """Keyword arguments are the program's; one that it does not take and that is an option was meant as that."""
    try:
        signature.signature(program.python).bind_partial(**kwargs)
    except (TypeError, ValueError):
        meant = [name for name in kwargs if name in NAMES]
        if meant:
            said = ", ".join(f"{name}={kwargs[name]!r}" for name in meant)
            raise OptionError(
                f"inspect gives keyword arguments to the program, which takes no {', '.join(meant)}. Options are the"
                f" program's own: inspect(program.with_options({said}), ...)."
            ) from None


def _array(leaf: Any) -> Any:
    return jax.numpy.asarray(leaf) if is_array_like(leaf) else leaf


def _leaf_axes(in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
    """One axis for each leaf, keyword arguments along axis 0 as `jax.vmap` has it."""
    try:
        by_position = _jax.broadcast_axes(in_axes, args)
    except ValueError as error:
        raise OptionError(f"in_axes={in_axes!r} does not fit the arguments: {error}") from None
    if not all(axis is None or isinstance(axis, int) for axis in by_position):
        raise OptionError(
            f"in_axes={in_axes!r} must be an int, None, or a tuple with one of these for each argument."
        )
    lone = all(axis is None for axis in by_position) and bool(by_position)
    return [*by_position, *(None if lone else 0 for _ in jax.tree.leaves(kwargs))]
