"""Who reads a variable inside one piece of straight-line code.

Two questions are answered: whether a variable is wanted after the equation being written (its memory can then be
written over), and whether its one reader reads each of its elements at most once (its expression can then become part
of the reader's, and is never computed twice).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lanewise._jax import Atom, JaxprEqn, Var

# Primitives whose rule evaluates every element of its operands at most once, where the result is evaluated or stored.
MAPS = frozenset(
    """
    abs add and asin acos atan atan2 asinh acosh atanh cbrt ceil clamp clz complex conj convert_element_type copy copy_p
    cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log log1p
    logistic lt max min mul ne neg nextafter not or population_count pow real reduce_precision rem round rsqrt
    select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
    xor bitcast_convert_type add_any optimization_barrier pvary reduce_sum reduce_prod reduce_max reduce_min
    reduce_and reduce_or reduce_xor argmax argmin
    """.split()
)
# Primitives that only rename indices, each element of the operand appearing at most once in the result.
RENAMES = frozenset("reshape squeeze expand_dims transpose rev slice concatenate pad".split())


class Uses:
    """How often each variable is still read; `start` is called before each equation is written."""

    def __init__(self, counts: dict[Var, int], reader: dict[Var, JaxprEqn | None]) -> None:
        self._counts = counts
        self._reader = reader

    def start(self, eqn: JaxprEqn) -> None:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                self._counts[atom] -= 1

    def remaining(self, var: Var) -> int:
        """How many readers come after the equation being written."""
        return self._counts.get(var, 0)

    def fuses(self, var: Var) -> bool:
        """Whether each element is evaluated at most once if it is computed where it is read."""
        if self._counts.get(var) != 1:
            return False
        reader = self._reader[var]
        if reader is None:
            return True
        name = reader.primitive.name
        if name in RENAMES:
            return self.fuses(reader.outvars[0])
        # An axis of one element that is spread over a longer one would be evaluated again and again.
        spread = name not in ("concatenate", "pad") and var.aval.size < reader.outvars[0].aval.size
        return name in MAPS and not spread


def uses_of(eqns: Sequence[JaxprEqn], outputs: Iterable[Atom]) -> Uses:
    """Count the readers of every variable; `outputs` are read after all equations."""
    counts: dict[Var, int] = {}
    reader: dict[Var, JaxprEqn | None] = {}
    for eqn in eqns:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                counts[atom] = counts.get(atom, 0) + 1
                reader[atom] = eqn
    for atom in outputs:
        if isinstance(atom, Var):
            counts[atom] = counts.get(atom, 0) + 1
            reader[atom] = None
    return Uses(counts, reader)
