"""The draws of a stretch, inside a chain's program: room for a number of draws, filled a row at a time.

The room starts `unfilled` (`diff/tape.py`): a kernel touches only the rows that are written, so that room for many
draws costs nothing where there are few. A reader takes only the rows that were written (`Stretched.rows`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lanewise import _jax
from lanewise.diff.tape import unfilled
from lanewise.mcmc.samplers import Info


class Kept(NamedTuple):
    """Draws along the first axis, the step size of each and its statistics."""

    positions: Float[Array, "draws d"]
    logdensity: Float[Array, " draws"]
    step: Float[Array, " draws"]
    info: Info


def room(capacity: int, size: int, dtype: Any) -> Kept:
    """Room for draws of this many numbers; what it holds is not to be read."""
    # A check for NaN (`jax_debug_nans`) would find the memory's former content.
    zeros = _jax.looks_for_nan()

    def empty(dtype: Any, *shape: int) -> Any:
        return unfilled(_jax.shaped((capacity, *shape), jnp.dtype(dtype)), zeros=zeros)

    info = Info(empty(dtype), empty(dtype), empty(jnp.int32), empty(jnp.int32), empty(bool))
    return Kept(empty(dtype, size), empty(dtype), empty(dtype), info)


def no_info(dtype: Any) -> Info:
    """The statistics before there are any draws."""
    zero, none, no = jnp.zeros((), dtype), jnp.int32(0), jnp.array(False)
    return Info(zero, zero, none, none, no)


def kept_row(
    task: Any, made: Int[Array, ""], thin: Int[Array, ""], before: Int[Array, ""], capacity: int
) -> Int[Array, ""]:
    """The row of the draw with number `made` in its phase; one that is not kept goes beyond the end."""
    keeps: Bool[Array, ""] = (task.thin > 0) & (made % thin == 0)
    return jnp.where(keeps, made // thin - 1 - before, capacity)


def with_draw(
    kept: Kept, row: Int[Array, ""], position: Array, logdensity: Array, step: Array, info: Info
) -> Kept:
    """The draws with one more; what is written beyond the end is dropped."""
    return Kept(
        positions=kept.positions.at[row].set(position),
        logdensity=kept.logdensity.at[row].set(logdensity),
        step=kept.step.at[row].set(step),
        info=Info(*(history.at[row].set(value) for history, value in zip(kept.info, info))),
    )
