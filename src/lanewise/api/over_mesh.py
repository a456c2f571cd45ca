"""`lanewise.vmap(f, mesh=mesh, axis="lanes")`: examples over the devices of a mesh.

A `shard_map` whose devices each run their own examples. A batch that they cannot share evenly is made longer by copies
of its last example, whose answers are dropped. What lanes share is whole on each device, and its gradient is summed
over devices once, after the run. How lanes ended is gathered and checked outside, so that messages have the
numbers that examples have in the batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.core.objects import over_lanes
from lanewise.core.options import on_each_of
from lanewise.core.outcomes import Stats
from lanewise.core.program import throw_p
from lanewise.place.lanes import options_on_device, stats_of_all
from lanewise.tracing.decorator import ProgramFunction


def over_mesh(
    program: ProgramFunction,
    in_axes: Any,
    out_axes: Any,
    axis_size: int | None,
    mesh: Any,
    axis: Any,
) -> Callable[..., Any]:
    """The program for a whole batch, each device of the mesh along the axis with a part of it."""
    names = _checked(mesh, axis)
    devices = math.prod(mesh.shape[name] for name in names)
    options = program.options
    own = options_on_device(options, devices)
    inner = program.with_options(throw=False, lanes=own.lanes)
    inner.options = on_each_of(inner.options, len(mesh.local_devices))

    def on_mesh(args: tuple[Any, ...], kwargs: dict[str, Any], axes: Any) -> Any:
        """Answers, outcomes, and statistics if they are wanted, of examples that devices share evenly."""
        given, tree = jax.tree.flatten((args, kwargs))
        specs = [_spec(d, names) for d in axes]

        def on_device(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            ins = tuple(jax.tree.unflatten(jax.tree.structure(args), axes[: _count(args)]))
            outs = (0, 0, None) if options.stats else (0, 0)
            size = None if axis_size is None else -(-axis_size // devices)
            found = jax.vmap(inner, ins, outs, axis_size=size)(*args, **kwargs)
            if options.stats:
                *found, stats = found
                merged = stats_of_all(jax.tree.leaves(stats), names)
                return *found, Stats(*merged)
            return found

        split = PartitionSpec(names)
        outs = (split, split, PartitionSpec()) if options.stats else (split, split)
        run = jax.shard_map(on_device, mesh=mesh, in_specs=tuple(specs), out_specs=outs)
        return run(*_jax.resharded(given, mesh, specs))

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def padded(args: tuple[Any, ...], kwargs: dict[str, Any], axes: Any, size: int) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        extra = -size % devices
        leaves = [_longer(x, d, extra) for x, d in zip(leaves, axes, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, leaves)
        answers, outcomes, *stats = on_mesh(args, kwargs, axes)
        if extra:
            # No type states an uneven split: each device has all of it.
            flat, tree = jax.tree.flatten((answers, outcomes))
            whole = _jax.resharded(flat, mesh, [PartitionSpec()] * len(flat))
            answers, outcomes = jax.tree.unflatten(tree, [x[:size] for x in whole])
        return answers, outcomes, *stats

    @functools.wraps(program.python)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, found = over_lanes(args, in_axes)
        axes = _axes_of_leaves(found, args, kwargs)
        leaves = jax.tree.leaves((args, kwargs))
        size = _size(leaves, axes, axis_size)
        answers, outcomes, *stats = padded(args, kwargs, axes, size)
        if options.throw:
            answers = _thrown(answers, outcomes, program.__name__)
        if out_axes != 0:
            answers = jax.vmap(lambda x: x, out_axes=out_axes)(answers)
        outs = (answers, *([] if options.throw else [outcomes]), *stats)
        return outs[0] if len(outs) == 1 else outs

    return call


def _thrown(answers: Any, outcomes: Any, name: str) -> Any:
    """Answers of which an error is raised where lanes have failed."""
    flat, tree = jax.tree.flatten(answers)
    codes = outcomes.code, outcomes.site
    return jax.tree.unflatten(tree, throw_p.bind(*flat, *codes, sites=outcomes.sites, name=name))


def _checked(mesh: Any, axis: Any) -> tuple[str, ...]:
    """The axes of the mesh that examples are split over."""
    if not isinstance(mesh, Mesh):
        raise OptionError(
            f'mesh={mesh!r} must be a jax.sharding.Mesh, as jax.make_mesh((4,), ("lanes",)) gives.'
        )
    if axis is None and len(mesh.axis_names) == 1:
        return tuple(mesh.axis_names)
    names: tuple[Any, ...] = axis if isinstance(axis, tuple) else (axis,)
    if not names or any(name not in mesh.axis_names for name in names):
        known = ", ".join(map(repr, mesh.axis_names))
        raise OptionError(
            f"axis={axis!r} must name the axis of the mesh that examples are split over, or be a tuple of several; the"
            f" mesh has {known}."
        )
    return names


def _spec(axis: int | None, names: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, names)


def _count(tree: Any) -> int:
    return len(jax.tree.leaves(tree))


def _axes_of_leaves(
    in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int | None, ...]:
    """For each leaf of the arguments the axis that has the examples, not negative."""
    try:
        axes = [*_jax.broadcast_axes(in_axes, args), *[0] * _count(kwargs)]
    except ValueError as error:
        raise OptionError(f"in_axes={in_axes!r} does not fit the arguments: {error}.") from error
    leaves = jax.tree.leaves((args, kwargs))
    return tuple(
        d if d is None or d >= 0 else d + jnp.ndim(x) for x, d in zip(leaves, axes, strict=True)
    )


def _size(leaves: Sequence[Any], axes: Sequence[int | None], axis_size: int | None) -> int:
    """How many examples there are."""
    found = {jnp.shape(x)[d] for x, d in zip(leaves, axes, strict=True) if d is not None}
    found |= set() if axis_size is None else {axis_size}
    if len(found) != 1:
        sizes = ", ".join(map(str, sorted(found))) or "none"
        raise OptionError(
            "lanewise.vmap needs one number of examples for all arguments that in_axes maps, or axis_size; found"
            f" {sizes}."
        )
    return found.pop()


def _longer(value: Any, axis: int | None, extra: int) -> Any:
    """A leaf with copies of its last example at the end."""
    if axis is None or not extra:
        return value
    value = jnp.asarray(value)
    last = jax.lax.slice_in_dim(value, value.shape[axis] - 1, value.shape[axis], axis=axis)
    return jnp.concatenate([value, *[last] * extra], axis)
