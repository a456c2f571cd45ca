"""Rules of special functions and of complex numbers, and how many primitives have a rule."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cpp.cases import EXAMPLES, Case, check, numbers
from lanewise.cpp.emit.rules import RULES, table

EDGES = [
    0,
    np.nan,
    np.inf,
    -np.inf,
    1,
    -1,
    -2,
    -0.5,
    2,
    0.25,
    30,
    -3.25,
    0.5,
    3.7,
    -3.7,
    20,
    0.999,
]
ZETA_EDGES = [0.0, 1.0, 2.0, 0.5, -1.0, 3.0, np.inf, np.nan]


def _between(low: float, high: float, size: int, kind: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, (EXAMPLES, size)).astype(kind)


def _edges(kind: str) -> np.ndarray:
    return np.tile(np.array(EDGES).astype(kind), (EXAMPLES, 1))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_special_functions(kind: str) -> None:
    """XLA's own are less exact than ours in places: its `lgamma` near its roots, its double `erf_inv` near 1."""
    shape, place = _between(0.1, 9, 60, kind), _between(0.1, 12, 60, kind, 1)
    inside = _between(-0.999, 0.999, 100, kind)
    loose = 64 if kind == "float32" else 1024
    with jax.enable_x64(True):
        cases = [
            Case(name, getattr(lax, name), (_edges(kind),), loose, True)
            for name in ("lgamma", "digamma", "erf", "erfc", "erf_inv", "bessel_i0e", "bessel_i1e")
        ]
        zeros = np.tile(np.array([0.0, -0.0]).astype(kind), (EXAMPLES, 1))
        cases += [
            Case(f"{name} of zero", getattr(lax, name), (zeros,), 1)
            for name in ("lgamma", "erf", "erfc", "erf_inv", "bessel_i0e", "bessel_i1e")
        ]
        cases += [
            Case("erf_inv inside", lax.erf_inv, (inside,), 16 if kind == "float32" else 256),
            Case("digamma, right", lax.digamma, (place,), loose, True),
            Case("digamma, left", lax.digamma, (-shape,), 4 * loose, True),
            Case("bessel", lambda x: (lax.bessel_i0e(x * 3), lax.bessel_i1e(-x * 3)), (place,), 64),
            Case(
                "igamma",
                lambda a, x: (lax.igamma(a, x), lax.igammac(a, x)),
                (shape, place),
                loose,
                True,
            ),
            Case("igamma_grad_a", lax.igamma_grad_a, (shape, place), 16 * loose, True),
            Case(
                "betainc",
                lax.betainc,
                (shape, place, _between(0, 1, 60, kind, 2)),
                loose,
                True,
            ),
            Case(
                "zeta",
                lambda a, q: (lax.zeta(a + 1.2, q), lax.polygamma(jnp.floor(a / 3), q)),
                (shape, place),
                4 * loose,
            ),
        ]
        for order in ZETA_EDGES:
            case = lambda q, order=order: lax.zeta(jnp.full_like(q, order), q)  # noqa: E731
            cases.append(Case(f"zeta({order}, .)", case, (_edges(kind),), loose))
        check(cases)


def test_special_functions_of_short_floats() -> None:
    def several(x: Any) -> Any:
        return lax.igamma(x, x), lax.digamma(x), lax.erf_inv(x / 20), lax.lgamma(x), lax.erf(x)

    check(
        [
            Case("float16", several, (_between(0.1, 9, 20, "float16"),), 4),
            Case(
                "bfloat16",
                several,
                (jnp.asarray(_between(0.1, 9, 20, "float32"), jnp.bfloat16),),
                4,
            ),
        ]
    )


def test_complex_functions() -> None:
    names = """acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p logistic neg rsqrt sign sin sinh sqrt
    square tan tanh abs conj real imag""".split()
    z, other = numbers("complex64", 40), numbers("complex64", 40, seed=5)
    cases = [Case(name, getattr(lax, name), (z / 2,), 16) for name in names]
    cases += [
        Case(
            "arithmetic", lambda a, b: (a + b, a - b, a * b, a / b, a == b, a != a), (z, other), 16
        ),
        Case(
            "powers",
            lambda a, b: (a**b, lax.integer_pow(a, 3), lax.integer_pow(a, -2)),
            (z, other / 3),
            64,
        ),
        Case(
            "parts", lambda x: (lax.complex(x, -x), lax.conj(lax.complex(x, x))), (np.real(z),), 0
        ),
        Case("selection", lambda a, b: jnp.where(a.real > 0, a, b), (z, other), 0),
        Case(
            "conversion",
            lambda x: (x.astype(jnp.complex64), (x > 0).astype(jnp.complex64)),
            (np.real(z),),
            0,
        ),
        Case("angle", lambda a: (jnp.angle(a), jnp.abs(a)), (z,), 16),
    ]
    check(cases)


def test_at_least_120_primitives_have_a_rule() -> None:
    """Counted are the names that JAX lists as primitives; rules of those it does not list come on top."""
    assert table.elementwise is not None
    listed = vars(importlib.import_module("jax.extend.core.primitives"))
    known = {value.name for value in listed.values() if hasattr(value, "bind")}
    assert len(known & RULES.keys()) >= 120, sorted(known & RULES.keys())
