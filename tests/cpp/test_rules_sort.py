"""Rules of sorting: order, ties, NaN, several operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cpp.cases import EXAMPLES, FLOATS, INTS, Case, check, numbers


def _both_axes(x: Any) -> Any:
    return lax.sort(x, dimension=0), lax.sort(x, dimension=1)


def _with_ties(x: Any) -> Any:
    """Two keys and what goes with them; stable, so that the third operand shows the order of ties."""
    places = lax.broadcasted_iota(np.int32, x.shape, 1)
    return lax.sort((jnp.round(x), -jnp.round(2 * x), places), num_keys=2)


def test_sort_of_every_dtype() -> None:
    with jax.enable_x64(True):
        cases = [
            Case(kind, _both_axes, (numbers(kind, 5, 6),), 0) for kind in (*FLOATS, *INTS, "bool")
        ]
        cases.append(Case("complex64", _both_axes, (numbers("complex64", 5, 6).round(),), 0))
        check(cases)


def test_long_and_short_axes_with_ties() -> None:
    cases = []
    for size in (1, 2, 3, 12, 13, 16, 33, 100):
        x = numbers("float32", 2, size)
        cases += [
            Case(f"ties {size}", _with_ties, (x,), 0),
            Case(f"argsort {size}", lambda x: (jnp.argsort(x.round()), jnp.argsort(-x)), (x,)),
            Case(f"long axis first {size}", lambda x: lax.sort(x.T, dimension=0), (x,), 0),
        ]
    check(cases)


def test_equal_zeros_and_nans_keep_their_order() -> None:
    x = np.array([0.0, -0.0, 1.0, np.nan, -0.0, 0.0, -np.nan, -1.0] * 3, np.float32)
    signs = lambda x: jnp.signbit(lax.sort(x))  # noqa: E731
    check(
        [
            Case("short", signs, (np.tile(x[:8], (EXAMPLES, 1)),)),
            Case("long", signs, (np.tile(x, (EXAMPLES, 1)),)),
        ]
    )


def test_top_k() -> None:
    cases = []
    for kind in ("float32", "bfloat16", "int32", "uint8"):
        for size, k in ((1, 1), (6, 2), (40, 17), (9, 9)):
            label = f"{kind} {k} of {size}"
            cases.append(Case(label, lambda x, k=k: lax.top_k(x, k), (numbers(kind, 2, size),), 0))
    awkward = np.array([0.0, -0.0, np.nan, 1, -0.0, 0.0, np.inf, -np.inf], np.float32)
    awkward = np.tile(awkward, (EXAMPLES, 1))
    cases.append(
        Case("awkward", lambda x: (lax.top_k(x, 6), jnp.signbit(lax.top_k(x, 8)[0])), (awkward,))
    )
    check(cases)
