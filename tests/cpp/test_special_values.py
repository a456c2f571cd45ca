"""Every elementwise primitive at special values, in C++ and by XLA: zeros, subnormals, infinities, NaN, poles, ties.

All primitives of all types are two kernels, one of one argument and one of two; their lanes are values, or pairs.

What is compared. Integers and bools bit for bit. Of floats, NaN where XLA has NaN, infinities, zeros with their signs,
and other numbers to a few units in the last place, as both sides approximate.

Where XLA is not the measure. On a CPU it has numbers below the normal range taken for zero, or not, as the code of a
primitive happens to be written and the vector width of the machine has it; so a result in that range counts as a zero
of its sign. What the C library's `pow` and `cbrt` then make of such numbers is arbitrary. The logarithm of the gamma
function is less exact in XLA near its zeros at 1 and 2, and `exp2` of 16-bit floats is the exponential of a rounded
product. Which zero a reduction of several finds is not looked at: it depends on how XLA's vectors are folded.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs

FLOATS = ("float32", "float64", "bfloat16", "float16")
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TYPES = ("bool", *WHOLE, *FLOATS)
# Units in the last place, relatively.
UNITS = {"float32": 160, "float64": 1 << 22, "bfloat16": 3, "float16": 4}

of_floats = """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc
    exp exp2 expm1 floor is_finite lgamma log log1p logistic neg rsqrt sign sin sinh sqrt square tan tanh""".split()
of_whole = "neg sign bitwise_not population_count clz square".split()
compared = "eq ne lt le gt ge max min".split()
of_two_floats = [*compared, *"add sub mul div rem pow atan2".split()]
of_two_wide_floats = "nextafter polygamma zeta".split()
of_two_whole = [
    *compared,
    *"add sub mul div rem bitwise_and bitwise_or bitwise_xor".split(),
    *"shift_left shift_right_logical shift_right_arithmetic".split(),
]
of_two_bools = [*compared, *"bitwise_and bitwise_or bitwise_xor".split()]


@functools.cache
def types() -> tuple[str, ...]:
    """All types; but XLA has no `float16` on a CPU without instructions for it."""
    try:
        jax.jit(lambda x: jnp.sin(x.astype("float16")))(jnp.float32(1.0))
    except jax.errors.JaxRuntimeError:
        return tuple(name for name in TYPES if name != "float16")
    return TYPES


def values_of(name: str) -> np.ndarray:
    if name == "bool":
        return np.array([False, True])
    if name in WHOLE:
        info = np.iinfo(name)
        ends = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, info.max // 3]
        some = [0, 1, 2, 3, 5, 7, 8, 15, 31, 32, 63, 64, -1, -2, -3, -7, -8, -64]
        return np.array([x for x in [*ends, *some] if info.min <= x <= info.max], dtype=name)
    info = jnp.finfo(name)
    least, normal, eps = map(float, (info.smallest_subnormal, info.smallest_normal, info.eps))
    top, ulp = float(info.max), 2.0**info.nmant
    sizes = [0.0, least, normal / 2, normal - least, normal, 2 * normal, 1e-3, eps, 0.25, 0.5]
    sizes += [1 - eps / 2, 1.0, 1 + eps, 1.5, 2.0, 2.5, 3.0, 3.5, 4.25, 7.0, 10.0, 25.0, 88.0]
    sizes += [100.0, 170.5, 1000.0, min(1e10, top), top / 2, top, np.inf, ulp - 0.5, ulp + 1]
    return np.array([*sizes, *(-x for x in sizes), np.nan]).astype(jnp.dtype(name))


def of_one(x: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for name, value in x.items():
        run = {}
        if name in FLOATS:
            run |= {each: getattr(lax, each)(value) for each in of_floats}
            for method in lax.RoundingMethod:
                run[f"round {method.name}"] = lax.round(value, method)
            if name in ("float32", "float64"):
                run["reduce_precision"] = lax.reduce_precision(value, 5, 10)
        elif name in WHOLE:
            run |= {each: getattr(lax, each)(value) for each in of_whole}
            run |= {"abs": lax.abs(value)} if name[0] == "i" else {}
        else:
            run["not"] = lax.bitwise_not(value)
        if name != "bool":
            powers = (2, 3, 7, -1, -2) if name in FLOATS else (2, 3, 7)
            run |= {f"integer_pow {power}": lax.integer_pow(value, power) for power in powers}
        run |= {f"to {to}": lax.convert_element_type(value, to) for to in types() if to != name}
        out |= {f"{name} {each}": found for each, found in run.items()}
    return out


def of_two(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for name, a in x.items():
        b = y[name]
        known = of_two_floats if name in FLOATS else of_two_whole if name in WHOLE else of_two_bools
        if name in ("float32", "float64"):
            known = [*known, *of_two_wide_floats]
        out |= {f"{name} {each}": getattr(lax, each)(a, b) for each in known}
        if name != "bool":
            out[f"{name} clamp"] = lax.clamp(lax.min(a, b), jnp.asarray(3, a.dtype), lax.max(a, b))
            out[f"{name} clamp to"] = lax.clamp(jnp.asarray(0, a.dtype), a, b)
    return out


@pytest.fixture(scope="module")
def singles() -> dict[str, np.ndarray]:
    longest = max(len(values_of(name)) for name in types())
    return {name: np.resize(values_of(name), longest) for name in types()}


@pytest.fixture(scope="module")
def pairs(singles: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    found = {name: np.meshgrid(own, own) for name, own in singles.items()}
    return [{name: both[i].ravel() for name, both in found.items()} for i in range(2)]


def differing(name: str, found: Any, expected: Any, arguments: list[np.ndarray]) -> np.ndarray:
    """Where two results are not the same."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    if found.dtype.kind in "biu":
        return found != expected
    info = jnp.finfo(found.dtype)
    a, b = (_flushed(x.astype(np.float64), float(info.smallest_normal)) for x in (found, expected))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= UNITS[found.dtype.name] * float(info.eps) * np.abs(b)
    near &= np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    same = near | (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
    kind, what = name.split(" ", 1)
    first = arguments[0].astype(np.float64)
    if what == "lgamma":
        same |= (np.abs(first - 1.5) < 0.6) & (np.abs(a - b) < 16 * float(jnp.finfo(kind).eps))
        same |= (
            (np.abs(first - 1.5) < 0.6) & (np.abs(a - b) < 1e-6) & (kind in ("bfloat16", "float16"))
        )
    if what in ("pow", "cbrt"):
        same |= (first != 0) & (np.abs(first) < float(jnp.finfo(kind).smallest_normal))
    if what == "exp2" and kind in ("bfloat16", "float16"):
        same |= np.isfinite(first) & (a > 0)
    return ~same


def _flushed(x: np.ndarray, normal: float) -> np.ndarray:
    return np.where(np.abs(x) <= normal * 1.01, np.copysign(0.0, x), x)


def unsettled(name: str, arguments: list[np.ndarray]) -> np.ndarray:
    """Where XLA of JAX 0.12 takes numbers below the normal range for zero, or not, and the versions before do not."""
    kind, what = name.split(" ", 1)
    changed = ("lgamma",) if kind == "float32" else ()
    changed = ("lgamma", "clamp", "max", "min", "to bool") if kind == "bfloat16" else changed
    if jax.__version_info__ < (0, 12) or what not in changed:
        return np.zeros(arguments[0].shape, bool)
    normal = float(jnp.finfo(kind).smallest_normal)
    return np.all([np.abs(each.astype(np.float64)) < normal for each in arguments], axis=0)


@needs.compiler
@pytest.mark.parametrize("arguments", [1, 2])
def test_as_xla_has_it(arguments: int, request: pytest.FixtureRequest) -> None:
    with jax.enable_x64(True), np.errstate(over="ignore"):
        fun, given = of_one, [request.getfixturevalue("singles")]
        if arguments == 2:
            fun, given = of_two, request.getfixturevalue("pairs")
        args = jax.tree.map(jnp.asarray, given)
        found = lw.vmap(functools.partial(fun), carrier="native")(*args)
        expected = jax.jit(jax.vmap(fun))(*args)
        wrong = []
        for name in found:
            own = [each[name.split(" ", 1)[0]] for each in given]
            bad = differing(name, found[name], expected[name], own) & ~unsettled(name, own)
            for at in np.nonzero(bad)[0][:3]:
                at_values = ", ".join(str(each[at]) for each in own)
                wrong.append(
                    f"{name}({at_values}) = {found[name][at]}, by XLA {expected[name][at]}"
                )
        assert not wrong, "\n".join(wrong)


of_complex = """abs acos acosh asin asinh atan atanh conj cos cosh exp exp2 expm1 imag log log1p logistic neg real rsqrt
    sign sin sinh sqrt square tan tanh""".split()
PARTS = (0.0, -0.0, 1e-40, 1e-10, 0.5, 1.0, -1.0, 2.0, -2.5, 30.0, -100.0, 1e10, -3e38, 3e38)


@needs.compiler
def test_an_extremum_is_one_of_its_operands(pairs: list[dict[str, np.ndarray]]) -> None:
    """Of numbers below the normal range too, which a host may compare as zeros."""

    def both(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
        return {name: (lax.max(x[name], y[name]), lax.min(x[name], y[name])) for name in x}

    with jax.enable_x64(True):
        given = [
            {name: jnp.asarray(each[name]) for name in FLOATS if name in each} for each in pairs
        ]
        found = lw.vmap(both, carrier="native")(*given)
    for name, extrema in found.items():
        a, b = (each[name] for each in pairs)
        bits = f"uint{8 * a.dtype.itemsize}"
        for each in map(np.asarray, extrema):
            is_one = (each.view(bits) == a.view(bits)) | (each.view(bits) == b.view(bits))
            assert (is_one | np.isnan(each.astype(np.float64))).all(), name


def numbers(parts: tuple[float, ...]) -> np.ndarray:
    real, imaginary = np.meshgrid(np.array(parts, np.float32), np.array(parts, np.float32))
    found = np.empty(real.size, np.complex64)
    found.real, found.imag = real.ravel(), imaginary.ravel()
    return found


@needs.compiler
def test_complex_numbers_as_xla_has_them() -> None:
    """Finite ones, on both sides of every cut, zeros of both signs among them.

    Products and quotients of what is near overflow, and quotients by zero, depend in XLA on how products and sums are
    fused, which differs between machines.
    """
    z = numbers(PARTS)
    middle = numbers((0.0, -0.0, 1e-10, 0.5, 1.0, -1.0, -2.5, 7.0))
    left, right = (x.ravel() for x in np.meshgrid(middle, middle[middle != 0]))
    args = [jnp.asarray(x) for x in (np.resize(z, left.size), left, right)]

    def every(z: Any, x: Any, y: Any) -> dict[str, Any]:
        one = {name: getattr(lax, name)(z) for name in of_complex}
        return one | {name: getattr(lax, name)(x, y) for name in "add sub mul div pow".split()}

    found = lw.vmap(every, carrier="native")(*args)
    expected = jax.jit(jax.vmap(every))(*args)
    wrong = []
    for name in found:
        a, b = (np.asarray(x[name]).astype(np.complex128) for x in (found, expected))
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.ones(a.shape, bool)
            for p, q in ((a.real, b.real), (a.imag, b.imag)):
                size = np.where(np.isfinite(b), np.abs(b), np.abs(q))
                near = np.isfinite(p) & np.isfinite(q) & (np.abs(p - q) <= 2e-4 * size + 2e-10)
                same &= near | (p == q) | (np.isnan(p) & np.isnan(q))
        given = args[:1] if name in of_complex else args[1:]
        for at in np.nonzero(~same)[0][:3]:
            at_values = ", ".join(str(each[at]) for each in given)
            wrong.append(f"{name}({at_values}) = {a[at]}, by XLA {b[at]}")
    assert not wrong, "\n".join(wrong)
