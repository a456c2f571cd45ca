"""Rules of what acts on each element separately; division that rounds down by a power of two is a shift or a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cpp import checking
from cpp.cases import FLOATS, INTS, Case, check, numbers

GROUPS = pytest.mark.parametrize(
    "dtypes",
    [FLOATS[:2], FLOATS[2:], INTS[:4], INTS[4:]],
    ids=["narrow", "floats", "ints", "unsigned"],
)

ANY = {
    "add": lambda x, y: (lax.add(x, y), x + 1),
    "sub": lambda x, y: (lax.sub(x, y), 1 - x),
    "mul": lambda x, y: (lax.mul(x, y), x * 3),
    "div": lambda x, y: (lax.div(x, y), lax.div(x, jnp.asarray(3, x.dtype))),
    "rem": lambda x, y: (lax.rem(x, y), lax.rem(x, jnp.asarray(3, x.dtype))),
    "max": lax.max,
    "min": lax.min,
    "sign": lambda x, y: lax.sign(x),
    "integer_pow": lambda x, y: (lax.integer_pow(x, 2), lax.integer_pow(x, 5), lax.square(y)),
    "compare": lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y, lax.eq(x, x)),
    "select_n": lambda x, y: (lax.select(x > y, x, y), lax.select_n(jnp.int32(2), x, y, x + y)),
    "clamp": lambda x, y: lax.clamp(jnp.asarray(1, x.dtype), x, jnp.asarray(5, x.dtype)),
}
SIGNED = {"neg": lambda x, y: -x, "abs": lambda x, y: abs(x)}
BITS = {
    "logic": lambda x, y: (x & y, x | y, x ^ y, ~x),
    "shift_left": lambda x, y: lax.shift_left(x, y & 127),
    "shift_right_logical": lambda x, y: lax.shift_right_logical(x, y & 127),
    "shift_right_arithmetic": lambda x, y: lax.shift_right_arithmetic(x, y & 127),
    "population_count": lambda x, y: lax.population_count(x),
    "clz": lambda x, y: lax.clz(x),
}
REAL = {
    "round": lambda x, y: (
        lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        lax.floor(x),
        lax.ceil(x),
    ),
    "is_finite": lambda x, y: lax.is_finite(x),
    "negative_power": lambda x, y: lax.integer_pow(x, -3),
    "reduce_precision": lambda x, y: (lax.reduce_precision(x, 5, 4), lax.reduce_precision(x, 8, 7)),
}
# Two libraries need not round alike: they may differ by this many units in the last place.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "exp": (lax.exp, 4),
    "exp2": (lax.exp2, 4),
    "expm1": (lax.expm1, 8),
    "log": (lax.log, 4),
    "log1p": (lax.log1p, 8),
    "sqrt": (lax.sqrt, 1),
    "rsqrt": (lax.rsqrt, 2),
    "cbrt": (lax.cbrt, 4),
    "sin": (lax.sin, 4),
    "cos": (lax.cos, 4),
    "tan": (lax.tan, 8),
    "asin": (lax.asin, 8),
    "acos": (lax.acos, 8),
    "atan": (lax.atan, 8),
    "sinh": (lax.sinh, 8),
    "cosh": (lax.cosh, 8),
    "tanh": (lax.tanh, 8),
    "asinh": (lax.asinh, 8),
    "acosh": (lax.acosh, 8),
    "atanh": (lax.atanh, 8),
    "logistic": (lax.logistic, 8),
    "erf": (lax.erf, 8),
    "erfc": (lax.erfc, 64),
}


@GROUPS
def test_arithmetic(dtypes: tuple[str, ...]) -> None:
    with jax.enable_x64(True):
        cases = []
        for dtype in dtypes:
            x, y = numbers(dtype, 3, 7), numbers(dtype, 3, 7, seed=5)
            table = dict(ANY)
            if not dtype.startswith("u"):
                table |= SIGNED
            table |= BITS if "int" in dtype else REAL
            cases += [Case(f"{dtype} {name}", f, (x, y), 1) for name, f in table.items()]
        check(cases)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(dtype: str) -> None:
    with jax.enable_x64(True):
        x = numbers(dtype, 24)
        inside = jnp.asarray(np.linspace(-0.9, 0.9, 24).reshape(3, 8)).astype(dtype)
        cases = [Case(f"{dtype} {n}", f, (x,), ulps) for n, (f, ulps) in FUNCTIONS.items()]
        cases += [
            Case(f"{dtype} {n} inside", f, (inside,), ulps) for n, (f, ulps) in FUNCTIONS.items()
        ]
        positive = jnp.abs(inside) + jnp.asarray(0.5, dtype)
        cases += [
            Case(
                f"{dtype} pow", lambda a, b: (lax.pow(a, b), lax.pow(a, 3)), (positive, inside), 8
            ),
            Case(f"{dtype} atan2", lax.atan2, (x, numbers(dtype, 24, seed=3)), 8),
        ]
        check(cases)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_keep_their_order(dtype: str) -> None:
    """-0 is below 0, whichever comes first, and a NaN is the answer on either side."""
    x = np.array([[0.0, -0.0, 0.0, -0.0, np.nan, 1.0, np.inf, -np.inf]])
    y = np.array([[-0.0, 0.0, 0.0, -0.0, 1.0, np.nan, np.nan, -0.0]])

    def signs(a: Any) -> Any:
        return a, jnp.signbit(a)

    def extremes(x: Any, y: Any) -> Any:
        both = jnp.stack([x, y])
        return [
            signs(found)
            for found in (
                lax.max(x, y),
                lax.min(x, y),
                lax.clamp(x, y, jnp.full_like(x, 2)),
                lax.clamp(jnp.full_like(x, -2), y, x),
                both.max(0),
                both.min(0),
                lax.cummax(both),
                lax.cummin(both),
            )
        ]

    with jax.enable_x64(True):
        arrays = [jnp.asarray(np.repeat(a, 3, 0)).astype(dtype) for a in (x, y)]
        check([Case(f"{dtype} extremes", extremes, tuple(arrays), 0)])


def test_neighbours() -> None:
    with jax.enable_x64(True):
        check(
            [
                Case(
                    f"{dtype} nextafter",
                    lax.nextafter,
                    (numbers(dtype, 24), numbers(dtype, 24, seed=3)),
                )
                for dtype in ("float32", "float64")
            ]
        )


KINDS = (*FLOATS, *INTS, "bool", "complex64")


def test_conversions() -> None:
    with jax.enable_x64(True):
        cases = []
        for source in KINDS:
            x = numbers(source, 24)
            if source in FLOATS:
                x = np.concatenate(
                    [x, x * jnp.asarray(1e4, source), x * jnp.asarray(0.1, source)], 1
                )
            targets = [t for t in KINDS if not (source == "complex64" and t == "bool")]

            def convert(x: Any, targets: tuple[str, ...] = tuple(targets)) -> Any:
                return [lax.convert_element_type(x, target) for target in targets]

            cases.append(Case(f"from {source}", convert, (x,), 0))
        check(cases)


def test_bit_casts() -> None:
    pairs = [
        ("float32", "int32"),
        ("float32", "uint8"),
        ("float64", "uint32"),
        ("int16", "bfloat16"),
        ("float16", "uint16"),
        ("uint64", "float64"),
    ]
    with jax.enable_x64(True):
        cases = [
            Case(
                f"{a} as {b}",
                lambda x, b=b: lax.bitcast_convert_type(x, b),
                (numbers(a, 6, special=False),),
                0,
            )
            for a, b in pairs
        ]
        cases.append(
            Case(
                "uint8 as float32",
                lambda x: lax.bitcast_convert_type(x, jnp.float32),
                (numbers("uint8", 3, 4),),
                0,
            )
        )
        check(cases)


def test_truth_values() -> None:
    x, y = numbers("bool", 9), numbers("bool", 9, seed=1)
    check(
        [
            Case("logic", lambda x, y: (x & y, x | y, x ^ y, ~x), (x, y)),
            Case("compare", lambda x, y: (x == y, x != y, x < y, x >= y), (x, y)),
            Case("extremes", lambda x, y: (lax.max(x, y), lax.min(x, y)), (x, y)),
            Case("select", lambda x, y: lax.select_n(x, y, ~y), (x, y)),
        ]
    )


COMPLEX = {
    "arithmetic": lambda x, y: (x + y, x - y, x * y, x / y, -x, x * 2.0, lax.integer_pow(x, 3)),
    "compare": lambda x, y: (x == y, x != y, x == x),
    "parts": lambda x, y: (
        x.real,
        x.imag,
        lax.conj(x),
        abs(x),
        lax.sign(x),
        lax.complex(x.real, y.imag),
    ),
    "exponentials": lambda x, y: (
        jnp.exp(x),
        jnp.log(x),
        jnp.sqrt(x),
        jnp.expm1(x),
        jnp.log1p(x),
        lax.rsqrt(x),
    ),
    "circular": lambda x, y: (
        jnp.sin(x),
        jnp.cos(x),
        jnp.tan(x),
        jnp.sinh(x),
        jnp.cosh(x),
        jnp.tanh(x),
    ),
    "inverse": lambda x, y: (
        jnp.arctan(x),
        jnp.arctanh(x),
        jnp.arcsinh(x),
        jnp.arccosh(x),
        jnp.arccos(x),
    ),
    "powers": lambda x, y: (x**y, lax.logistic(x)),
}


def test_complex_numbers() -> None:
    x, y = numbers("complex64", 9), numbers("complex64", 9, seed=1)
    check([Case(name, f, (x, y), 32) for name, f in COMPLEX.items()])


def test_special_functions() -> None:
    x = np.linspace(-0.95, 0.95, 24).reshape(3, 8)
    positive = np.linspace(0.1, 20.0, 24).reshape(3, 8)
    cases = []
    with jax.enable_x64(True):
        for dtype in ("float32", "float64"):
            inside, above = jnp.asarray(x, dtype), jnp.asarray(positive, dtype)
            cases += [
                Case(f"{dtype} erf_inv", lax.erf_inv, (inside,), 16),
                # Near its zeros at 1 and 2 XLA's own answer is right to an absolute error only.
                Case(f"{dtype} lgamma", lax.lgamma, (above,), 16, True),
                Case(f"{dtype} digamma", lax.digamma, (above,), 64, True),
                Case(
                    f"{dtype} bessel",
                    lambda a: (lax.bessel_i0e(a), lax.bessel_i1e(a)),
                    (above,),
                    16,
                ),
                Case(f"{dtype} zeta", lambda a: lax.zeta(a + 1.5, a), (above,), 64),
                Case(f"{dtype} polygamma", lambda a: lax.polygamma(jnp.round(a), a), (above,), 256),
                Case(
                    f"{dtype} igamma",
                    lambda a: (lax.igamma(a, a + 1), lax.igammac(a, a)),
                    (above,),
                    256,
                ),
            ]
        check(cases)


NUMBERS = np.r_[-70:70, -(2**31) : -(2**31) + 9, 2**31 - 9 : 2**31].astype(np.int32)

BY_POWERS: dict[str, Callable[[Any], Any]] = {
    "quotient": lambda n: n // 4,
    "remainder": lambda n: n % 8,
    "both": lambda n: (n // 2, n % 2),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "not a power": lambda n: (n // 5, n % 6),
    "a negative power": lambda n: (n // -4, n % -8),
    "another remainder": lambda n: jnp.where((n < 0) & (n % 4 != 0), n % 8 + 4, n % 8),
}


@pytest.mark.parametrize("name", [*BY_POWERS, *OTHERS])
def test_every_number_is_rounded_down(name: str) -> None:
    checking.check({**BY_POWERS, **OTHERS}[name], NUMBERS)


@pytest.mark.parametrize("name", BY_POWERS)
def test_powers_are_shifts_and_masks(name: str) -> None:
    text = checking.kernel_of(BY_POWERS[name], [np.int32(1)], [True]).text
    body = text[text.index("lanewise_kernel(") :]
    assert " >> " in body or " & 1)" in body or " & 7)" in body
