"""Indexed writes under a mask.

A block that writes one element of a per-lane array must not rewrite the whole array to keep the lanes that are not
at the block as they were: the write itself is masked. A lane that is not at the block gets an index out of range, and
the scatter drops it. `masked_update` does that for the indexed writes JAX has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import JaxprEqn, Literal

UPDATES = frozenset(
    "dynamic_update_slice scatter scatter-add scatter_add scatter_sub scatter-sub scatter_mul scatter-mul"
    " scatter_min scatter-min scatter_max scatter-max".split()
)


def update_chain(eqns: Sequence[JaxprEqn], start: Any, atom: Any) -> list[JaxprEqn]:
    """The equations by which `atom` is `start` written at some places, last one first; empty if it is not."""
    made_by = {out: eqn for eqn in eqns for out in eqn.outvars}
    chain: list[JaxprEqn] = []
    while atom is not start:
        eqn = None if isinstance(atom, Literal) else made_by.get(atom)
        if eqn is None or eqn.primitive.name not in UPDATES or _jax.is_extended(atom.aval.dtype):
            return []
        chain.append(eqn)
        atom = eqn.invars[0]
    return chain


def masked_update(eqn: JaxprEqn, args: Sequence[Any], mask: Any) -> Any:
    """What the equation does where `mask` holds, and nothing elsewhere."""
    if eqn.primitive.name == "dynamic_update_slice":
        operand, update, *starts = args
        limits = [size - width for size, width in zip(operand.shape, update.shape, strict=True)]
        if not starts:
            return jnp.where(mask, update, operand)
        # Each in its own type, which may hold numbers that no other does; once inside, all fit the same.
        clamped = [
            jnp.clip(s, 0, min(limit, int(jnp.iinfo(s.dtype).max))).astype(jnp.int32)
            for s, limit in zip(starts, limits, strict=True)
        ]
        indices = jnp.where(mask, jnp.stack(clamped), jnp.iinfo(jnp.int32).max)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(operand.ndim)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(range(operand.ndim)),
        )
        return lax.scatter(
            operand,
            indices,
            update,
            numbers,
            indices_are_sorted=True,
            unique_indices=True,
            mode=lax.GatherScatterMode.FILL_OR_DROP,
        )
    operand, indices, update = args
    params = dict(eqn.params)
    numbers, mode = params["dimension_numbers"], lax.GatherScatterMode.from_any(params["mode"])
    if indices.dtype.itemsize < 4:
        # The largest number of the type must be outside of any array.
        indices = indices.astype(jnp.int32)
    if mode == lax.GatherScatterMode.CLIP:
        indices = _clipped(operand, indices, update, numbers)
    outside = jnp.asarray(jnp.iinfo(indices.dtype).max, indices.dtype)
    indices = jnp.where(mask, indices, outside)
    params["mode"] = lax.GatherScatterMode.FILL_OR_DROP
    return eqn.primitive.bind(operand, indices, update, **params)


def _clipped(operand: Any, indices: Any, update: Any, numbers: Any) -> Any:
    """Indices brought into range, as the `clip` mode does by itself."""
    collapsed = set(numbers.inserted_window_dims) | set(numbers.operand_batching_dims)
    windows = iter(numbers.update_window_dims)
    width = {d: 1 if d in collapsed else update.shape[next(windows)] for d in range(operand.ndim)}
    limits = [operand.shape[d] - width[d] for d in numbers.scatter_dims_to_operand_dims]
    return jnp.clip(indices, 0, jnp.asarray(limits, indices.dtype))
