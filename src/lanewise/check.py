"""`assert` inside a program: the `check` primitive.

A check takes one boolean and gives nothing back; it carries an effect so that no dead-code pass drops
it. It never reaches XLA as itself: flattening turns it into a branch to a block that ends the lane with
`Outcome.ASSERTION_FAILED`, and a program that holds a check is never lowered structured.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import batching
from lanewise.errors import Location


class CheckEffect(_jax.Effect):
    """Keeps checks alive."""

    def __str__(self) -> str:
        return "check"


check_effect = CheckEffect()
_jax.allow_effect(CheckEffect)

check_p = _jax.Primitive("check")
check_p.multiple_results = True


@check_p.def_effectful_abstract_eval
def _check_abstract(ok: Any, *, message: str, location: Location) -> Any:
    del ok, message, location
    return [], {check_effect}


def check(ok: Any, message: str, location: Location) -> None:
    """End the lane with `assertion failed` unless `ok` holds."""
    check_p.bind(jnp.asarray(ok, bool), message=message, location=location)


def _batch_check(args: Any, dims: Any, *, message: str, location: Location) -> Any:
    # An inner array axis: the lane's assertion holds when it holds all along the axis.
    (ok,) = args
    check_p.bind(jnp.all(ok), message=message, location=location)
    return [], []


batching.primitive_batchers[check_p] = _batch_check
