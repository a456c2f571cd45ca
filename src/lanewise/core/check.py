"""`assert` inside a program: the `check` primitive.

A check takes one boolean and gives nothing back; it carries an effect so that no dead-code pass drops
it. It never reaches XLA as itself: flattening turns it into a branch to a block that ends the lane with the outcome
that the check names, and a program that holds a check is never lowered structured.

The values that its message formats are operands too. Nothing is done with them until a lane has failed, and then only
outside `jit` (`rules/explain.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import ad, batching
from lanewise.core.errors import Location, Outcome

Writes = Callable[[Sequence[Any]], str]


class CheckEffect(_jax.Effect):
    """Keeps checks alive."""

    def __str__(self) -> str:
        return "check"


check_effect = CheckEffect()
_jax.allow_effect(CheckEffect)

check_p = _jax.Primitive("check")
check_p.multiple_results = True


@check_p.def_effectful_abstract_eval
def _check_abstract(ok: Any, *values: Any, **params: Any) -> Any:
    del ok, values, params
    return [], {check_effect}


def check(
    ok: Any,
    message: str,
    location: Location,
    writes: Writes | None = None,
    values: Sequence[Any] = (),
) -> None:
    """End the lane with `assertion failed` unless `ok` holds; `writes` makes the message of the values."""
    check_outcome(ok, Outcome.ASSERTION_FAILED, message, location, writes, values)


def check_outcome(
    ok: Any,
    outcome: Outcome,
    message: str = "",
    location: Location | None = None,
    writes: Writes | None = None,
    values: Sequence[Any] = (),
    *,
    waits: bool = False,
) -> None:
    """End the lane with an outcome unless `ok` holds; `waits`: a host may make it hold, and the lane go on."""
    params = {"message": message, "location": location, "writes": writes}
    check_p.bind(jnp.asarray(ok, bool), *values, outcome=outcome, waits=waits, **params)


def _batch_check(args: Any, dims: Any, **params: Any) -> Any:
    # An inner array axis: the lane's assertion holds when it holds all along the axis.
    ok, *values = args
    check_p.bind(jnp.all(ok), *values, **params)
    return [], []


batching.primitive_batchers[check_p] = _batch_check


def _jvp_check(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    check_p.bind(*primals, **params)
    return [], []


ad.primitive_jvps[check_p] = _jvp_check
