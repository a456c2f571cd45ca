"""Over which axes of a mesh values vary.

Under `jax.shard_map(..., check_vma=True)` types tell over which axes of the mesh a value varies. A program is one
primitive to that check: what it takes is made to vary alike, what it gives varies so too, and inside nothing is
checked, so that neither programs nor machines need to care (a fresh `jnp.zeros` varies over nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from lanewise._jax.avals import aval_of


def unchecked() -> Any:
    """A context in which types do not tell over which axes of a mesh values vary."""
    return _config._check_vma(False)


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
    """In an unchecked context: a value whose type does not tell, as that of an enclosing trace may do."""
    if not (isinstance(value, Tracer) and aval_of(value).mat.varying):
        return value
    return jax.lax.squeeze(jax.lax.expand_dims(value, (0,)), (0,))
