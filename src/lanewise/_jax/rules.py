"""What a primitive of ours registers with JAX: effects, derivatives, partial evaluation, lowering."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.interpreters.ad as ad
import jax.interpreters.mlir as mlir
from jax._src import callback as _callback
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import effects as _effects
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _pe

from lanewise._jax.jaxprs import JaxprEqn, Primitive, Var, new_var
from lanewise._jax.values import aval_of, has_tangent, unchecked, zero_tangent
from lanewise._jax.walk import restricted

Effect = _effects.Effect


def allow_effect(effect: type[Effect]) -> None:
    """Let an effect pass through control flow, custom derivatives and remat."""
    for table in (
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.lowerable_effects,
    ):
        table.add_type(effect)


def on_linearize(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register what `jax.linearize` and `jax.grad` do at a primitive.

    The rule takes which operands have tangents, and the operands. (JAX also says whether the map will be transposed.)
    """

    # Since 0.12 there may also be residuals that are not arrays.
    names = _ad.LinearizeTrace.process_primitive.__code__.co_varnames
    others = (None,) if "structured_res" in names else ()

    def registered(is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        del is_vjp
        outs, out_nonzero, residuals, linear = rule(nonzero, *primals, **params)

        def linear_map(residuals: Sequence[Any], *args: Any) -> Any:
            return linear(residuals, *args[len(others) :])

        return outs, out_nonzero, residuals, *others, linear_map

    _ad.primitive_linearizations[primitive] = registered


def linearized(
    run: Callable[..., list[Any]], nonzero: Sequence[bool], primals: Sequence[Any]
) -> Any:
    """What such a rule gives for a function of these values, by JAX's own linearization of what it does."""
    of_moved, own = restricted(run, primals, nonzero)
    outs, linear = jax.linearize(of_moved, *own)
    residuals, tree = jax.tree.flatten(linear)
    flags = [has_tangent(aval_of(x)) for x in outs]

    def tangents_of(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        given = [
            _ad.instantiate_zeros(t) for t, flag in zip(tangents, nonzero, strict=True) if flag
        ]
        moved = jax.tree.unflatten(tree, residuals)(*given)
        return [
            t if flag else zero_tangent(x) for t, x, flag in zip(moved, outs, flags, strict=True)
        ]

    return outs, flags, residuals, tangents_of


def differentiated_as(primitive: Primitive, run: Callable[..., list[Any]]) -> None:
    """Have a primitive's derivatives, of any order, be those of a function."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        moves = [type(t) is not ad.Zero for t in tangents]
        of_moved, own = restricted(functools.partial(run, **params), primals, moves)
        return jax.jvp(of_moved, own, list(itertools.compress(tangents, moves)))

    def linearize(nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        return linearized(functools.partial(run, **params), nonzero, primals)

    _ad.primitive_jvps[primitive] = jvp
    on_linearize(primitive, linearize)


def on_partial_evaluation(primitive: Primitive, known_part: Callable[..., Any]) -> None:
    """Register what `jax.checkpoint` does at a primitive when some operands are unknown.

    `known_part` takes which are unknown and the parameters, and gives what can be computed all the same: the numbers of
    its operands, how many of the first results it gives, how many unknown ones follow those, and its parameters.
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


def lower_unchecked(ctx: Any, fun: Callable[..., Sequence[Any]], *args: Any, **params: Any) -> Any:
    """Lower a primitive as the function `fun` of flat arrays."""
    avals_in, avals_out = (
        [aval.update(manual_axis_type=_core.ManualAxisType()) for aval in avals]
        for avals in (ctx.avals_in, ctx.avals_out)
    )
    ctx = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    with unchecked():
        return mlir.lower_fun(fun, multiple_results=True)(ctx, *args, **params)


def lowered_as(primitive: Primitive, run: Callable[..., Sequence[Any]]) -> None:
    """Have a primitive lowered as a function of flat arrays, without checks of what devices have."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        return lower_unchecked(ctx, run, *args, **params)

    mlir.register_lowering(primitive, lower)


# What an equation that calls the host has: JAX then neither drops it nor runs it twice.
calls_host = _callback._IOEffect


def lower_host_call(ctx: Any, fun: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Any:
    """Lower a primitive as a call of Python on the host: `fun` takes NumPy arrays and gives some.

    `io_callback` hands its function JAX's arrays, which it makes while XLA waits for the call: with few cores they may
    wait for each other forever. The arrays given here are XLA's own memory, and `fun` must not keep them.
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


def lowers_for_export(ctx: Any) -> bool:
    """Whether what is lowered is to be written down by `jax.export`."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def forget_failed_effects() -> None:
    """Forget functions with effects that this thread has started and that failed.

    Their errors were raised already. JAX would raise them again at the next wait for effects, or when the process ends.
    """
    tokens = _dispatch.runtime_tokens.output_runtime_tokens
    for device, token in list(tokens.items()):
        try:
            token.block_until_ready()
        except Exception:
            del tokens[device]
