"""Rules of sums that all lanes add to (`core/accumulate.py`).

A thread of a host has sums of its own, in double precision, and adds them to those of all when it has no more
examples. On a GPU all threads add to the same sums, by atomic additions.

The adjoint of a weight matrix is a sum of outer products, one for each row that the weights were multiplied with. To
add one of them separately is to read and write an array of the size of the weights, for one multiplication an element:
the time is the memory's. So a thread of a host puts the two vectors into rows that follow its sum, and adds the
product of many rows at once, when the rows are full or the thread has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.core.summed import spread_from
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.rules import Unsupported, rule
from lanewise.cpp.emit.rules.index import at_windows, corner_of
from lanewise.cpp.emit.values import Index, Stored, plus
from lanewise.cpp.emit.writer import Writer

# What CUDA's atomic additions take.
_ADDED_KINDS = ("float32", "float64", "int32", "uint32")
# Outer products of fewer elements are added one by one.
_LEAST_OUTER = 512


@rule("accumulate")
def accumulate(w: Writer, eqn: JaxprEqn) -> None:
    number = eqn.params["number"]
    whole = w.sums[number]
    if dtypes.ctype(whole.dtype) not in _ADDED_KINDS:
        raise Unsupported(f"a sum over lanes of {np.dtype(whole.dtype).name}")

    def add(where: Sequence[Index], more: str) -> None:
        w.line(f"lw_add_to_sum({whole.at(where)}, {more});")

    if eqn.params["places"] is not None:
        indices, updates = map(w.value, eqn.invars)
        at_windows(w, whole.shape, indices, updates, eqn.params["places"], add)
        return
    part, *starts = map(w.value, eqn.invars)
    if not starts and _added_as_rows(w, eqn.invars[0], number):
        return
    corner = corner_of(w, starts, whole.shape, part.shape) if starts else [0] * len(whole.shape)
    # A host may have added it where it was made (`rules/product.py`).
    added = eqn.invars[0] in w.scope.added
    if added:
        w.line("#ifdef __CUDACC__")
    with w.loops(part.shape) as at:
        if part.size:
            add([plus(first, i) for first, i in zip(corner, at)], part.at(at))
    if added:
        w.line("#endif")


def _added_as_rows(w: Writer, atom: Atom, number: int) -> bool:
    """Add an outer product by its two vectors; False where it is none, or better added as it is."""
    whole = w.sums[number]
    kind = dtypes.ctype(whole.dtype)
    if (
        not w.threads.own_arrays
        or len(whole.shape) != 2
        or whole.size < _LEAST_OUTER
        or "float" not in kind
    ):
        return False
    found = outer(atom, w.scope.made_by)
    # A product that is stored may have outlived its vectors.
    if found is None or isinstance(w.value(found[0]), Stored):
        return False
    sides = [w.value(a) for a in found[1:]]
    if any(len(v.shape) != 1 or dtypes.ctype(v.dtype) != kind for v in sides):
        return False
    m, n = whole.shape
    a, b = (value.at(("i",)) for value in sides)
    w.line(
        f"lw_add_outer<{kind}, {m}, {n}>(&{whole.at((0, 0))}, [&](int i) {{ return {a}; }},"
        f" [&](int i) {{ return {b}; }});"
    )
    w.outer_sums.add(number)
    return True


def outer(atom: Atom, made: Mapping[Var, JaxprEqn]) -> tuple[Var, Atom, Atom] | None:
    """The outer product that a matrix is, or is the transpose of.

    Gives the variable that holds the product, and the vectors along the first and second axis of the matrix.
    """
    eqn = None if isinstance(atom, Literal) else made.get(atom)
    if eqn is None:
        return None
    if eqn.primitive.name == "transpose" and eqn.params["permutation"] == (1, 0):
        inner = outer(eqn.invars[0], made)
        return inner and (inner[0], inner[2], inner[1])
    if eqn.primitive.name == "dot_general":
        if any(axes for pair in eqn.params["dimension_numbers"] for axes in pair):
            return None
        sides = [(a, (place,)) for place, a in enumerate(eqn.invars)]
    elif eqn.primitive.name == "mul":
        sides = sorted((spread_from(a, made) for a in eqn.invars), key=lambda side: side[1])
    else:
        return None
    if [axes for _, axes in sides] != [(0,), (1,)]:
        return None
    return eqn.outvars[0], sides[0][0], sides[1][0]
