"""Rules of functions of one number or two, by the C library or by code of our own.

The C library's functions take one number at a time, so a loop over an array that calls one is not vector code; XLA's
own approximations are, which made `native` up to thirty times slower than `jax.vmap` on a network's activations. So
exponentials, logarithms and their kin in `float32` are straight lines of arithmetic in `float64`, rounded once at the
end: short series are then exact enough (the worst error is 0.52 units in the last place, less than the C library's),
results below the normal range round as they should, and a number gets the same bits alone and in a vector. What is at
the edges of a domain is selected, not branched to. A GPU has functions of its own. `float64` keeps to the C library.

Considered: polynomials in `float32`, twice as fast in a vector, which need care in every step to lose less than a few
units; and the vector library of the GNU C library, whose results in a vector differ from those alone.

Special functions that C++ and CUDA lack are templates of plain arithmetic, so that the host and the GPU
compute the same. At poles and outside their domains they answer as XLA's do.
"""

from __future__ import annotations

from lanewise._jax import Atom, JaxprEqn, Var
from lanewise.core.primitives.facts import Vector, facts_of
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
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
    """Write both of one number together, if the other one is wanted too."""
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
    vectors = w.threads.own_arrays and facts_of(eqn).vector is Vector.FLOAT32
    if vectors and _is_narrow_table(values[0]):
        _down_columns(w, eqn.outvars[0], form, *values)
    else:
        w.map(eqn.outvars[0], form, *values)


def _is_narrow_table(value: Value) -> bool:
    """Whether elements are found by their row and column, and rows are shorter than a vector: they would not be vector
    code. (Others are traversed by their position.)"""
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
