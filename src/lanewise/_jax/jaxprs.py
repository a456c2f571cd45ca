"""Code: functions traced to jaxprs, what these are made of, how they are changed and run; what is being traced here."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import special as _special
from jax._src.state import discharge as _discharge
from jax.core import ShapedArray, Tracer

from lanewise._jax.values import shape_dtype_struct, stored, without_mesh

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


# Before 0.10.2 the other name is of a function of two arguments.
_without_references: Callable[[Any], Any] = getattr(
    _discharge, "discharge_state2", _discharge.discharge_state
)
Atom = Var | Literal
Primitive = _core.Primitive
no_effects = _core.no_effects
select_n_p = jax.lax.select_n_p
closed_call_p = _core.closed_call_p


def primitive(name: str) -> Primitive:
    """A primitive of ours: it gives a list of results."""
    made = Primitive(name)
    made.multiple_results = True
    return made


def new_var(aval: ShapedArray) -> Var:
    return Var(aval)


def storage_struct(var: Var) -> jax.ShapeDtypeStruct:
    """The type of a variable's value as it is stored."""
    return jax.eval_shape(lambda x: stored(x, var.aval), shape_dtype_struct(var.aval))


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


def replace_eqns(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn]) -> Jaxpr:
    """The same code with other equations, and the constants it holds."""
    inner = cast(Any, getattr(jaxpr, "jaxpr", jaxpr))
    changed = inner.replace(eqns=list(eqns))
    return changed if inner is jaxpr else close_jaxpr(changed, attached_consts(jaxpr))


def flat_jaxpr(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """The same code with its constvars as leading inputs (0.12 has one class, 0.10 two)."""
    return new_jaxpr([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns)


def attached_consts(jaxpr: ClosedJaxpr | Jaxpr) -> tuple[Any, ...]:
    """The values a jaxpr holds for its constvars."""
    return tuple(getattr(jaxpr, "consts", ()))


def eval_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    return _core.eval_jaxpr(cast(Any, jaxpr), [], *args)


def eval_closed(jaxpr: ClosedJaxpr | Jaxpr, *args: Any) -> list[Any]:
    """Run code with the constants it holds."""
    return eval_jaxpr(flat_jaxpr(jaxpr), *attached_consts(jaxpr), *args)


def run_eqn(eqn: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """Bind one equation's primitive to values, keeping the user's source line."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with in_place_of(eqn), eqn.ctx.manager:
        out = eqn.primitive.bind(*args, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def in_place_of(eqn: JaxprEqn) -> Any:
    """A context in which what is bound has an equation's source line."""
    name_stack = _source_info_util.current_name_stack() + eqn.source_info.name_stack
    return _source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack)


def without_unused(jaxpr: Jaxpr) -> Jaxpr:
    """The same code without what no result needs, inside loops and branches too; inputs stay."""
    used = [True] * len(jaxpr.outvars)
    found, _ = _pe.dce_jaxpr(cast(Any, jaxpr), used, instantiate=True)
    return cast(Jaxpr, found)


def used_inputs(jaxpr: Jaxpr) -> list[bool]:
    """Which inputs the results depend on."""
    _, used = _pe.dce_jaxpr(cast(Any, jaxpr), [True] * len(jaxpr.outvars), instantiate=False)
    return list(used)


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


def with_eqns(jaxpr: Jaxpr, change: Callable[[JaxprEqn], JaxprEqn]) -> Jaxpr:
    """The same code with each equation changed, inside loops and branches too; itself where none changes."""

    def inner(value: Any) -> Any:
        if isinstance(value, tuple | list):
            found = [inner(each) for each in value]
            same = all(a is b for a, b in zip(found, value, strict=True))
            if same:
                return value
            return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
        return with_eqns(value, change) if isinstance(value, ClosedJaxpr | Jaxpr) else value

    eqns = []
    for eqn in jaxpr.eqns:
        if any(True for _ in subjaxprs(eqn)):
            params = {name: inner(value) for name, value in eqn.params.items()}
            if any(params[name] is not eqn.params[name] for name in params):
                eqn = eqn.replace(params=params)
        eqns.append(change(eqn))
    same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else replace_eqns(jaxpr, eqns)


def subjaxprs(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    """The jaxprs an equation holds in its parameters."""
    yield from cast(Iterator[Jaxpr], _core.jaxprs_in_params(eqn.params))


def user_line(eqn: JaxprEqn) -> str:
    """`file:line (function)` of the user code that made an equation."""
    return _source_info_util.summarize(eqn.source_info)


def threefry_partitionable(eqn: JaxprEqn) -> bool:
    """Which of JAX's two layouts of random bits was set where an equation was traced."""
    return bool(eqn.ctx.threefry_partitionable)


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
    with without_mesh():
        return trace_at(fun, [shape_dtype_struct(aval) for aval in avals])


def trace_at(fun: Callable[..., Sequence[Any]], values: Sequence[Any]) -> Traced:
    """The same at the types of values, shardings included where they are part of types."""
    closed = jax.make_jaxpr(lambda *args: list(fun(*args)))(*values)
    # References that begin and end here (`jax.new_ref`): the same code on values.
    if any(type(effect).__name__ == "InternalMutableArrayEffect" for effect in closed.effects):
        closed = _without_references(closed)
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
    """Whether a value is a batch under `vmap`, of real values or of other batches; a batch of size zero has none."""
    if not isinstance(value, _batching.BatchTracer) or value.val.shape[value.batch_dim] == 0:
        return False
    return has_value(value.val) or is_batched(value.val)


def has_value(value: Any) -> bool:
    """Whether a value is known now, possibly with a derivative to be taken."""
    return not isinstance(without_derivative(value), Tracer)


def without_derivative(value: Any) -> Any:
    """A value whose derivative is to be taken, as the value alone."""
    while isinstance(value, Tracer) and not isinstance(value, _batching.BatchTracer):
        if not hasattr(value, "primal"):
            break
        value = value.primal
    return value


def is_there(value: Any) -> bool:
    """Whether a value is known now, or is a batch of such, possibly with a derivative to be taken."""
    value = without_derivative(value)
    return is_there(value.val) if isinstance(value, _batching.BatchTracer) else has_value(value)


def has_derivative(value: Any) -> bool:
    """Whether a derivative is to be taken of what is done with a value, or with a batch of such."""
    while isinstance(value, _batching.BatchTracer):
        value = value.val
    return isinstance(value, _ad.LinearizeTracer | _ad.JVPTracer)


def is_linearized(value: Any) -> bool:
    """The same for a derivative that is taken backwards."""
    while isinstance(value, _batching.BatchTracer):
        value = value.val
    return isinstance(value, _ad.LinearizeTracer) or (
        isinstance(value, _ad.JVPTracer) and is_linearized(value.primal)
    )


def stages() -> bool:
    """Whether what is bound here is staged to be run later; derivatives and batches that are taken do not count."""
    trace = current_trace()
    while hasattr(trace, "parent_trace") and not isinstance(trace, _core.EvalTrace):
        trace = trace.parent_trace
    return not isinstance(trace, _core.EvalTrace)


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


# `lax.digamma` at its pole at zero: minus infinity, or NaN as at its other poles, by JAX's version.
DIGAMMA_AT_ZERO_IS_INFINITE = jax.__version_info__ >= (0, 12)
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


# What is traced or lowered inside a branch is so inside the Python frames of that branch. An `elif` is a branch inside
# the other side of the one before, and so is all that follows an early return: each takes some twenty frames, and
# Python has a thousand, too few for the cases of an interpreter. Within `ROOM` there are more, and still an end.
#
# Most frames call Python from Python; those that go by C take up to two kilobytes of the thread's 8 MB each.
FRAMES = 3000


class _Room(contextlib.ContextDecorator):
    """A context with more frames, or a decorator. The limit is one for all threads: the last to leave sets it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, FRAMES))
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setrecursionlimit(self._before)


ROOM = _Room()
