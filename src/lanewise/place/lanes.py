"""Lanes over a mesh: each device runs its own lanes, by a machine of its own, which ends on its own.

XLA would split a machine operation by operation, and a machine asks after each tick whether any of its lanes goes on:
split so, that is a message between devices in every tick. So a program is one operation to XLA, which may be split
along lane axes and along no other. What it takes and gives is split alike. An operand that lanes share is whole on each
device; if it came split it is put together before the run. What is summed over lanes is summed on each device, and over
devices when all lanes have ended.

A lane axis whose size the devices do not divide is not split: every device runs all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from lanewise._jax import Spec
from lanewise.core.options import Options
from lanewise.core.outcomes import Stats
from lanewise.job.job import Mapped


@dataclass(frozen=True)
class Layout:
    """Which lane axes operands and results have, in front, and how many axes they have in all."""

    lanes: tuple[int, ...]
    ins: Mapped
    outs: Mapped
    in_ndims: tuple[int, ...]
    out_ndims: tuple[int, ...]

    def rule(self) -> tuple[str, tuple[str, ...]]:
        """How the axes belong together, and the names of those that stay whole.

        >>> Layout((8,), ((True,), (False,)), ((True,),), (2, 1), (1,)).rule()
        ('l0 w0, w1 -> l0', ('w0', 'w1'))
        """
        names = (f"w{i}" for i in itertools.count())
        whole: list[str] = []

        def side(mapped: Mapped, ndims: Sequence[int]) -> str:
            values = []
            for axes, ndim in zip(mapped, ndims, strict=True):
                own = [f"l{level}" for level, has in enumerate(axes) if has]
                rest = list(itertools.islice(names, ndim - len(own)))
                whole.extend(rest)
                values.append(" ".join([*own, *rest]))
            return ", ".join(values)

        ins, outs = side(self.ins, self.in_ndims), side(self.outs, self.out_ndims)
        return f"{ins} -> {outs}", tuple(whole)

    def split(
        self, mesh: Mapping[str, int], in_specs: Sequence[Spec], out_specs: Sequence[Spec] = ()
    ) -> Spec:
        """Over which axes of a mesh each lane axis is split, where operands, or else results, are split like this."""
        taken: set[str] = set()
        found: list[tuple[str, ...]] = []
        mapped = [*self.ins, *self.outs[: len(out_specs)]]
        for level, size in enumerate(self.lanes):
            entry: tuple[str, ...] = ()
            for axes, spec in zip(mapped, (*in_specs, *out_specs), strict=True):
                if axes[level] and spec[sum(axes[:level])]:
                    entry = spec[sum(axes[:level])]
                    break
            devices = math.prod(mesh[name] for name in entry)
            if taken.intersection(entry) or size == 0 or size % devices:
                entry = ()
            taken.update(entry)
            found.append(entry)
        return tuple(found)

    def specs(self, split: Spec) -> tuple[list[Spec], list[Spec]]:
        """How operands and results are split if lane axes are."""

        def side(mapped: Mapped, ndims: Sequence[int]) -> list[Spec]:
            fronts = [tuple(itertools.compress(split, axes)) for axes in mapped]
            return [(*f, *[()] * (n - len(f))) for f, n in zip(fronts, ndims, strict=True)]

        return side(self.ins, self.in_ndims), side(self.outs, self.out_ndims)

    def on_device(self, mesh: Mapping[str, int], split: Spec) -> tuple[int, ...]:
        """The sizes of the lane axes on one device."""
        return tuple(
            size // math.prod(mesh[name] for name in entry)
            for size, entry in zip(self.lanes, split, strict=True)
        )


def options_on_device(options: Options, devices: int) -> Options:
    """The options of the run on one of several devices: together they have as many lanes in flight as are asked for."""
    if options.lanes is None:
        return options
    return replace(options, lanes=-(-options.lanes // devices))


def stats_of_all(stats: Sequence[Any], axes: tuple[str, ...]) -> list[Any]:
    """What the machines on all devices along these axes did, from what each of them did, inside their code.

    Counts are added up. `ticks` and `deepest` are those of the machine with the most.
    """
    if not axes:
        return list(stats)
    own = Stats(*stats)
    most = {name: jax.lax.pmax(getattr(own, name), axes) for name in ("ticks", "deepest")}
    return [most[n] if n in most else jax.lax.psum(x, axes) for n, x in vars(own).items()]
