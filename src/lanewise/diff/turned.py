"""A transposed product as the product of its operands the other way round.

JAX's rule of a product gives the adjoint of a right-hand matrix as a product and its transpose. What is added to a sum
is better made in the sum's layout: then it need not be made anywhere else first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal
from lanewise.diff.delay import Uses


def product_turned(atom: Atom, uses: Uses) -> JaxprEqn | None:
    """The product that a matrix is the transpose of, if nothing else wants either."""
    eqn = _only_for_one(atom, uses)
    if eqn is None or eqn.primitive.name != "transpose" or eqn.params["permutation"] != (1, 0):
        return None
    made = _only_for_one(eqn.invars[0], uses)
    if made is None or made.primitive.name != "dot_general":
        return None
    (first, second), batch = made.params["dimension_numbers"]
    one_each = all(
        len(a.aval.shape) == len(axes) + 1 for a, axes in zip(made.invars, (first, second))
    )
    return made if one_each and not any(batch) else None


def _only_for_one(atom: Atom, uses: Uses) -> JaxprEqn | None:
    """What makes a value that has one reader."""
    if isinstance(atom, Literal) or len(uses.readers[atom]) != 1:
        return None
    return uses.made.get(atom)


def as_turned(eqn: JaxprEqn, value: Callable[[Atom], Any]) -> Any:
    """The transpose of a product."""
    (first, second), batch = eqn.params["dimension_numbers"]
    left, right = eqn.invars
    precision = eqn.params["precision"]
    changed = {
        "dimension_numbers": ((second, first), batch),
        # One for each operand, or one for both.
        "precision": precision[::-1] if isinstance(precision, tuple) else precision,
    }
    turned = eqn.replace(params={**eqn.params, **changed})
    return _jax.run_eqn(turned, [value(right), value(left)])[0]
