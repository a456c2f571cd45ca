"""Rules of complex numbers: their parts, and `complex64` with its functions, each by the real functions of its parts.

Branch cuts are XLA's: a number on a cut of `sqrt`, `acos`, `asin`, `acosh` or `asinh` belongs to the side that its
zero part would have if it were positive, whichever sign that zero has. Large numbers do not overflow on the way to a
result that does not, except in products and quotients.
"""

from __future__ import annotations

from lanewise._jax import JaxprEqn
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import rule
from lanewise.cpp.emit.rules.elementwise import dtype_of, each
from lanewise.cpp.emit.writer import Writer


@rule("real", "imag")
def _part(w: Writer, eqn: JaxprEqn) -> None:
    field = {"real": "re", "imag": "im"}[eqn.primitive.name]
    each(w, eqn, lambda a: f"({a}).{field}")


@rule("complex")
def _complex(w: Writer, eqn: JaxprEqn) -> None:
    each(w, eqn, lambda a, b: f"complex64({a}, {b})")


@rule("conj")
def _conj(w: Writer, eqn: JaxprEqn) -> None:
    if dtypes.is_complex(dtype_of(eqn)):
        each(w, eqn, lambda a: f"lw_complex_conj({a})")
    else:
        each(w, eqn, lambda a: f"complex64({a}, 0.0f)")
