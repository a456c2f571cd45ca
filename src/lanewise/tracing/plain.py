"""Programs as plain Python, under `jax.disable_jit()`: real values, so that `print` and `pdb` work.

A call runs the function as it is written. Under `jax.vmap` that would meet a whole batch as one tracer, of which
Python's `if` cannot ask anything; so there a call is one primitive whose batching rule calls the function once for each
example. Derivatives need nothing: JAX takes them with real values anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import batching
from lanewise.core.objects import seen_plainly
from lanewise.tracing.signature import CallStatics, split_leaves

plain_p = _jax.Primitive("plain_python")
plain_p.multiple_results = True


def has_values(leaves: Sequence[Any]) -> bool:
    """Whether plain Python can run with these: values are there, perhaps those of a batch."""
    return all(_jax.has_value(leaf) or _jax.is_batched(leaf) for leaf in leaves)


def call_plainly(fun: Callable[..., Any], statics: CallStatics, dynamic: Sequence[Any]) -> Any:
    """`fun` of these arguments, of each example of a batch by itself."""
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = seen_plainly(*statics.join(leaves))
        arrays, rest, tree = split_leaves(fun(*args, **kwargs))
        found.append((rest, tree))
        return [jnp.asarray(x) for x in arrays]

    if not any(map(_jax.is_batched, dynamic)):
        args, kwargs = seen_plainly(*statics.join(dynamic))
        return fun(*args, **kwargs)
    answers = plain_p.bind(*map(jnp.asarray, dynamic), fun=flat)
    rest, tree = found[-1]
    return jax.tree.unflatten(tree, rest.join(answers))


def _each_by_itself(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], *, fun: Callable[..., Any]
) -> tuple[list[Any], list[int]]:
    def one(i: int) -> list[Any]:
        taken = [
            x if dim is None else jax.lax.index_in_dim(x, i, dim, keepdims=False)
            for x, dim in zip(args, dims, strict=True)
        ]
        return plain_p.bind(*taken, fun=fun) if any(map(_jax.is_batched, taken)) else fun(*taken)

    columns = [jnp.stack(c) for c in zip(*map(one, range(axis_data.size)), strict=True)]
    return columns, [0] * len(columns)


batching.fancy_primitive_batchers[plain_p] = _each_by_itself
