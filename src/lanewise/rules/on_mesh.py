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
from lanewise.core.outcomes import NUM_STATS
from lanewise.core.program import program_p
from lanewise.job.job import Params, job_for
from lanewise.place.lanes import Layout, options_on_device, stats_of_all
from lanewise.rules.explain import explainable
from lanewise.rules.left_to_xla import as_xla_splits_it, left_to_xla
from lanewise.rules.run import execute
from lanewise.rules.sums import axes_with_sums


def _layout(in_ndims: Iterable[int], out_ndims: Iterable[int], params: Params) -> Layout:
    """Which lane axes `program_p` takes and gives, for operands and results that have this many axes."""
    lanes, options = params.lanes, params.options
    axes = axes_with_sums(params.answer_axes, params.summed, lanes)
    codes = [(True,) * len(lanes)] * 2 if params.program.gives_outcomes(options) else []
    stats = [params.none] * (NUM_STATS if options.stats else 0)
    ndims = tuple(in_ndims), tuple(out_ndims)
    return Layout(lanes, params.mapped, (*axes, *codes, *stats), *ndims)


def typed(results: Sequence[Any], operands: Sequence[Any], params: Params) -> list[Any]:
    """The types of results, which say how these are split where those of operands do."""

    def chosen(mesh: Mapping[str, int], specs: Sequence[Spec]) -> Sequence[Spec]:
        ins, outs = ([aval.ndim for aval in avals] for avals in (operands, results))
        layout = _layout(ins, outs, params)
        return layout.specs(layout.split(mesh, specs))[1]

    return _jax.typed_as_split(results, operands, chosen)


def on_mesh(operands: Sequence[Any], params: Params) -> list[Any]:
    """What `program_p` gives for arrays that are split, outside `jit`."""
    outs = _compiled(params)(*operands)
    if params.program.formats:
        explainable(outs[params.program.num_results], params.program, operands, params.mapped)
    return outs


@functools.lru_cache(maxsize=512)
def _compiled(params: Params) -> Any:
    # Of its own, so that JAX caches the code as long as this does.
    return jax.jit(lambda *operands: params.bind(*operands))


def lower_on_mesh(
    ctx: Any, operands: Sequence[Any], platform: str | None, given: dict[str, Any]
) -> Any:
    """Lower `program_p` where XLA may split it."""
    own = Params(**given)
    params = own._asdict()
    job = job_for(**params, platform=platform).as_it_runs()
    if job.examples == 0 or left_to_xla(job):
        run = functools.partial(execute, platform=platform)
        return _jax.lower_unsplit(ctx, run, *operands, **as_xla_splits_it(params))
    if _jax.lowers_for_export(ctx):
        raise OptionError(
            f"jax.export cannot serialize `{own.program.name}` for several devices: XLA asks Python how to split"
            " it. Export a call inside jax.shard_map, or for one device."
        )
    if _jax.free_axes(ctx):
        return _jax.lower_alike(ctx, program_p.bind, *operands, **params)
    ins, outs = map(_jax.stored_ndim, ctx.avals_in), map(_jax.stored_ndim, ctx.avals_out)
    layout = _layout(ins, outs, own)

    def choose(mesh: Mapping[str, int], ins: Sequence[Spec], outs: Sequence[Spec]) -> Any:
        split = layout.split(mesh, ins, outs)
        return _one_device(layout, mesh, split, platform, own), *layout.specs(split)

    return _jax.lower_split(ctx, operands, *layout.rule(), choose)


def _one_device(
    layout: Layout,
    mesh: Mapping[str, int],
    split: Spec,
    platform: str | None,
    params: Params,
) -> Any:
    """The run on one device: its lanes, and what is summed over those of all."""
    axes = tuple(itertools.chain(*split))
    devices = math.prod(mesh[name] for name in axes)
    options = options_on_device(params.options.unwatched(), devices)
    own = params._replace(lanes=layout.on_device(mesh, split), options=options)._asdict()

    def run(*operands: Any) -> list[Any]:
        # What XLA asks for while it compiles cannot call Python when it runs.
        with events.not_recording():
            outs = execute(*operands, platform=platform, **own)
        if not axes:
            return outs
        outs = [jax.lax.psum(x, axes) if i in params.summed else x for i, x in enumerate(outs)]
        rest = len(outs) - (NUM_STATS if options.stats else 0)
        return [*outs[:rest], *stats_of_all(outs[rest:], axes)] if options.stats else outs

    return run
