"""`program_p` where its operands are, or may be, split over the devices of a mesh (`place/lanes.py`).

Three ways lead to a mesh. `jit` of what is split by automatic axes: XLA alone knows how, and asks. Explicit axes: types
say how results are split, and the code is the same. Outside `jit` split arrays are run as inside it, so stacks and
tapes do not grow there. In a `shard_map` over all axes of its mesh, a program is on one device and nothing is left to
do; over some of the axes, the devices along the others run the same. What nothing diverges in, XLA splits by itself
(`left_to_xla.py`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from lanewise import _jax
from lanewise._jax import Spec
from lanewise.core import events
from lanewise.core.errors import OptionError
from lanewise.core.options import Options
from lanewise.core.outcomes import NUM_STATS
from lanewise.core.program import Program, program_p
from lanewise.job.job import Mapped, answer_axes, job_for
from lanewise.place.lanes import Layout, options_on_device, stats_of_all
from lanewise.rules.explain import explainable
from lanewise.rules.left_to_xla import as_xla_splits_it, left_to_xla
from lanewise.rules.run import execute
from lanewise.rules.sums import axes_with_sums


def _layout(
    in_ndims: Iterable[int],
    out_ndims: Iterable[int],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...],
) -> Layout:
    """Which lane axes `program_p` takes and gives, for operands and results that have this many axes."""
    axes = axes_with_sums(answer_axes(program, mapped, options, lanes), summed, lanes)
    codes = [(True,) * len(lanes)] * 2 if program.gives_outcomes(options) else []
    stats = [(False,) * len(lanes)] * (NUM_STATS if options.stats else 0)
    return Layout(lanes, mapped, (*axes, *codes, *stats), tuple(in_ndims), tuple(out_ndims))


def typed(
    results: Sequence[Any],
    operands: Sequence[Any],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...],
) -> list[Any]:
    """The types of results, which say how these are split where those of operands do."""

    def chosen(mesh: Mapping[str, int], specs: Sequence[Spec]) -> Sequence[Spec]:
        ins, outs = ([aval.ndim for aval in avals] for avals in (operands, results))
        layout = _layout(ins, outs, program, lanes, mapped, options, summed)
        return layout.specs(layout.split(mesh, specs))[1]

    return _jax.typed_as_split(results, operands, chosen)


def on_mesh(
    operands: Sequence[Any],
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...],
) -> list[Any]:
    """What `program_p` gives for arrays that are split, outside `jit`."""
    outs = _compiled(program, lanes, mapped, options, summed)(*operands)
    if program.formats:
        explainable(outs[program.num_results], program, operands, mapped)
    return outs


@functools.lru_cache(maxsize=512)
def _compiled(
    program: Program,
    lanes: tuple[int, ...],
    mapped: Mapped,
    options: Options,
    summed: tuple[int, ...],
) -> Any:
    def run(*operands: Any) -> list[Any]:
        return program_p.bind(
            *operands, program=program, lanes=lanes, mapped=mapped, options=options, summed=summed
        )

    return jax.jit(run)


def lower_on_mesh(
    ctx: Any, operands: Sequence[Any], platform: str | None, params: dict[str, Any]
) -> Any:
    """Lower `program_p` where XLA may split it."""
    program = params["program"]
    params = {"summed": ()} | params
    job = job_for(**params, platform=platform).as_it_runs()
    if job.examples == 0 or left_to_xla(job):
        run = functools.partial(execute, platform=platform)
        return _jax.lower_unsplit(ctx, run, *operands, **as_xla_splits_it(params))
    if _jax.lowers_for_export(ctx):
        raise OptionError(
            f"jax.export cannot serialize `{program.name}` for several devices: XLA asks Python how to split it. Export"
            " a call inside jax.shard_map, or for one device."
        )
    if _jax.free_axes(ctx):
        return _jax.lower_alike(ctx, program_p.bind, *operands, **params)
    ins, outs = map(_jax.stored_ndim, ctx.avals_in), map(_jax.stored_ndim, ctx.avals_out)
    layout = _layout(ins, outs, **params)

    def choose(mesh: Mapping[str, int], ins: Sequence[Spec], outs: Sequence[Spec]) -> Any:
        split = layout.split(mesh, ins, outs)
        return _one_device(layout, mesh, split, platform, params), *layout.specs(split)

    return _jax.lower_split(ctx, operands, *layout.rule(), choose)


def _one_device(
    layout: Layout,
    mesh: Mapping[str, int],
    split: Spec,
    platform: str | None,
    params: dict[str, Any],
) -> Any:
    """The run on one device: its lanes, and what is summed over those of all."""
    axes = tuple(itertools.chain(*split))
    devices = math.prod(mesh[name] for name in axes)
    options = options_on_device(params["options"].unwatched(), devices)
    own = params | {"lanes": layout.on_device(mesh, split), "options": options}
    summed = params["summed"]

    def run(*operands: Any) -> list[Any]:
        # What XLA asks for while it compiles cannot call Python when it runs.
        with events.not_recording():
            outs = execute(*operands, platform=platform, **own)
        if not axes:
            return outs
        outs = [jax.lax.psum(x, axes) if i in summed else x for i, x in enumerate(outs)]
        rest = len(outs) - (NUM_STATS if options.stats else 0)
        return [*outs[:rest], *stats_of_all(outs[rest:], axes)] if options.stats else outs

    return run
