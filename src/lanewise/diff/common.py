"""The same computation is written once.

Derivative rules normalize an index anew at each place that reads or writes by it. XLA finds that two indices are the
same where both are computed side by side, but not once they have passed through a loop's state (`delay.py`).
"""

from __future__ import annotations

from typing import Any

from lanewise import _jax

_INDEX_ARITHMETIC = frozenset(
    "add sub mul lt le gt ge eq ne select_n max min clamp broadcast_in_dim convert_element_type".split()
)


def shared(jaxpr: _jax.Jaxpr) -> _jax.Jaxpr:
    """The same code with equal index arithmetic in one place."""
    known: dict[Any, list[_jax.Var]] = {}
    same: dict[_jax.Var, _jax.Var] = {}

    def now(atom: _jax.Atom) -> _jax.Atom:
        return atom if isinstance(atom, _jax.Literal) else same.get(atom, atom)

    def key(atom: _jax.Atom) -> Any:
        if isinstance(atom, _jax.Literal):
            return str(atom.aval), str(atom.val)
        return id(atom)

    eqns = []
    for eqn in jaxpr.eqns:
        eqn = eqn.replace(invars=[now(a) for a in eqn.invars])
        if eqn.primitive.name in _INDEX_ARITHMETIC and not eqn.effects:
            form = (eqn.primitive.name, str(eqn.params), *map(key, eqn.invars))
            earlier = known.setdefault(form, list(eqn.outvars))
            if earlier[0] is not eqn.outvars[0]:
                same.update(zip(eqn.outvars, earlier, strict=True))
                continue
        eqns.append(eqn)
    return _jax.new_jaxpr(jaxpr.invars, [now(a) for a in jaxpr.outvars], eqns)
