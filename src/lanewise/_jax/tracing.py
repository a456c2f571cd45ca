"""Functions to code, and what is being traced where one stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src.interpreters import batching as _batching
from jax._src.lax import special as _special
from jax.core import ShapedArray, Tracer

from lanewise._jax.avals import shape_dtype_struct
from lanewise._jax.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, eval_jaxpr, flat_jaxpr


@dataclass(frozen=True)
class Traced:
    """A function traced once: replay it on flat arrays with a call.

    `jaxpr` has no constvars: its inputs are the captured values, then the arguments.
    """

    jaxpr: Jaxpr
    captures: tuple[Any, ...]

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return tuple(var.aval for var in self.jaxpr.outvars)

    def __call__(self, *args: Any) -> list[Any]:
        return eval_jaxpr(self.jaxpr, *self.captures, *args)


def trace(fun: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> Traced:
    """Trace `fun` (flat arrays in, flat arrays out) at the given abstract values.

    Values of enclosing traces that `fun` closes over become `captures`.
    """
    return trace_at(fun, [shape_dtype_struct(aval) for aval in avals])


def trace_at(fun: Callable[..., Sequence[Any]], values: Sequence[Any]) -> Traced:
    """The same at the types of values, shardings included where they are part of types."""
    closed = jax.make_jaxpr(lambda *args: list(fun(*args)))(*values)
    return Traced(flat_jaxpr(cast(ClosedJaxpr, closed)), tuple(closed.consts))


def trace_context() -> Any:
    """Everything global that tracing depends on: x64, promotion, axis names, meshes."""
    return _config.trace_context()


def jit_disabled() -> bool:
    """Whether this is inside `jax.disable_jit()`."""
    return bool(_config.disable_jit.value)


def looks_for_nan() -> bool:
    """Whether JAX looks for NaN or infinities in all that is computed (`jax.debug_nans`, `jax.debug_infs`)."""
    return bool(_config.debug_nans.value or _config.debug_infs.value)


def outside_traces() -> bool:
    """Whether an operation would run at once, not be traced or transformed."""
    return _core.trace_ctx.is_top_level() and not jit_disabled()


def current_trace() -> Any:
    return _core.trace_ctx.trace


def runs_now() -> bool:
    """Whether what is bound here runs at once, for one value or under `vmap` for a batch: nothing is being staged."""
    trace = current_trace()
    while isinstance(trace, _batching.BatchTrace):
        trace = trace.parent_trace
    return isinstance(trace, _core.EvalTrace)


def is_batched(value: Any) -> bool:
    """Whether a value is a batch under `vmap`, of real values or of other batches; one of none has no values."""
    if not isinstance(value, _batching.BatchTracer) or value.val.shape[value.batch_dim] == 0:
        return False
    return has_value(value.val) or is_batched(value.val)


def has_value(value: Any) -> bool:
    """Whether a value is there, if only with a derivative to be taken."""
    while isinstance(value, Tracer):
        if isinstance(value, _batching.BatchTracer) or not hasattr(value, "primal"):
            return False
        value = value.primal
    return True


def trace_of(tracer: Any) -> Any:
    return tracer._trace


def batched_outputs(
    fun: Callable[..., Sequence[Any]],
    structs: Sequence[jax.ShapeDtypeStruct],
    batched: Sequence[bool],
) -> tuple[bool, ...]:
    """Which outputs `jax.vmap` finds to vary when these inputs do."""
    found: list[tuple[bool, ...]] = []

    def look(*args: Any) -> list[Any]:
        here = current_trace()
        outs = fun(*args)
        found.append(tuple(isinstance(o, Tracer) and o._trace is here for o in outs))
        return []

    if not any(batched):
        return (False,) * len(jax.eval_shape(fun, *structs))
    with_axis = [
        jax.ShapeDtypeStruct((2, *s.shape), s.dtype) if flag else s
        for s, flag in zip(structs, batched, strict=True)
    ]
    jax.eval_shape(
        jax.vmap(look, in_axes=tuple(0 if flag else None for flag in batched)), *with_axis
    )
    return found[-1]


def broadcast_axes(in_axes: Any, args: tuple[Any, ...]) -> list[int | None]:
    """`in_axes` as `jax.vmap` takes them, one for each leaf of `args`."""
    axes = tuple(in_axes) if isinstance(in_axes, list | tuple) else (in_axes,) * len(args)
    if len(axes) != len(args):
        raise ValueError(f"it has {len(axes)} entries for {len(args)} arguments")
    spread = [
        jax.tree.map(
            lambda a, part: [a] * len(jax.tree.leaves(part)), axis, arg, is_leaf=lambda x: x is None
        )
        for axis, arg in zip(axes, args, strict=True)
    ]
    return jax.tree.leaves(spread, is_leaf=lambda x: x is None)


# Primitives that have no operation of their own in XLA: JAX lowers them as a function of other primitives.
_DEFINITIONS: dict[str, Callable[..., Any]] = {
    "igamma": _special.igamma_impl,
    "igammac": _special.igammac_impl,
    "igamma_grad_a": _special.igamma_grad_a_impl,
    "regularized_incomplete_beta": _special.regularized_incomplete_beta_impl,
}


def definition(eqn: JaxprEqn, avals: Sequence[Any]) -> Jaxpr:
    """What JAX defines a primitive to be, in terms of simpler ones, at operands of these types."""

    def code(*args: Any) -> list[Any]:
        name = eqn.primitive.name
        if name in _DEFINITIONS:
            return [_special._up_and_broadcast(_DEFINITIONS[name])(*args)]
        if name == "call_hi_primitive":
            (high,) = eqn.params.values()
            return jax.tree.leaves(high.expand(*jax.tree.unflatten(high.in_tree, args)))
        return [eqn.primitive.impl(*args, **eqn.params)]

    with eqn.ctx.manager:
        traced = trace(code, avals)
    assert not traced.captures
    return traced.jaxpr
