"""Operands that are split over the devices of a mesh.

A machine of XLA's has one set of lanes and asks after each tick whether any of them goes on. Split over devices by XLA
that question is a message between them in every tick, and code that is compiled as one function (`one_function.py`) has
no such messages: XLA fails, or ends the process. Types with explicit axes are not followed by what a machine makes
beside its operands. So both are refused before XLA sees them. In `jax.shard_map` each device has lanes of its own,
which end by themselves.

What runs all the same: lanes by themselves (`native`, `kernel`), for which XLA gathers the operands on every device;
and JAX's own batching, where axes are automatic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lanewise import _jax
from lanewise.core.errors import TransformError
from lanewise.job.plan import Plan


@dataclass(frozen=True)
class Split:
    """Over how many devices operands are, or may be, split, and over which explicit axes."""

    devices: int
    axes: tuple[str, ...]

    @staticmethod
    def of_values(operands: Sequence[Any]) -> Split | None:
        """How arrays are split; None if they are not."""
        devices = max(map(_jax.devices_of, operands), default=1)
        if devices == 1:
            return None
        return Split(devices, _jax.explicit_axes([_jax.aval_of(x) for x in operands]))

    @staticmethod
    def of_lowering(ctx: Any) -> Split | None:
        """How what is lowered may be split by XLA; None if it cannot be."""
        devices = _jax.devices_of_lowering(ctx)
        return None if devices == 1 else Split(devices, _jax.explicit_axes(ctx.avals_in))

    def refuse(self, chosen: Plan) -> None:
        """Raise if what was chosen cannot run so."""
        if chosen.carrier != "ticks" or (chosen.plain and not self.axes):
            return
        name = chosen.job.program.name
        over = f" along {', '.join(map(repr, self.axes))}" if self.axes else ""
        raise TransformError(
            f"`{name}`: its arguments are split over {self.devices} devices{over}, or may be, and the carrier `ticks`"
            " has its lanes on one. Let each device run lanes of its own: put the call inside jax.shard_map, as in"
            ' jax.shard_map(lanewise.vmap(f), mesh=mesh, in_specs=P("i"), out_specs=P("i")); or give it arguments on'
            " one device."
        )
