"""Meshes of devices: how values are split over them, and code that XLA splits as we say.

XLA splits what `jit` compiles on its own, operation by operation. `lower_split` lowers a function as one operation
instead: XLA is given which axes of what it takes and gives belong together (a rule of Shardy's), asks how to split it
when it knows how its operands are, and puts the code for one device in its place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import dispatch as _dispatch
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax.core import Tracer
from jax.sharding import (
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
    get_abstract_mesh,
)

from lanewise._jax.jaxprs import Jaxpr, Primitive, eval_jaxpr, primitive, trace
from lanewise._jax.rules import lower_unchecked
from lanewise._jax.values import (
    in_memory_of,
    loaded,
    no_mesh,
    shape_dtype_struct,
    shaped,
    stored,
    zeros,
)

# For each axis of a value, the axes of the mesh that it is split over.
Spec = tuple[tuple[str, ...], ...]
# From the sizes of the mesh's axes and the specs of operands and results, what each device runs, and the specs of what
# it takes and gives.
OneDevice = tuple[Callable[..., Sequence[Any]], Sequence[Spec], Sequence[Spec]]
Choose = Callable[[Mapping[str, int], Sequence[Spec], Sequence[Spec]], OneDevice]


def needs_devices(*primitives: Primitive) -> None:
    """Have JAX say at lowering on which devices, and over which mesh, what holds these primitives will run."""
    _dispatch.prim_requires_devices_during_lowering.update(primitives)


def devices_of_lowering(ctx: Any) -> int:
    """Over how many devices XLA may split what is lowered here: 1 where a `shard_map` has done so already."""
    around = ctx.module_context.axis_context
    count = getattr(around, "num_devices", None)
    return math.prod(free_axes(ctx).values()) if count is None else count


def free_axes(ctx: Any) -> dict[str, int]:
    """The axes of the mesh, and their sizes, that a `shard_map` around what is lowered has left to XLA."""
    around = ctx.module_context.axis_context
    mesh, manual = getattr(around, "mesh", None), getattr(around, "manual_axes", ())
    if mesh is None:
        return {}
    return {name: size for name, size in mesh.shape.items() if name not in manual}


def split_axes(ctx: Any, aval: Any) -> dict[str, int]:
    """The axes, with their sizes, that a `shard_map` around what is lowered has split a value over, as far as known.

    Types show it where they are checked. Otherwise it is known only if there is just one axis.
    """
    around = ctx.module_context.axis_context
    mesh, manual = getattr(around, "mesh", None), getattr(around, "manual_axes", ())
    if mesh is None:
        return {}
    wide = {name: size for name, size in mesh.shape.items() if name in manual and size > 1}
    named = {name: size for name, size in wide.items() if name in aval.mat.varying}
    return named or (wide if len(wide) == 1 else {})


def everywhere(ctx: Any) -> NamedSharding | None:
    """The sharding of values replicated over all devices that something is lowered for; None if that is one, or a
    part."""
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None) or ()
    if len(devices) < 2:
        return None
    return NamedSharding(jax.sharding.Mesh(np.array(devices), ("devices",)), PartitionSpec())


def is_split(value: Any) -> bool:
    """Whether an array, or what a batch under `vmap` holds, is known to be split over devices.

    The types of traced values show it, where axes are explicit. A value that each device holds in full is not split.
    """
    while isinstance(value, _batching.BatchTracer):
        value = value.val
    if not isinstance(value, jax.Array):
        return False
    if isinstance(value, Tracer):
        aval = jax.typeof(value)
        return any(spec_of(aval.sharding, aval.ndim))
    sharding = value.sharding
    return not (isinstance(sharding, SingleDeviceSharding) or sharding.is_fully_replicated)


def resharded(values: Sequence[Any], mesh: Any, specs: Sequence[PartitionSpec]) -> list[Any]:
    """Values split over a mesh like this, where types must say so; XLA sees to it where axes are automatic."""
    if not mesh.abstract_mesh.explicit_axes:
        return list(values)
    return [
        jax.sharding.reshard(value, NamedSharding(mesh, spec))
        for value, spec in zip(values, specs, strict=True)
    ]


def may_be_split() -> bool:
    """Whether `jax.set_mesh` has set a mesh over whose automatic axes XLA may split what is traced here."""
    mesh = get_abstract_mesh()
    return any(mesh.shape[name] > 1 for name in mesh.auto_axes)


def spec_of(sharding: Any, ndim: int) -> Spec:
    """How a value with this sharding is split; not at all, where JAX knows no mesh for it."""
    given = sharding.spec if isinstance(sharding, NamedSharding) else ()
    entries = [
        entry if isinstance(entry, tuple) else (entry,) if isinstance(entry, str) else ()
        for entry in given
    ]
    return (*entries, *[()] * (ndim - len(entries)))


def typed_as_split(
    avals: Sequence[Any], operands: Sequence[Any], choose: Callable[..., Sequence[Spec]]
) -> list[Any]:
    """The types of results, split over the explicit axes of the mesh that types of operands are split over.

    `choose` takes the sizes of the mesh's axes and the specs of the operands, and gives those of the results.
    """
    meshes = [aval.sharding.mesh for aval in operands if not aval.sharding.mesh.empty]
    if not meshes or not meshes[0].explicit_axes:
        return list(avals)
    specs = choose(meshes[0].shape, [spec_of(aval.sharding, aval.ndim) for aval in operands])
    return [
        aval.update(sharding=NamedSharding(meshes[0], _partition_spec(spec)))
        for aval, spec in zip(avals, specs, strict=True)
    ]


def _partition_spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*(entry or None for entry in spec))


def lower_unsplit(ctx: Any, fun: Callable[..., Sequence[Any]], *args: Any, **params: Any) -> Any:
    """Lower a primitive as the function `fun` of flat arrays, whose types say nothing of meshes inside."""
    bare = ctx.replace(avals_in=[_bare(aval) for aval in ctx.avals_in])
    with no_mesh():
        results = _mlir.lower_fun(fun, multiple_results=True)(bare, *args, **params)
    # XLA has to keep what explicit axes promise.
    flat = [x if isinstance(x, list | tuple) else [x] for x in results]
    return [
        [_mlir.lower_with_sharding_in_types(ctx, x, aval) for x in each]
        for each, aval in zip(flat, ctx.avals_out, strict=True)
    ]


apart_p = primitive("apart")


@apart_p.def_abstract_eval
def _apart_abstract(*args: Any, jaxpr: Jaxpr) -> list[Any]:
    del args
    return [_bare(var.aval) for var in jaxpr.outvars]


def _lower_apart(ctx: Any, *args: Any, jaxpr: Jaxpr) -> Any:
    """Code that is lowered where types say nothing of meshes, whatever is set where XLA asks for it."""
    return lower_unsplit(ctx, functools.partial(eval_jaxpr, jaxpr), *args)


_mlir.register_lowering(apart_p, _lower_apart)


def _apart(fun: Callable[..., Sequence[Any]], *values: Any) -> list[Any]:
    """`fun(*values)` as such code."""
    with no_mesh():
        traced = trace(fun, [jax.typeof(x) for x in values])
    return apart_p.bind(*traced.captures, *values, jaxpr=traced.jaxpr)


def lower_alike(ctx: Any, fun: Callable[..., Sequence[Any]], *args: Any, **params: Any) -> Any:
    """Lower a primitive inside a `shard_map` over some axes of its mesh: devices along the others all run `fun`."""
    run = jax.shard_map(
        functools.partial(_apart, functools.partial(fun, **params)),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        axis_names=set(free_axes(ctx)),
        check_vma=False,
    )
    return lower_unchecked(ctx, run, *args)


def stored_ndim(aval: Any) -> int:
    """How many axes a value of a type has as it is stored: a key is several integers."""
    return jax.eval_shape(lambda x: stored(x, aval), shape_dtype_struct(aval)).ndim


def _bare(aval: Any) -> Any:
    return in_memory_of(shaped(aval.shape, aval.dtype, aval.weak_type), aval)


def lower_split(
    ctx: Any,
    args: Sequence[Any],
    rule: str,
    whole_factors: tuple[str, ...],
    choose: Choose,
) -> Any:
    """Lower a primitive as one operation that XLA splits over devices as `choose` says.

    `rule`: how axes of operands and results belong together, in the notation of `jax.experimental.custom_partitioning`;
    `whole_factors`: those of its names along which nothing may be split.
    """
    # Imported where it is used, as most programs run on one device.
    from jax.experimental.custom_partitioning import custom_partitioning

    types_in, types_out = list(map(_bare, ctx.avals_in)), list(map(_bare, ctx.avals_out))

    def one_device(mesh: Any, in_shapes: Sequence[Any], out_shapes: Sequence[Any]) -> Any:
        """JAX's interface: the mesh, the code, and how what it gives and takes is split."""

        def specs(shapes: Sequence[Any]) -> list[Spec]:
            return [spec_of(x.sharding, len(x.shape)) for x in shapes]

        run, in_specs, out_specs = choose(mesh.shape, specs(in_shapes), specs(out_shapes))

        def of_stored(*values: Any) -> list[Any]:
            outs = run(*map(loaded, values, types_in))
            return list(map(stored, outs, types_out))

        def on_device(*values: Any) -> tuple[Any, ...]:
            return tuple(_apart(of_stored, *values))

        def shardings(shapes: Sequence[Any], specs: Sequence[Spec]) -> tuple[Any, ...]:
            # Where JAX knows no mesh, nothing is split, and each class of shardings constructs that in its own way.
            return tuple(
                NamedSharding(mesh, _partition_spec(spec))
                if isinstance(x.sharding, NamedSharding)
                else type(x.sharding).get_replicated(x.sharding._device_assignment)
                for x, spec in zip(shapes, specs, strict=True)
            )

        in_shardings, out_shardings = (
            shardings(in_shapes, in_specs),
            shardings(out_shapes, out_specs),
        )
        return mesh, on_device, out_shardings, in_shardings

    def types(*values: Any) -> tuple[Any, ...]:
        """Stands for the whole: only the types of its results are read."""
        del values
        return tuple(stored(zeros(aval), aval) for aval in types_out)

    split = custom_partitioning(types)
    split.def_partition(one_device, sharding_rule=rule, need_replication_factors=whole_factors)

    def run(*values: Any) -> list[Any]:
        outs = split(*map(stored, values, types_in))
        return [loaded(x, aval) for x, aval in zip(outs, types_out, strict=True)]

    return lower_unsplit(ctx, run, *args)
