"""Operations that take no longer than a message would."""

from __future__ import annotations

from lanewise import _jax
from lanewise._jax import JaxprEqn
from lanewise.blocks.equations import CALL_LIKE

_CHEAP = frozenset(
    "add sub mul neg max min and or not xor eq ne lt le gt ge select_n convert_element_type broadcast_in_dim reshape"
    " squeeze expand_dims iota copy copy_p rem div sign abs clamp slice dynamic_slice shift_left"
    " shift_right_arithmetic shift_right_logical concatenate random_wrap random_unwrap random_split random_fold_in"
    " random_seed stop_gradient pvary".split()
)


def is_cheap(eqn: JaxprEqn) -> bool:
    """Whether computing an equation at several places costs less than sending what it gives."""
    names = (each.primitive.name for each in _jax.equations((eqn,)))
    return all(name in CALL_LIKE or name in _CHEAP for name in names)
