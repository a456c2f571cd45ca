"""The only file that touches JAX internals; what differs between 0.10 and 0.12 is here.

What `jax.extend.core` offers is taken from where it takes it: importing `jax.extend` imports Pallas, which costs as
much as a third of Lanewise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.interpreters.ad as ad
import jax.interpreters.batching as batching
import jax.interpreters.mlir as mlir
from jax._src import callback as _callback
from jax._src import config as _config
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import lax as _lax
from jax._src.lax import special as _special
from jax.core import ShapedArray, Tracer
from jax.sharding import NamedSharding, PartitionSpec

# To JAX's annotations a variable's type may be any abstract value; in a program's code all are arrays.
if TYPE_CHECKING:

    class Var:
        aval: ShapedArray

        def __init__(self, aval: ShapedArray) -> None: ...

    class DropVar(Var): ...

    class Literal:
        val: Any
        aval: ShapedArray

        def __init__(self, val: Any, aval: ShapedArray) -> None: ...

    class JaxprEqn:
        invars: list[Var | Literal]
        outvars: list[Var]
        primitive: _core.Primitive
        params: dict[str, Any]
        effects: Set[Any]
        source_info: Any
        ctx: Any

        def replace(self, **changes: Any) -> JaxprEqn: ...

    class Jaxpr:
        constvars: list[Var]
        invars: list[Var]
        outvars: list[Var | Literal]
        eqns: list[JaxprEqn]
        effects: Set[Any]

        def __init__(self, *parts: Any) -> None: ...

    class ClosedJaxpr(Jaxpr):
        jaxpr: Jaxpr
        consts: list[Any]
else:
    Jaxpr = _core.Jaxpr
    ClosedJaxpr = getattr(_core, "ClosedJaxpr", _core.Jaxpr)  # 0.12 has one class for both
    JaxprEqn = _core.JaxprEqn
    Var = _core.Var
    Literal = _core.Literal
    DropVar = _core.DropVar

Atom = Var | Literal
Primitive = _core.Primitive
Effect = _effects.Effect

no_effects = _core.no_effects
HOST, DEVICE = _core.MemorySpace.Host, _core.MemorySpace.Device
select_n_p = jax.lax.select_n_p

# To JAX too, the line that made an equation is the user's, not one of ours.
_source_info_util.register_exclusion(os.path.dirname(__file__))


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


def flat_jaxpr(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """The same code with its constvars as leading inputs (0.12 has one class, 0.10 two)."""
    return new_jaxpr([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns)


def attached_consts(jaxpr: ClosedJaxpr | Jaxpr) -> tuple[Any, ...]:
    """The values a jaxpr holds for its constvars."""
    return tuple(getattr(jaxpr, "consts", ()))


def eval_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    return _core.eval_jaxpr(cast(Any, jaxpr), [], *args)


def trace_context() -> Any:
    """Everything global that tracing depends on: x64, promotion, axis names, meshes."""
    return _config.trace_context()


def new_var(aval: ShapedArray) -> Var:
    return Var(aval)


def new_eqn(
    invars: Sequence[Atom], outvars: Sequence[Var], primitive: Primitive, params: dict[str, Any]
) -> JaxprEqn:
    eqn = _core.new_jaxpr_eqn(
        list(invars),
        list(outvars),
        primitive,
        params,
        no_effects,
        _source_info_util.new_source_info(),
    )
    return cast(JaxprEqn, eqn)


def new_jaxpr(invars: Sequence[Var], outvars: Sequence[Atom], eqns: Sequence[JaxprEqn]) -> Jaxpr:
    joined = frozenset(effect for eqn in eqns for effect in eqn.effects)
    names = tuple(f"x{i}" for i in range(len(invars)))
    debug_info = _core.DebugInfo("lanewise", "block", names, tuple("" for _ in outvars))
    return Jaxpr([], list(invars), list(outvars), list(eqns), joined, debug_info)


def close_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> ClosedJaxpr:
    return ClosedJaxpr(jaxpr, list(consts))


def without_unused(jaxpr: Jaxpr) -> Jaxpr:
    """The same code without what no result needs, inside loops and branches too; inputs stay."""
    used = [True] * len(jaxpr.outvars)
    found, _ = _pe.dce_jaxpr(cast(Any, jaxpr), used, instantiate=True)
    return cast(Jaxpr, found)


def used_inputs(jaxpr: Jaxpr) -> list[bool]:
    """Which inputs the results depend on."""
    _, used = _pe.dce_jaxpr(cast(Any, jaxpr), [True] * len(jaxpr.outvars), instantiate=False)
    return list(used)


def eval_closed(jaxpr: ClosedJaxpr | Jaxpr, *args: Any) -> list[Any]:
    """Run code with the constants it holds."""
    return eval_jaxpr(flat_jaxpr(jaxpr), *attached_consts(jaxpr), *args)


def without_effects(jaxpr: Jaxpr) -> Jaxpr:
    """The same code without equations that are there for their effects alone, inside loops and branches too."""

    def inner(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(inner(each) for each in value)
        if isinstance(value, ClosedJaxpr) and value.effects:
            return close_jaxpr(
                without_effects(getattr(value, "jaxpr", value)), attached_consts(value)
            )
        return value

    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.effects and not eqn.outvars:
            continue
        if eqn.effects:
            params = {name: inner(value) for name, value in eqn.params.items()}
            left = frozenset(e for code in _core.jaxprs_in_params(params) for e in code.effects)
            eqn = eqn.replace(params=params, effects=left)
        eqns.append(eqn)
    effects = frozenset(effect for eqn in eqns for effect in eqn.effects)
    return cast(Jaxpr, cast(Any, jaxpr).replace(eqns=eqns, effects=effects))


def subjaxprs(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    """The jaxprs an equation holds in its parameters."""
    yield from cast(Iterator[Jaxpr], _core.jaxprs_in_params(eqn.params))


def user_line(eqn: JaxprEqn) -> str:
    """`file:line (function)` of the user code that made an equation."""
    return _source_info_util.summarize(eqn.source_info)


def allow_effect(effect: type[Effect]) -> None:
    """Let an effect pass through control flow, custom derivatives and remat."""
    for table in (
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.lowerable_effects,
    ):
        table.add_type(effect)


def convert_to_aval(value: Any, aval: ShapedArray) -> Any:
    """Convert dtype and weak type (the public conversion always makes the type strong)."""
    return _lax._convert_element_type(value, aval.dtype, weak_type=bool(aval.weak_type))


def jit_disabled() -> bool:
    """Whether this is inside `jax.disable_jit()`."""
    return bool(_config.disable_jit.value)


def outside_traces() -> bool:
    """Whether an operation would run at once, not be traced or transformed."""
    return _core.trace_ctx.is_top_level() and not jit_disabled()


def default_platform() -> str:
    """Where arrays are put that are on no device yet."""
    device = _config.default_device.value
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def current_trace() -> Any:
    return _core.trace_ctx.trace


def runs_now() -> bool:
    """Whether what is bound here runs at once, for one value or under `vmap` for a batch: nothing is being staged."""
    trace = current_trace()
    while isinstance(trace, _batching.BatchTrace):
        trace = trace.parent_trace
    return isinstance(trace, _core.EvalTrace)


def trace_of(tracer: Any) -> Any:
    return tracer._trace


def zeros(aval: ShapedArray) -> Any:
    """Zeros of a type, typed PRNG keys included."""
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, shape_dtype_struct(aval))
        return wrap_key(jax.numpy.zeros(data.shape, data.dtype), aval)
    return jax.lax.full(aval.shape, 0, aval.dtype)


def is_key(aval: ShapedArray) -> bool:
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key))


def wrap_key(data: Any, aval: ShapedArray) -> Any:
    return jax.random.wrap_key_data(data, impl=aval.dtype._impl.name)


def key_implementation(dtype: Any) -> str:
    """The name of the random generator a typed key's dtype belongs to."""
    return str(dtype._impl.name)


def is_extended(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


def run_eqn(eqn: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """Bind one equation's primitive to values, keeping the user's source line."""
    params = eqn.primitive.get_bind_params(eqn.params)
    name_stack = _source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        _source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack),
        eqn.ctx.manager,
    ):
        out = eqn.primitive.bind(*args, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


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


def has_tangent(aval: ShapedArray) -> bool:
    """Whether values of this type have derivatives."""
    return not is_extended(aval.dtype) and bool(jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact))


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    return shaped(aval.shape, aval.dtype)


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


def zero_tangent(value: Any) -> Any:
    """The symbolic zero that stands for the tangent of a value."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())


@dataclass(frozen=True)
class ScanParts:
    """How a `scan` equation divides its operands."""

    num_consts: int
    num_carry: int
    length: int
    reverse: bool


def scan_parts(eqn: JaxprEqn) -> ScanParts:
    """From `num_consts` and `num_carry` on 0.10, from the flattened trees `ft_in` since."""
    params = eqn.params
    if "num_consts" in params:
        consts, carry = params["num_consts"], params["num_carry"]
    else:
        consts, carry, _ = (len(list(part.vals)) for part in params["ft_in"].unpack())
    return ScanParts(consts, carry, params["length"], params["reverse"])


def on_linearize(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register what `jax.linearize` and `jax.grad` do at a primitive.

    The rule takes which operands have tangents, and the operands. (JAX also says whether the map will be transposed.)
    """

    # Since 0.12 there may be residuals that are no arrays besides.
    names = _ad.LinearizeTrace.process_primitive.__code__.co_varnames
    others = (None,) if "structured_res" in names else ()

    def registered(is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        del is_vjp
        outs, out_nonzero, residuals, linear = rule(nonzero, *primals, **params)

        def linear_map(residuals: Sequence[Any], *args: Any) -> Any:
            return linear(residuals, *args[len(others) :])

        return outs, out_nonzero, residuals, *others, linear_map

    _ad.primitive_linearizations[primitive] = registered


def on_partial_evaluation(primitive: Primitive, known_part: Callable[..., Any]) -> None:
    """Register what `jax.checkpoint` does at a primitive when some operands are unknown.

    `known_part` tells, from which are unknown and the parameters, what can be computed all the same: the numbers of the
    operands of that, how many of the first results it gives, how many unknown ones follow those, and its parameters.
    The results after these are known too, and kept. The unknown ones are computed later. `None`: nothing is known.
    """

    def registered(
        saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: JaxprEqn
    ) -> Any:
        del saveable
        kept = [
            a
            for a, has in zip(eqn.invars, instantiated, strict=True)
            if isinstance(a, Var) and not has
        ]
        found = known_part(unknown, **eqn.params)
        everything = [True] * len(eqn.outvars)
        if found is None:
            return None, eqn, everything, everything, kept
        operands, first, moved, params = found
        outvars = [*eqn.outvars[:first], *eqn.outvars[first + moved :]]
        known = eqn.replace(
            invars=[eqn.invars[i] for i in operands], outvars=outvars, params=params
        )
        rest = len(eqn.outvars) - first - moved
        unknown_outs = [*[False] * first, *[True] * moved, *[False] * rest]
        # What is known is not taken from the second time: to a transposition all of that is linear in the unknown.
        staged = eqn.replace(
            outvars=[
                v if flag else new_var(v.aval)
                for v, flag in zip(eqn.outvars, unknown_outs, strict=True)
            ]
        )
        return known, staged, unknown_outs, unknown_outs, kept

    _pe.partial_eval_jaxpr_custom_rules[primitive] = cast(Any, registered)


# Under `jax.shard_map(..., check_vma=True)` types tell over which axes of the mesh a value varies. A program is one
# primitive to that check: what it takes is made to vary alike, what it gives varies so too, and inside nothing is
# checked, so that neither programs nor machines need to care (a fresh `jnp.zeros` varies over nothing).


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


def lower_unchecked(ctx: Any, fun: Callable[..., Sequence[Any]], *args: Any, **params: Any) -> Any:
    """Lower a primitive as the function `fun` of flat arrays."""
    avals_in, avals_out = (
        [aval.update(manual_axis_type=_core.ManualAxisType()) for aval in avals]
        for avals in (ctx.avals_in, ctx.avals_out)
    )
    ctx = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    with unchecked():
        return mlir.lower_fun(fun, multiple_results=True)(ctx, *args, **params)


# What an equation that calls the host has: JAX then neither drops it nor runs it twice.
calls_host = _callback._IOEffect


def lower_host_call(ctx: Any, fun: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """Lower a primitive as a call of Python on the host: `fun` takes NumPy arrays and gives some.

    `io_callback` hands its function JAX's arrays, which it makes while XLA waits for the call: with few cores they may
    wait for each other for ever. The arrays given here are XLA's own memory, and `fun` must not keep them.
    """
    sharding = _callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)
    results, _, _ = mlir.emit_python_callback(
        ctx,
        lambda *given: tuple(fun(*given)),
        None,
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=False,
        sharding=sharding,
    )
    return results


def lowering_platforms(ctx: Any) -> tuple[str, ...]:
    """What a lowering rule lowers for: "cpu", "gpu", ... ("cuda" and "rocm" are both GPUs)."""
    names = ctx.platforms or ctx.module_context.platforms
    return tuple("gpu" if name in ("cuda", "rocm") else name for name in names)


def threefry_partitionable(eqn: JaxprEqn) -> bool:
    """Which of JAX's two layouts of random bits was set where an equation was traced."""
    return bool(eqn.ctx.threefry_partitionable)


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
