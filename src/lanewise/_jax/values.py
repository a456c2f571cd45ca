"""Values: their types and tangents, typed PRNG keys, where they are, and over which axes of a mesh they vary.

Under `jax.shard_map(..., check_vma=True)` types show over which axes of the mesh a value varies. A program is one
primitive to that check: its operands are made to vary alike, its results vary in the same way, and inside nothing is
checked, so that neither programs nor machines need to care (a fresh `jnp.zeros` varies over nothing).

Transfers between host and device that are ours are explicit, so that `jax.transfer_guard` lets them pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.interpreters.ad as ad
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import mesh as _mesh
from jax._src.array import ArrayImpl
from jax._src.lax import lax as _lax
from jax.core import ShapedArray, Tracer
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

HOST, DEVICE = _core.MemorySpace.Host, _core.MemorySpace.Device


def shape_dtype_struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def aval_of(value: Any) -> ShapedArray:
    """The abstract value of an array-like (Python scalars are weakly typed)."""
    return jax.typeof(value)


def strong(aval: ShapedArray) -> ShapedArray:
    return _core.ShapedArray(aval.shape, aval.dtype, weak_type=False)


def shaped(shape: Sequence[int], dtype: Any, weak_type: bool = False) -> ShapedArray:
    return _core.ShapedArray(tuple(shape), dtype, weak_type=weak_type)


def in_memory_of(aval: ShapedArray, like: ShapedArray) -> ShapedArray:
    """The type, of values in the same memory as another's: the device's, or the host's."""
    return aval.update(memory_space=like.memory_space)


def convert_to_aval(value: Any, aval: ShapedArray) -> Any:
    """Convert dtype and weak type (the public conversion always makes the type strong)."""
    return _lax._convert_element_type(value, aval.dtype, weak_type=bool(aval.weak_type))


def zeros(aval: ShapedArray) -> Any:
    """Zeros of a type, typed PRNG keys included."""
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, shape_dtype_struct(aval))
        return wrap_key(jax.numpy.zeros(data.shape, data.dtype), aval)
    return jax.lax.full(aval.shape, 0, aval.dtype)


def is_extended(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


def is_key(aval: ShapedArray) -> bool:
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key))


def wrap_key(data: Any, aval: ShapedArray) -> Any:
    return jax.random.wrap_key_data(data, impl=aval.dtype._impl.name)


def key_implementation(dtype: Any) -> str:
    """The name of the random generator a typed key's dtype belongs to."""
    return str(dtype._impl.name)


def stored(value: Any, aval: ShapedArray) -> Any:
    """A value as it is stored: a typed PRNG key as the integers it is made of, all else as it is."""
    return jax.random.key_data(value) if is_key(aval) else value


def loaded(value: Any, aval: ShapedArray) -> Any:
    """A stored value as the program sees it."""
    return wrap_key(value, aval) if is_key(aval) else value


def stored_aval(aval: ShapedArray) -> ShapedArray:
    """The type of a value as it is stored."""
    if not is_key(aval):
        return aval
    data = jax.eval_shape(jax.random.key_data, shape_dtype_struct(aval))
    return shaped(data.shape, data.dtype)


def has_tangent(aval: ShapedArray) -> bool:
    """Whether values of this type have derivatives."""
    return not is_extended(aval.dtype) and bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact))


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    return shaped(aval.shape, aval.dtype)


def zero_tangent(value: Any) -> Any:
    """The symbolic zero that stands for the tangent of a value."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())


def is_symbolic(*sizes: Any) -> bool:
    """Whether one of these sizes is a variable of `jax.export.symbolic_shape`.

    >>> is_symbolic(3, *jax.export.symbolic_shape("n"))
    True
    """
    return any(_core.is_symbolic_dim(size) for size in sizes)


def unchecked() -> Any:
    """A context in which types do not record over which axes of a mesh values vary."""
    return _config._check_vma(False)


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """A context in which types say nothing of a mesh that `jax.set_mesh` has set: programs are code of one lane.

    Inside `shard_map` the mesh stays, as values of enclosing traces have it in their types.
    """
    mesh = _mesh.get_abstract_mesh()
    # Where there is none, nothing changes: traces are cached by such settings too.
    with contextlib.nullcontext() if mesh.empty or mesh.manual_axes else no_mesh():
        yield


def typed_without_mesh(aval: ShapedArray) -> ShapedArray:
    """The type, which says nothing of a mesh with explicit axes."""
    if not aval.sharding.mesh.explicit_axes:
        return aval
    return in_memory_of(shaped(aval.shape, aval.dtype, aval.weak_type), aval)


@contextlib.contextmanager
def no_mesh() -> Iterator[None]:
    """The same inside `shard_map` too: for code that takes nothing from enclosing traces."""
    with unchecked(), _mesh.use_abstract_mesh(_mesh.empty_abstract_mesh):
        yield


def varying_as(avals: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The types, varying over all axes of the mesh over which some of the operands' types vary."""
    axes = _varying_axes(operands)
    if not axes:
        return list(avals)
    mesh = next(aval.sharding.mesh for aval in operands if aval.mat.varying)
    return [
        aval.update(
            sharding=NamedSharding(mesh, PartitionSpec(*[None] * aval.ndim)),
            manual_axis_type=_core.ManualAxisType(varying=axes),
        )
        for aval in avals
    ]


def _varying_axes(avals: Sequence[Any]) -> frozenset[Any]:
    return frozenset[Any]().union(*(aval.mat.varying for aval in avals))


def varying_alike(values: Sequence[Any]) -> list[Any]:
    """The values, each of them varying over all axes that any of them varies over."""
    avals = [aval_of(value) for value in values]
    axes = _varying_axes(avals)
    return [
        jax.lax.pcast(value, tuple(sorted(axes - aval.mat.varying)), to="varying")
        if axes - aval.mat.varying
        else value
        for value, aval in zip(values, avals, strict=True)
    ]


def varying_untold(value: Any) -> Any:
    """In an unchecked context: a value whose type does not show it, as that of an enclosing trace may."""
    if not (isinstance(value, Tracer) and aval_of(value).mat.varying):
        return value
    return jax.lax.squeeze(jax.lax.expand_dims(value, (0,)), (0,))


def default_platform() -> str:
    """Where arrays are put that are on no device yet."""
    device = _config.default_device.value
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def placed(values: Sequence[Any]) -> tuple[str, int]:
    """The platform that code runs on with these values, and the most devices that any of them is on.

    It is that of those which are committed to a device; else that where arrays are put.
    """
    platform, most = None, 1
    for value in values:
        # Checked at each call outside `jit`: most operands are arrays on one device.
        if type(value) is not ArrayImpl and (
            not isinstance(value, jax.Array) or isinstance(value, Tracer)
        ):
            continue
        sharding = value.sharding
        if platform is None and value.committed:
            platform = next(iter(sharding.device_set)).platform
        if type(sharding) is not SingleDeviceSharding:
            most = max(most, len(sharding.device_set))
    return platform or default_platform(), most


def has_platform(platform: str) -> bool:
    """Whether JAX has devices of a platform here."""
    try:
        return bool(jax.devices(platform))
    except RuntimeError:
        return False


def device_memory(platform: str) -> int | None:
    """How many bytes JAX may use on a device of a platform; None if that is unknown."""
    device = next(iter(jax.local_devices(backend=platform)), None)
    stats = device.memory_stats() if device is not None else None
    return stats.get("bytes_limit") if stats else None


def _everywhere(sharding: Any) -> Any:
    """The sharding of values replicated over all devices of another."""
    return NamedSharding(
        jax.sharding.Mesh(np.array(sharding._device_assignment), ("devices",)), PartitionSpec()
    )


def to_host(value: Any) -> np.ndarray:
    """An array's values. `jax.device_get` is twenty times as slow; a call of a program does this once or twice.

    Each host gets all values of an array that is split over several.
    """
    try:
        if _config.transfer_guard_device_to_host.value in (None, "allow"):
            return np.asarray(value)
        with jax.transfer_guard_device_to_host("allow"):
            return np.asarray(value)
    except RuntimeError:
        # Checked only then: it takes as long as all the rest.
        if not isinstance(value, jax.Array) or value.is_fully_addressable:
            raise
    return to_host(jax.jit(lambda x: x, out_shardings=_everywhere(value.sharding))(value))


def on_host_cpu(value: Any) -> Any:
    """The array committed to a CPU device: itself if it is, or a copy of it; itself where there is no such device.

    What is not committed would go where arrays are put by default. Where that is a CPU, it is as good.
    """
    if isinstance(value, jax.Array) and all(d.platform == "cpu" for d in value.devices()):
        if value.committed or default_platform() == "cpu":
            return value
    elif not isinstance(value, jax.Array) and default_platform() == "cpu":
        return value
    if not has_platform("cpu"):
        return value
    return jax.device_put(to_host(value), jax.devices("cpu")[0])


@contextlib.contextmanager
def our_transfers() -> Iterator[None]:
    """A context for the host's part in a run, whose transfers are not the user's. Also a decorator."""
    with jax.transfer_guard("allow"):
        yield


def to_device(value: Any) -> Any:
    """A constant of the code as JAX's array, put there once and not at each call; arrays and tracers as they are."""
    if isinstance(value, jax.Array):
        return value
    with jax.ensure_compile_time_eval():
        return jax.device_put(value)
