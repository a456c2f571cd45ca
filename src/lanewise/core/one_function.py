"""Code that XLA:CPU compiles into one function of machine code, with its own loops and branches.

XLA:CPU runs a computation as many small kernels, but for a small loop, which its own pass makes a call of one function
and marks with an attribute. The attribute is ours to set: on a call of any size, inside any `jit`, with no flag.
The machine decides its guards that way, and the carrier `native` runs whole programs so where there is no C++ compiler.

What was considered: XLA's flag for the size of a "small" loop holds for a whole process and must be set before JAX
starts; JAX's own annotations (`set_xla_metadata`) mark everything inside the call too, which stays calls then.

What it does not do: the one-function code has no library calls; see `carriers/by_xla.py` for what is missing there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lanewise import _jax
from lanewise._jax import Jaxpr, batching, mlir

# The first is XLA's own mark; the other keeps the call from being inlined before that is looked at.
_ONE_FUNCTION = {"xla_cpu_small_call": "true", "inlineable": "false"}
# XLA finds the arguments of such a function by what reads them, and ends the process if nothing does. A second call
# inside the first, which stays a call too, reads them all.
_STAYS_A_CALL = {"inlineable": "false"}

one_function_p = _jax.primitive("one_function")
attributed_call_p = _jax.primitive("attributed_call")


def as_one_function(fun: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
    """`fun(*args)` (flat arrays in and out), on a CPU as one function of machine code with its own loops and branches.

    Elsewhere, and under a transformation, it is `fun` itself.
    """
    traced = _jax.trace(fun, [_jax.aval_of(arg) for arg in args])
    return one_function_p.bind(*traced.captures, *args, jaxpr=traced.jaxpr)


def _run_here(*args: Any, jaxpr: Jaxpr) -> list[Any]:
    return _jax.eval_jaxpr(jaxpr, *args)


@attributed_call_p.def_abstract_eval
@one_function_p.def_abstract_eval
def _one_function_abstract(*args: Any, jaxpr: Jaxpr) -> list[Any]:
    del args
    return [_jax.strong(var.aval) for var in jaxpr.outvars]


def _batch_one_function(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], *, jaxpr: Jaxpr
) -> tuple[list[Any], list[int | None]]:
    def one(*values: Any) -> list[Any]:
        return _jax.eval_jaxpr(jaxpr, *values)

    structs = [_jax.shape_dtype_struct(var.aval) for var in jaxpr.invars]
    moves = _jax.batched_outputs(one, structs, [dim is not None for dim in dims])
    axes = [0 if flag else None for flag in moves]
    batched = jax.vmap(one, in_axes=tuple(dims), out_axes=axes, axis_size=axis_data.size)
    return batched(*args), axes


batching.fancy_primitive_batchers[one_function_p] = _batch_one_function


def _lower_one_function(ctx: Any, *args: Any, jaxpr: Jaxpr) -> Any:
    return _lower_call(
        ctx, lambda *values: attributed_call_p.bind(*values, jaxpr=jaxpr), args, _ONE_FUNCTION
    )


def _lower_inner_call(ctx: Any, *args: Any, jaxpr: Jaxpr) -> Any:
    return _lower_call(ctx, lambda *values: _jax.eval_jaxpr(jaxpr, *values), args, _STAYS_A_CALL)


def _lower_call(
    ctx: Any, fun: Callable[..., Any], args: Sequence[Any], attributes: dict[str, str]
) -> Any:
    """A call of a function of its own, with the attributes on the call alone."""
    results = mlir.lower_fun(jax.jit(fun, keep_unused=True), multiple_results=True)(ctx, *args)
    if results:
        first = results[0][0] if isinstance(results[0], list | tuple) else results[0]
        strings: dict[str, Any] = {
            name: mlir.ir.StringAttr.get(value) for name, value in attributes.items()
        }
        first.owner.attributes["mhlo.frontend_attributes"] = mlir.ir.DictAttr.get(strings)
    return results


one_function_p.def_impl(
    lambda *args, jaxpr: jax.jit(_run_here, static_argnames="jaxpr")(*args, jaxpr=jaxpr)
)
mlir.register_lowering(one_function_p, mlir.lower_fun(_run_here, multiple_results=True))
mlir.register_lowering(one_function_p, _lower_one_function, platform="cpu")
mlir.register_lowering(attributed_call_p, _lower_inner_call)
