"""Sums that all lanes add to: the `accumulate` primitive.

An adjoint of an array that lanes share is a sum over lanes. As a value of each lane it would be as large as the array
times the number of lanes; as an *accumulator* it is held once. A program with accumulators (`Program.sums`) adds to
them by number and never reads them; they are given after its answers. `diff/accumulate.py` makes such programs.

It carries an effect so that no dead-code pass drops it. What is added is a value of the accumulator's shape; or, with
`places`, the windows of a `scatter-add`; or, with `at`, a part that begins at given indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lanewise import _jax


class Places(NamedTuple):
    """Where a `scatter-add` adds: its dimension numbers, and what it does with indices out of range."""

    dimension_numbers: Any
    mode: Any


class AccumulateEffect(_jax.Effect):
    """Keeps what adds to accumulators alive."""

    def __str__(self) -> str:
        return "accumulate"


accumulate_effect = AccumulateEffect()
_jax.allow_effect(AccumulateEffect)

accumulate_p = _jax.primitive("accumulate")


@accumulate_p.def_effectful_abstract_eval
def _accumulate_abstract(*operands: Any, **params: Any) -> Any:
    del operands, params
    return [], {accumulate_effect}


def held_as(dtype: Any) -> Any:
    """The type in which a sum of this type is held: many small parts are lost in a 16-bit float."""
    return jnp.promote_types(dtype, jnp.float32) if dtype in (jnp.float16, jnp.bfloat16) else dtype


def accumulated(params: dict[str, Any], whole: Any, operands: Sequence[Any]) -> Any:
    """What an accumulator is after an equation with these parameters and operands."""
    if params["places"] is not None:
        numbers, mode = params["places"]
        indices, updates = operands
        updates = updates.astype(whole.dtype)
        return lax.scatter_add(whole, indices, updates, numbers, mode=mode)
    part, *starts = operands
    part = lax.convert_element_type(part, whole.dtype)
    if not starts:
        return lax.add(whole, part)
    old = lax.dynamic_slice(whole, starts, part.shape, allow_negative_indices=False)
    new = lax.add(old, part)
    return lax.dynamic_update_slice(whole, new, starts, allow_negative_indices=False)


def accumulate(number: int, value: Any) -> None:
    """Add a value to an accumulator."""
    accumulate_p.bind(value, number=number, places=None)


def accumulate_at(number: int, part: Any, starts: Sequence[Any]) -> None:
    """Add a part to an accumulator, from these indices on; they are clipped as those of a slice are."""
    accumulate_p.bind(part, *starts, number=number, places=None)


def accumulate_places(number: int, indices: Any, updates: Any, places: Places) -> None:
    """Add windows to an accumulator, as `scatter-add` does."""
    accumulate_p.bind(indices, updates, number=number, places=places)
