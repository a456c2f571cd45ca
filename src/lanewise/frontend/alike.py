"""Whether the turns of a short `for` are the same code with other numbers in it.

A short `for` is written out, as Python under `jax.jit` would have it: the index is a plain number, and small code
becomes fast code. Where a turn holds a large matrix product there is little to gain, and compilers take their time
over each copy: XLA measures every product on a GPU, and takes the 16 layers of a network for 16 different ones. So
those turns become one loop, if they are alike: an index that decides anything but which elements are read, such as a
branch, a shape, a static power or a plain float, makes code that differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

# The products that are large: of this many multiplications.
LARGE = 10_000
# Parameters that say which elements are read. How many, the shapes of results say.
_POSITIONS = {"slice": ("start_indices", "limit_indices")}


def holds_large_product(jaxpr: Jaxpr) -> bool:
    """Whether a matrix product or a convolution of some size is in the code, also inside loops and branches."""
    return any(
        _multiplications(eqn) >= LARGE or any(map(holds_large_product, _jax.subjaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def _multiplications(eqn: JaxprEqn) -> int:
    match eqn.primitive.name:
        case "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        case "conv_general_dilated":
            features = eqn.params["dimension_numbers"].rhs_spec[0]
            kernel = eqn.invars[1].aval
            depth = kernel.size // max(kernel.shape[features], 1)
        case _:
            return 0
    return depth * eqn.outvars[0].aval.size


def same_code(one: Jaxpr, other: Jaxpr) -> bool:
    """Whether two pieces of code differ in nothing but numbers."""
    known: dict[Var, Var] = {}

    def same_atoms(mine: Sequence[Atom], theirs: Sequence[Atom]) -> bool:
        return len(mine) == len(theirs) and all(map(same_atom, mine, theirs))

    def same_atom(mine: Atom, theirs: Atom) -> bool:
        if mine.aval != theirs.aval:
            return False
        if isinstance(mine, Literal) or isinstance(theirs, Literal):
            return (
                isinstance(mine, Literal) and isinstance(theirs, Literal) and _alike(mine, theirs)
            )
        # What comes from outside is met here first.
        return known.setdefault(mine, theirs) is theirs

    return (
        len(one.eqns) == len(other.eqns)
        and same_atoms(one.invars, other.invars)
        and all(
            mine.primitive is theirs.primitive
            and same_atoms(mine.invars, theirs.invars)
            and same_atoms(mine.outvars, theirs.outvars)
            and _same_parameters(mine, theirs)
            for mine, theirs in zip(one.eqns, other.eqns, strict=True)
        )
        and same_atoms(one.outvars, other.outvars)
    )


def _alike(mine: Literal, theirs: Literal) -> bool:
    """Whether two numbers may stand at one place: indices may; a float made of one would be rounded anew."""
    return np.issubdtype(mine.aval.dtype, np.integer) or bool(np.all(mine.val == theirs.val))


def _same_parameters(mine: JaxprEqn, theirs: JaxprEqn) -> bool:
    positions = _POSITIONS.get(mine.primitive.name, ())
    return mine.params.keys() == theirs.params.keys() and all(
        name in positions or _same(value, theirs.params[name])
        for name, value in mine.params.items()
    )


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, tuple | list):
        return (
            type(mine) is type(theirs)
            and len(mine) == len(theirs)
            and all(map(_same, mine, theirs))
        )
    if isinstance(mine, Jaxpr | ClosedJaxpr):
        return isinstance(theirs, Jaxpr | ClosedJaxpr) and same_code(
            _jax.flat_jaxpr(mine), _jax.flat_jaxpr(theirs)
        )
    # The rules of a custom derivative are made at each use; the code they are for is compared.
    return bool(mine == theirs) or (callable(mine) and callable(theirs))
