"""`throw_p` passes answers through and raises if a lane failed: at once outside `jit`, by a callback inside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback

from lanewise import _jax
from lanewise._jax import ad, batching, mlir
from lanewise.core.errors import OptionError
from lanewise.core.outcomes import Site, raise_if_failed, raise_inside_jit
from lanewise.core.program import throw_p


@throw_p.def_abstract_eval
def _throw_abstract(*args: Any, sites: tuple[Site, ...], name: str) -> list[Any]:
    del sites, name
    return list(args[:-2])


@throw_p.def_impl
def _throw_now(*args: Any, sites: tuple[Site, ...], name: str) -> list[Any]:
    *answers, code, site = args
    raise_if_failed(code, site, sites, name)
    return answers


def _throw_inside_jit(
    *args: Any,
    sites: tuple[Site, ...],
    name: str,
    everywhere: Any = None,
    axes: tuple[tuple[str, int], ...] = (),
) -> list[Any]:
    """`everywhere`: the sharding of what all devices have, where XLA may split codes over several.

    `axes`: those of the mesh that a `shard_map` has split the batch over, and their sizes.
    """
    *answers, code, site = args
    devices = math.prod(size for _, size in axes)
    fail = functools.partial(raise_inside_jit, sites=sites, name=name, devices=devices)

    def report() -> None:
        lanes = (code, site)
        if axes and code.ndim:
            io_callback(fail, None, *lanes, jax.lax.axis_index(tuple(name for name, _ in axes)))
            return
        if everywhere is not None:
            # One device calls for all, and lanes have their numbers in the whole batch. Values made here alone are
            # gathered here alone: XLA gathers what such a demand is made of where it comes from.
            lanes = jax.lax.with_sharding_constraint((code + 0, site + 0), everywhere)
        io_callback(fail, None, *lanes)

    jax.lax.cond((code != 0).any(), report, lambda: None)
    return answers


def _lower_throw(ctx: Any, *args: Any, **params: Any) -> Any:
    if _jax.lowers_for_export(ctx):
        raise OptionError(
            f"jax.export cannot serialize `{params['name']}`, which raises if a lane fails: that calls Python. Use"
            " throw=False, and look at the outcomes where the exported function is called."
        )
    if _jax.free_axes(ctx):
        return _jax.lower_alike(ctx, _throw_inside_jit, *args, **params)
    everywhere = _jax.everywhere(ctx)
    if everywhere is None:
        axes = tuple(_jax.split_axes(ctx, ctx.avals_in[-2]).items())
        return _jax.lower_unchecked(ctx, _throw_inside_jit, *args, **params, axes=axes)
    return _jax.lower_unsplit(ctx, _throw_inside_jit, *args, **params, everywhere=everywhere)


def _batch_throw(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    *_, code_dim, site_dim = dims
    *answers, code, site = args
    if code_dim:
        code, site = jnp.moveaxis(code, code_dim, 0), jnp.moveaxis(site, site_dim, 0)
    return throw_p.bind(*answers, code, site, **params), list(dims[:-2])


def _jvp_throw(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    return throw_p.bind(*primals, **params), list(tangents[:-2])


def _linearize_throw(nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
    """Tangents pass through. JAX would find this by tracing the JVP at every gradient."""
    outs = throw_p.bind(*primals, **params)
    return outs, list(nonzero[:-2]), [], lambda residuals, *tangents: list(tangents[:-2])


_jax.needs_devices(throw_p)
mlir.register_lowering(throw_p, _lower_throw)
_jax.on_linearize(throw_p, _linearize_throw)
batching.fancy_primitive_batchers[throw_p] = _batch_throw
ad.primitive_jvps[throw_p] = _jvp_throw
