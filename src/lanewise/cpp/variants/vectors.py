"""Which code a compiler has vector instructions for."""

from __future__ import annotations

from collections.abc import Iterable

from lanewise._jax import Atom, JaxprEqn
from lanewise.blocks.analysis import Known, evaluate, value_of
from lanewise.blocks.equations import inside
from lanewise.cpp.emit import dtypes
from lanewise.cpp.emit.helpers.vector import VECTOR_FUNCTIONS

_VECTOR_OPERATIONS = frozenset(
    "add add_any sub mul neg abs sign max min clamp square integer_pow sqrt rsqrt floor ceil round is_finite"
    " and or not xor eq ne lt le gt ge select_n shift_left shift_right_logical shift_right_arithmetic"
    " convert_element_type bitcast_convert_type copy stop_gradient"
    " random_bits random_fold_in".split()
)
_DIVISIONS = ("div", "rem")
_VECTOR_TYPES = ("bool", "int32", "uint32", "float32", "int64", "uint64", "float64", "key2")


def fits(atom: Atom) -> bool:
    dtype = atom.aval.dtype
    return atom.aval.shape == () and dtypes.held(dtype) and dtypes.ctype(dtype) in _VECTOR_TYPES


def vectorizes(eqns: Iterable[JaxprEqn], known: Known) -> bool:
    """Whether a compiler has vector instructions for all that the equations do."""
    known = evaluate(eqns, known)
    return all(_has_instruction(eqn, known) for eqn in eqns)


def _has_instruction(eqn: JaxprEqn, known: Known) -> bool:
    if not all(map(fits, (*eqn.invars, *eqn.outvars))):
        return False
    name = eqn.primitive.name
    if name in _DIVISIONS and dtypes.is_float(eqn.outvars[0].aval.dtype):
        return name == "div"
    if name in _DIVISIONS:
        # By a constant it is a product and a shift.
        return value_of(known, eqn.invars[1]) not in (None, 0, -1)
    if name in VECTOR_FUNCTIONS:
        return all(atom.aval.dtype == "float32" for atom in eqn.invars)
    called = inside(eqn)
    if called is None:
        return name in _VECTOR_OPERATIONS
    given = zip(called.jaxpr.invars, called.operands, strict=True)
    values = {var: value_of(known, atom) for var, atom in given}
    found = {var: value for var, value in values.items() if value is not None}
    return not called.consts and vectorizes(called.jaxpr.eqns, found)
