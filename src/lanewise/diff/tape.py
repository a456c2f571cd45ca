"""Tapes of unknown length: stacks of records that the forward sweep pushes and the reverse sweep pops.

A tape has room for a number of records. A lane that needs more ends with `Outcome.TAPE_FULL` inside `jit`. Outside, a
machine by `ticks` lets it wait there, and it goes on when the host has given it a longer tape
(`grow/larger.py`); where lanes run separately, those that ended so run again (`grow/rerun.py`).

A tape starts `unfilled`: a kernel does not write what it holds at first, and touches only the pages that records
reach. What is read was written, at every tape: a place is read only where the reverse sweep pops it, popping takes
the records that were pushed in the opposite order and from the same places, and a push that does not fit ends the lane
before anything is read. A finished lane that runs along with others (a loop under `jax.vmap`) may read beyond that; its
result is then thrown away by a select.
"""

from __future__ import annotations

from typing import Any

from lanewise import _jax
from lanewise._jax import mlir
from lanewise.core.errors import Outcome
from lanewise.core.program import check_outcome

unfilled_p = _jax.Primitive("unfilled")


def unfilled(aval: _jax.ShapedArray, *, zeros: bool = False) -> Any:
    """An array that is written before it is read. XLA fills it with zeros, as do all carriers if they are asked for."""
    if zeros or 0 in aval.shape or _jax.is_extended(aval.dtype):
        return _jax.zeros(aval)
    return unfilled_p.bind(shape=tuple(aval.shape), dtype=aval.dtype)


def _zeros(*, shape: tuple[int, ...], dtype: Any) -> Any:
    return _jax.zeros(_jax.shaped(shape, dtype))


unfilled_p.def_impl(_zeros)
unfilled_p.def_abstract_eval(lambda *, shape, dtype: _jax.shaped(shape, dtype))
mlir.register_lowering(unfilled_p, mlir.lower_fun(_zeros, multiple_results=False))


def check_room(fits: Any, waits: bool) -> None:
    """End the lane unless one more record fits on a tape; `waits`: a host may make room, and the lane go on."""
    check_outcome(fits, Outcome.TAPE_FULL, waits=waits)
