"""Where values are, where code runs, and over which devices values are split, as far as JAX knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src.array import ArrayImpl
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding


def devices_of_lowering(ctx: Any) -> int:
    """Over how many devices XLA may split what is lowered here: 1 where a `shard_map` has done so already."""
    around = ctx.module_context.axis_context
    count = getattr(around, "num_devices", None)
    if count is not None:
        return count
    mesh, manual = getattr(around, "mesh", None), getattr(around, "manual_axes", ())
    if mesh is None:
        return 1
    return math.prod(size for name, size in mesh.shape.items() if name not in manual)


def explicit_axes(avals: Sequence[Any]) -> tuple[str, ...]:
    """The axes of a mesh that types say values are split over."""
    found: dict[str, None] = {}
    for aval in avals:
        spec = getattr(getattr(aval, "sharding", None), "spec", None) or ()
        for entry in spec:
            names = entry if isinstance(entry, tuple) else (entry,)
            found |= {name: None for name in names if isinstance(name, str)}
    return tuple(found)


def devices_of(value: Any) -> int:
    """Over how many devices an array is split; 1 if each of them has all of it."""
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return 1
    sharding = value.sharding
    if isinstance(sharding, SingleDeviceSharding) or sharding.is_fully_replicated:
        return 1
    return len(sharding.device_set)


def default_platform() -> str:
    """Where arrays are put that are on no device yet."""
    device = _config.default_device.value
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def placed(values: Sequence[Any]) -> tuple[str, int]:
    """The platform that code runs on with these values, and the most devices that any of them lies on.

    It is that of those which are committed to a device; else that where arrays are put.
    """
    platform, most = None, 1
    for value in values:
        # Asked at each call outside `jit`: most operands are arrays on one device.
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
    """How many bytes JAX may use on a device of a platform; None if nobody knows."""
    device = next(iter(jax.local_devices(backend=platform)), None)
    stats = device.memory_stats() if device is not None else None
    return stats.get("bytes_limit") if stats else None
