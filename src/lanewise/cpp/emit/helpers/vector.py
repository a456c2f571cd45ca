"""Exponentials, logarithms and their kin in `float32`, as code that vector instructions run.

The C library's functions take one number at a time, so a loop over an array that calls one is no vector code; XLA's own
approximations are, which made `native` up to thirty times slower than `jax.vmap` on a network's activations. These are
straight lines of arithmetic in `float64`, rounded once at the end: short series are then exact enough (the worst error
is 0.52 units in the last place, less than the C library's), results below the normal range round as they should, and a
number gets the same bits alone and in a vector. What is at the edges of a domain is chosen, not branched to.

Considered: polynomials in `float32`, twice as fast in a vector, which need care in every step to lose less than a few
units; and the vector library of the GNU C library, whose results in a vector differ from those alone.

A GPU has functions of its own. `float64` keeps to the C library.
"""

from __future__ import annotations

from lanewise.cpp.emit.prelude import helpers

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
        "lw_exp_wide": r"""
// exp(x) = 2^k exp(r), |r| <= log(2) / 2. Adding `shift` leaves k in the lowest bits.
LW_FUNCTION float64 lw_exp_wide(float64 x) {
  const float64 shift = 6755399441055744.0, shifted = x * 1.4426950408889634 + shift;
  const float64 scale = lw_bits<float64>((lw_bits<uint64>(shifted) + 1023ull) << 52);
  const float64 r = x - (shifted - shift) * 0.6931471805599453, r2 = r * r, r4 = r2 * r2;
  const float64 low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6));
  const float64 high = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
  return (low + r4 * (high + r4 * (1.0 / 40320))) * scale;
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
  const float64 x = a < -10.0f ? -10.0 : a > 10.0f ? 10.0 : a, square = x * x;
  const float64 near = x * (1.0 - square * (1.0 / 3 - square * (2.0 / 15)));
  return float32(fabs(x) < 0.01 ? near : 1.0 - 2.0 / (lw_exp_wide(2.0 * x) + 1.0));""",
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
    }
)
