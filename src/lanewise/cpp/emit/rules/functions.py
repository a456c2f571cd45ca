"""Rules of functions of one number or two, by the C library or by code of our own.

The C library's functions take one number at a time, so a loop over an array that calls one is no vector code; XLA's own
approximations are, which made `native` up to thirty times slower than `jax.vmap` on a network's activations. So
exponentials, logarithms and their kin in `float32` are straight lines of arithmetic in `float64`, rounded once at the
end: short series are then exact enough (the worst error is 0.52 units in the last place, less than the C library's),
results below the normal range round as they should, and a number gets the same bits alone and in a vector. What is at
the edges of a domain is chosen, not branched to. A GPU has functions of its own. `float64` keeps to the C library.

Considered: polynomials in `float32`, twice as fast in a vector, which need care in every step to lose less than a few
units; and the vector library of the GNU C library, whose results in a vector differ from those alone.

Special functions that C++ and CUDA lack are templates of plain arithmetic, so that the host and the GPU
compute the same. At poles and outside their domains they answer as XLA's do.
"""

from __future__ import annotations

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Var
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, helpers, rule
from lanewise.cpp.emit.rules.elementwise import (
    Form,
    c_function,
    dtype_of,
    each,
    wide_type,
    widened,
)
from lanewise.cpp.emit.rules.reduce import PARTS
from lanewise.cpp.emit.values import Scalar, Value
from lanewise.cpp.emit.writer import Writer

_DIGAMMA_AT_ZERO = "-lw_infinity<T>()" if _jax.DIGAMMA_AT_ZERO_IS_INFINITE else "lw_nan<T>()"
# The primitives whose `float32` versions are such code.
VECTOR_FUNCTIONS = frozenset("exp exp2 expm1 log log1p log2 logistic pow tanh".split())


def _overloads(name: str, host: str, *, arguments: int = 1, double_host: str = "") -> str:
    """A function for both precisions, whose `float32` version on the host has this body.

    `double_host`: what the `float64` version on the host does first.
    """
    letters = "ab"[:arguments]
    given = ", ".join(letters)
    single, double = (
        ", ".join(f"{kind} {letter}" for letter in letters) for kind in ("float32", "float64")
    )
    first = f"#ifndef __CUDACC__\n{double_host.strip()}\n#endif\n" if double_host else ""
    return f"""
#ifdef __CUDACC__
LW_FUNCTION float32 lw_{name}({single}) {{ return {name}f({given}); }}
#else
LW_FUNCTION float32 lw_{name}({single}) {{
{host.strip()}
}}
#endif
LW_FUNCTION float64 lw_{name}({double}) {{
{first}  return {name}({given});
}}"""


helpers(
    {
        "lw_exp_parts": r"""
// exp(x) = 2^k exp(r), |r| <= log(2) / 2. Adding `shift` leaves k in the lowest bits.
struct lw_exponential {
  float64 scale, less;  // 2^k and exp(r) - 1
};
LW_FUNCTION lw_exponential lw_exp_parts(float64 x) {
  const float64 shift = 6755399441055744.0, shifted = lw_multiply_add(x, 1.4426950408889634, shift);
  const float64 scale = lw_bits<float64>((lw_bits<uint64>(shifted) + 1023ull) << 52);
  const float64 r = lw_multiply_add(shift - shifted, 0.6931471805599453, x), r2 = r * r, r4 = r2 * r2;
  const float64 low = lw_multiply_add(r2, lw_multiply_add(r, 1.0 / 6, 0.5), r);
  const float64 middle = lw_multiply_add(r, 1.0 / 120, 1.0 / 24);
  const float64 high = lw_multiply_add(r2, lw_multiply_add(r, 1.0 / 5040, 1.0 / 720), middle);
  return {scale, lw_multiply_add(r4, lw_multiply_add(r4, 1.0 / 40320, high), low)};
}""",
        "lw_exp_wide": r"""
LW_FUNCTION float64 lw_exp_wide(float64 x) {
  const lw_exponential e = lw_exp_parts(x);
  return lw_multiply_add(e.less, e.scale, e.scale);
}
// Where the exponential is more than zero and less than infinity in float32, and a little beyond.
LW_FUNCTION float64 lw_exp_range(float64 x) { return x < -104.0 ? -104.0 : x > 89.0 ? 89.0 : x; }""",
        "lw_log_wide": r"""
// log(x) = k log(2) + log(m), sqrt(1/2) <= m < sqrt(2), by the series of log((1 + f) / (1 - f)). x is finite, above 0.
LW_FUNCTION float64 lw_log_wide(float64 x) {
  const uint64 root = 0x3fe6a09e667f3bcdull, bits = lw_bits<uint64>(x) - root;
  const float64 shifted = lw_bits<float64>(uint64((int64(bits) >> 52) + 0x4338000000000000ll));
  const float64 m = lw_bits<float64>((bits & 0xfffffffffffffull) + root);
  const float64 f = (m - 1.0) / (m + 1.0), s = f * f, s2 = s * s;
  const float64 low = (2.0 + s * (2.0 / 3)) + s2 * (2.0 / 5 + s * (2.0 / 7));
  const float64 series = low + s2 * s2 * ((2.0 / 9 + s * (2.0 / 11)) + s2 * (2.0 / 13));
  return (shifted - 6755399441055744.0) * 0.6931471805599453 + series * f;
}
// What a logarithm is where its argument, which is 0 at `edge`, is not finite and above 0.
LW_FUNCTION float64 lw_log_edge(float64 a, float64 edge) {
  return a == edge ? -lw_infinity<float64>() : a > edge ? a : lw_nan<float64>();
}""",
        "lw_exp": _overloads("exp", "  return float32(lw_exp_wide(lw_exp_range(a)));"),
        "lw_exp2": _overloads(
            "exp2", "  return float32(lw_exp_wide(lw_exp_range(a * 0.6931471805599453)));"
        ),
        "lw_expm1": _overloads(
            "expm1",
            r"""
  const float64 x = lw_exp_range(a);
  const float64 near = x * (1.0 + x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120)))));
  return float32(fabs(x) < 0.01 ? near : lw_exp_wide(x) - 1.0);""",
        ),
        "lw_tanh": _overloads(
            "tanh",
            r"""
  // (exp(2x) - 1) / (exp(2x) + 1), of which the first loses nothing near zero, but a sign.
  const float32 x = a < -10.0f ? -10.0f : a > 10.0f ? 10.0f : a;
  const lw_exponential e = lw_exp_parts(2.0 * x);
  const float64 less = lw_multiply_add(e.less, e.scale, e.scale - 1.0);
  return copysign(float32(less / (less + 2.0)), a);""",
        ),
        "lw_log": _overloads(
            "log",
            r"""
  const float64 x = a;
  return float32(x > 0.0 && x < lw_infinity<float64>() ? lw_log_wide(x) : lw_log_edge(x, 0.0));""",
            # XLA on a host takes what is below the normal range for zero.
            double_host="  if (fabs(a) < 2.2250738585072014e-308) return -lw_infinity<float64>();",
        ),
        "lw_log2": _overloads(
            "log2",
            r"""
  const float64 x = a, within = lw_log_wide(x) * 1.4426950408889634;
  return float32(x > 0.0 && x < lw_infinity<float64>() ? within : lw_log_edge(x, 0.0));""",
        ),
        "lw_log1p": _overloads(
            "log1p",
            r"""
  const float64 x = a, near = x * (1.0 - x * (0.5 - x * (1.0 / 3 - x * 0.25)));
  const float64 within = fabs(x) < 0.001 ? near : lw_log_wide(1.0 + x);
  return float32(x > -1.0 && x < lw_infinity<float64>() ? within : lw_log_edge(x, -1.0));""",
        ),
        "lw_widened": r"""
// A number as float64, also where numbers below the normal range are taken for zero, as XLA has a host's cores do.
LW_FUNCTION float64 lw_widened(float32 a) {
  const uint32 bits = lw_bits<uint32>(a);
  const float64 small = float64(int32(bits & 0x7fffffu)) * 1.401298464324817e-45;
  return bits & 0x7f800000u ? float64(a) : bits >> 31 ? -small : small;
}""",
        "lw_cbrt": r"""
// What the C library makes of numbers below the normal range where they are taken for zero may be anything.
#ifdef __CUDACC__
LW_FUNCTION float32 lw_cbrt(float32 a) { return cbrtf(a); }
LW_FUNCTION float64 lw_cbrt(float64 a) { return cbrt(a); }
#else
LW_FUNCTION float32 lw_cbrt(float32 a) {
  return lw_bits<uint32>(a) & 0x7f800000u ? cbrtf(a) : float32(cbrt(lw_widened(a)));
}
LW_FUNCTION float64 lw_cbrt(float64 a) {
  const uint64 bits = lw_bits<uint64>(a);
  if (bits & 0x7ff0000000000000ull) return cbrt(a);
  return copysign(cbrt(float64(int64(bits & 0xfffffffffffffull))) * lw_float64(0x2990000000000000ull), a);
}
#endif""",
        "lw_pow": _overloads(
            "pow",
            r"""
  const float64 infinity = lw_infinity<float64>(), size = fabs(lw_widened(a)), power = lw_widened(b);
  // A number above 0, then the edges: 0, infinity, and 1, to which no power matters.
  const float64 within = lw_exp_wide(lw_exp_range(power * lw_log_wide(size)));
  const float64 edge = (size == 0.0) == (power < 0.0) ? infinity : 0.0;
  const bool at_edge = size == 0.0 || size == infinity;
  const float64 above = at_edge ? edge : within;
  const bool whole = power == rint(power), odd = whole && 0.5 * power != rint(0.5 * power);
  const float64 below = odd ? -above : whole || at_edge ? above : lw_nan<float64>();
  const float64 known = a != a || b != b ? lw_nan<float64>() : lw_bits<int32>(a) < 0 ? below : above;
  const bool minus_one = a == -1.0f && fabs(power) == infinity;
  return float32(power == 0.0 || a == 1.0f || minus_one ? 1.0 : known);""",
            arguments=2,
        ),
        "lw_logistic": r"""
#ifdef __CUDACC__
LW_FUNCTION float32 lw_logistic(float32 a) { return 1.0f / (1.0f + expf(-a)); }
#else
LW_FUNCTION float32 lw_logistic(float32 a) {
  const float64 x = a < -104.0f ? 104.0 : a > 104.0f ? -104.0 : -a;
  return float32(1.0 / (1.0 + lw_exp_wide(x)));
}
#endif
LW_FUNCTION float64 lw_logistic(float64 a) { return 1.0 / (1.0 + exp(-a)); }""",
        "lw_nan": r"""
template <class T> LW_FUNCTION T lw_nan() { return (T)lw_bits<float32>(0x7fc00000u); }""",
        "lw_infinity": r"""
template <class T> LW_FUNCTION T lw_infinity() { return (T)lw_bits<float32>(0x7f800000u); }""",
        "lw_erf_inv": r"""
// Giles's polynomials in w = -log(1 - x^2): "Approximating the erfinv function", GPU Computing Gems 2, 2011.
LW_FUNCTION float32 lw_erf_inv_near(float32 w) {
  w -= 2.5f;
  float32 p = 2.81022636e-08f;
  p = 3.43273939e-07f + p * w;
  p = -3.5233877e-06f + p * w;
  p = -4.39150654e-06f + p * w;
  p = 0.00021858087f + p * w;
  p = -0.00125372503f + p * w;
  p = -0.00417768164f + p * w;
  p = 0.246640727f + p * w;
  return 1.50140941f + p * w;
}
LW_FUNCTION float32 lw_erf_inv_far(float32 w) {
  w = sqrtf(w) - 3.0f;
  float32 p = -0.000200214257f;
  p = 0.000100950558f + p * w;
  p = 0.00134934322f + p * w;
  p = -0.00367342844f + p * w;
  p = 0.00573950773f + p * w;
  p = -0.0076224613f + p * w;
  p = 0.00943887047f + p * w;
  p = 1.00167406f + p * w;
  return 2.83297682f + p * w;
}
LW_FUNCTION float32 lw_erf_inv(float32 x) {
  if (fabsf(x) == 1.0f) return x * lw_infinity<float32>();
  float32 w = -lw_log1p(-x * x);
  return (w < 5.0f ? lw_erf_inv_near(w) : lw_erf_inv_far(w)) * x;
}
// In double: those as a start, then Halley's steps on erfc(y) = 1 - |x|, which is exact near 1.
LW_FUNCTION float64 lw_erf_inv(float64 x) {
  float64 size = fabs(x), rest = 1.0 - size;
  if (!(rest > 0.0)) return rest == 0.0 ? x * lw_infinity<float64>() : lw_nan<float64>();
  if (size < 1e-10) return x * 0.8862269254527580;
  float64 w = -log1p(-x * x), y;
  if (w < 5.0) {
    y = (float64)lw_erf_inv_near((float32)w) * size;
  } else if (w < 16.0) {
    y = (float64)lw_erf_inv_far((float32)w) * size;
  } else {  // erfc(y) ~ exp(-y^2) / (y sqrt(pi))
    float64 log_rest = log(rest) + 0.5723649429247001;
    y = sqrt(-log_rest);
    y = sqrt(-(log_rest + log(y)));
  }
  for (int32 step = 0; step < 2; ++step) {
    // The residual relative to erf's slope; a tiny argument keeps its digits by working on erf.
    float64 gap = size < 0.5 ? erf(y) - size : rest - erfc(y);
    float64 newton = gap * 0.8862269254527580 * exp(y * y);
    y -= newton / (1.0 + y * newton);
  }
  return copysign(y, x);
}""",
        "lw_lgamma": r"""
// XLA on a host takes what is below the normal range for zero, which is a pole.
#ifdef __CUDACC__
LW_FUNCTION float32 lw_lgamma(float32 x) { return lgammaf(x); }
LW_FUNCTION float64 lw_lgamma(float64 x) { return lgamma(x); }
#else
LW_FUNCTION float32 lw_lgamma(float32 x) {
  return fabsf(x) < 1.17549435e-38f ? lw_infinity<float32>() : lgammaf(x);
}
LW_FUNCTION float64 lw_lgamma(float64 x) {
  return fabs(x) < 2.2250738585072014e-308 ? lw_infinity<float64>() : lgamma(x);
}
#endif""",
        "lw_digamma": r"""
// Reflection on the left, recurrence up to where the asymptotic series holds. Poles are NaN, but perhaps that at zero.
template <class T> LW_SLOW_FUNCTION T lw_digamma(T x) {
  if (x == T(0)) return AT_ZERO;
  if (!(x > -lw_infinity<T>()) || (x <= T(0) && x == floor(x))) return lw_nan<T>();
  T result = T(0);
  if (x < T(0)) {
    T fraction = x - floor(x + T(0.5));
    result = T(-3.14159265358979323846) / tan(T(3.14159265358979323846) * fraction);
    x = T(1) - x;
  }
  while (x < T(10)) {
    result -= T(1) / x;
    x += T(1);
  }
  if (x > T(1e17)) return result + log(x);
  T y = T(1) / (x * x);
  T series = T(1.0 / 12);
  series = T(-691.0 / 32760) + y * series;
  series = T(1.0 / 132) + y * series;
  series = T(-1.0 / 240) + y * series;
  series = T(1.0 / 252) + y * series;
  series = T(-1.0 / 120) + y * series;
  series = T(1.0 / 12) + y * series;
  return result + (log(x) - T(0.5) / x - y * series);
}""".replace("AT_ZERO", _DIGAMMA_AT_ZERO),
        "lw_zeta": r"""
// Hurwitz's zeta function by Euler and Maclaurin: ten terms one by one, then their tail as an integral and corrections,
// as XLA has it. Nothing else is done far on the left, where the answer is that of the formula, and no more.
template <class T> LW_SLOW_FUNCTION T lw_zeta(T x, T q) {
  const bool whole = x == floor(x), even = whole && x - T(2) * floor(x / T(2)) == T(0);
  if (x == T(1)) return lw_infinity<T>();
  if (q <= T(0) && q == floor(q)) return even ? lw_infinity<T>() : lw_nan<T>();
  if (!(x >= T(1)) || (q <= T(0) && !whole)) return lw_nan<T>();
  T at = q, sum = pow(q, -x), power = T(0);
  for (int32 step = 0; step < 9; ++step) {
    at += T(1);
    power = pow(at, -x);
    sum += power;
  }
  at += T(1);
  power = pow(at, -x);
  // Factorials over Bernoulli numbers.
  const T under[12] = {T(-7.1661652561756670113e18), T(1.8152105401943546773e17), T(-4.5979787224074726105e15),
    T(1.1646782814350067249e14), T(-2.950130727918164224e12), T(7.47242496e10), T(-1.8924375803183791606e9),
    T(47900160.0), T(-1209600.0), T(30240.0), T(-720.0), T(12.0)};
  const T inverse = T(1) / (at * at);
  T series = T(0);
  for (int32 k = 0; k < 11; ++k) {
    const T factor = (x + T(22 - 2 * k)) * (x + T(21 - 2 * k));
    series = factor * inverse * (series + T(1) / under[k]);
  }
  return sum + power * at / (x - T(1)) + power * (T(0.5) + x / at * (T(1) / under[11] + series));
}""",
        "lw_polygamma": r"""
// Derivatives of digamma: (-1)^(n+1) n! zeta(n + 1, x).
template <class T> LW_SLOW_FUNCTION T lw_polygamma(T n, T x) {
  if (!(n >= T(0)) || n != floor(n)) return lw_nan<T>();
  if (n == T(0)) return lw_digamma<T>(x);
  T size = exp(lgamma(n + T(1))) * lw_zeta<T>(n + T(1), x);
  return n - T(2) * floor(n / T(2)) == T(0) ? -size : size;
}""",
        "lw_bessel_i": r"""
// exp(-|x|) I_n(|x|) for n = 0 or 1: a power series of positive terms, or the asymptotic one where that has converged.
template <class T> LW_SLOW_FUNCTION T lw_bessel_i(int32 n, T size) {
  if (size == lw_infinity<T>()) return T(0);
  if (size <= (sizeof(T) == 4 ? T(10) : T(22))) {
    T square = size * size / T(4), term = n == 0 ? T(1) : size / T(2), sum = term;
    for (int32 k = 1; k < 100; ++k) {
      term *= square / (T(k) * T(k + n));
      sum += term;
      if (term <= sum * T(1e-17)) break;
    }
    return sum * exp(-size);
  }
  T term = T(1), sum = T(1);
  for (int32 k = 1; k < 40; ++k) {
    T odd = T(2 * k - 1), next = -term * (T(4 * n * n) - odd * odd) / (T(8 * k) * size);
    if (fabs(next) >= fabs(term) || fabs(next) <= fabs(sum) * T(1e-17)) break;
    sum += next;
    term = next;
  }
  return sum / (T(2.50662827463100050242) * sqrt(size));
}""",
        "lw_bessel_i0e": r"""
template <class T> LW_FUNCTION T lw_bessel_i0e(T x) { return lw_bessel_i<T>(0, fabs(x)); }""",
        "lw_bessel_i1e": r"""
template <class T> LW_FUNCTION T lw_bessel_i1e(T x) { return copysign(lw_bessel_i<T>(1, fabs(x)), x); }""",
    }
)


# Primitives that C++ and CUDA name alike; the single-precision name has an `f` behind it.
_LIBRARY = """acos acosh asin asinh atan atan2 atanh ceil cos cosh erf erfc floor nextafter sin sinh sqrt tan""".split()
# Primitives with a helper of their own, overloaded for both precisions.
_HELPERS = """bessel_i0e bessel_i1e cbrt digamma erf_inv exp exp2 expm1 lgamma log log1p log2 logistic polygamma rsqrt
    tanh zeta""".split()


@rule(*_LIBRARY)
def _library(w: Writer, eqn: JaxprEqn) -> None:
    name, dtype = eqn.primitive.name, dtype_of(eqn)
    if name == "nextafter" and dtypes.is_narrow(dtype):
        raise Unsupported("nextafter of 16-bit floats")
    if name in ("sin", "cos") and not eqn.outvars[0].aval.shape and _sine_and_cosine(w, eqn):
        return
    each(w, eqn, c_function(dtype, name))


def _sine_and_cosine(w: Writer, eqn: JaxprEqn) -> bool:
    """Write both of one number together, if the other one is wanted as well."""
    dtype, name = dtype_of(eqn), eqn.primitive.name
    both = {"float32": "sincosf", "float64": "sincos"}.get(dtypes.ctype(dtype))
    found = both and _take(w, "cos" if name == "sin" else "sin", eqn.invars[0])
    if not found:
        return False
    own, other = (w.fresh() for _ in range(2))
    sine, cosine = (own, other) if name == "sin" else (other, own)
    x = w.value(eqn.invars[0]).at(())
    values = (c_function(dtype, one)(x) for one in ("sin", "cos"))
    kind = dtypes.ctype(dtype)
    w.line(f"LW_SINE_COSINE({kind}, {sine}, {cosine}, {both}, {x}, {', '.join(values)})")
    w.define(eqn.outvars[0], Scalar((), dtype, own))
    w.define(found, Scalar((), dtype, other))
    return True


def _take(w: Writer, name: str, atom: Atom) -> Var | None:
    """The answer of an equation ahead that has this primitive and operand, which is then not written; or None."""
    scope = w.scope
    for eqn in reversed(scope.ahead):
        if eqn.primitive.name == name and eqn.invars[0] is atom:
            scope.ahead.remove(eqn)
            scope.uses.start(eqn)
            return eqn.outvars[0]
    return None


@rule(*_HELPERS)
def _helper(w: Writer, eqn: JaxprEqn) -> None:
    name, dtype = eqn.primitive.name, dtype_of(eqn)
    if dtypes.is_complex(dtype):
        each(w, eqn, c_function(dtype, name))
        return
    form = widened(dtype, lambda *elements: f"lw_{name}({', '.join(elements)})")
    values = [w.value(atom) for atom in eqn.invars]
    if name in VECTOR_FUNCTIONS and not w.together and _is_narrow_table(values[0]):
        _down_columns(w, eqn.outvars[0], form, *values)
    else:
        w.map(eqn.outvars[0], form, *values)


def _is_narrow_table(value: Value) -> bool:
    """Whether elements are found by their row and column, and rows are shorter than a vector: they would be no vector
    code. (Others are gone through by their position.)"""
    if len(value.shape) < 2 or value.linear:
        return False
    *_, rows, columns = value.shape
    return columns < PARTS <= rows


def _down_columns(w: Writer, var: Var, form: Form, value: Value) -> None:
    """A function of a narrow table, one column after the other."""
    room = w.room(value.shape, value.dtype)
    *outer, rows, columns = value.shape
    with w.loops((*outer, columns)) as (*ahead, column):
        i = w.fresh("i")
        w.line("LW_IN_STEP")
        with w.block(f"for (int {i} = 0; {i} < {rows}; ++{i})"):
            at = (*ahead, i, column)
            w.put(room, at, form(value.at(at)))
    w.define(var, room)


@rule("round")
def _round(w: Writer, eqn: JaxprEqn) -> None:
    to_even = int(eqn.params["rounding_method"]) == 1
    each(w, eqn, c_function(dtype_of(eqn), "rint" if to_even else "round"))


@rule("is_finite")
def _is_finite(w: Writer, eqn: JaxprEqn) -> None:
    kind = wide_type(dtype_of(eqn))
    each(w, eqn, lambda a: f"lw_is_finite({kind}({a}))")


@rule("reduce_precision")
def _reduce_precision(w: Writer, eqn: JaxprEqn) -> None:
    bits = f"{eqn.params['exponent_bits']}, {eqn.params['mantissa_bits']}"
    each(w, eqn, widened(dtype_of(eqn), lambda a: f"lw_reduce_precision<{bits}>({a})"))
