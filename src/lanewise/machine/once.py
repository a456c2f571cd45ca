"""Values that all lanes share and blocks write, computed before the first tick.

A variable that is the same for all lanes is written in one place, from others of that kind: it always gets the same
value. So it can be there from the start. The kernel between meetings needs that: its lanes run at the same time, and
each of them would write for all.
"""

from __future__ import annotations

from typing import Any

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var, loaded, stored
from lanewise.blocks.form import Block, arguments_of
from lanewise.blocks.link import Linked
from lanewise.machine.state import State


def with_shared_values(linked: Linked, state: State) -> State:
    """The state with the values of all that lanes share."""
    made, given = _makers(linked), dict(linked.program.constants)
    known: dict[Var, Any] = {
        var: loaded(value, var.aval)
        for var, value in zip(linked.uniforms, state.uniforms, strict=True)
        if var in linked.program.inputs or var in given
    }

    def value(atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in known:
            maker = made.get(atom)
            if maker is None:
                known[atom] = loaded(given[atom], atom.aval)
            elif isinstance(maker, _jax.JaxprEqn):
                outs = _jax.run_eqn(maker, [value(a) for a in maker.invars])
                known.update(zip(maker.outvars, outs, strict=True))
            else:
                known[atom] = value(maker)
        return known[atom]

    return state.with_(uniforms=tuple(stored(value(var), var.aval) for var in linked.uniforms))


def _makers(linked: Linked) -> dict[Var, JaxprEqn | Atom]:
    """The equation that gives each variable that is the same for all lanes."""
    found: dict[Var, Any] = {}
    for item in linked.order:
        if isinstance(item, Block):
            found.update((var, eqn) for eqn in item.eqns for var in eqn.outvars)
            pairs = (*item.assigns, *arguments_of(item.terminator))
            found.update((var, atom) for var, atom in pairs if var is not atom)
    return {var: maker for var, maker in found.items() if var in linked.storage.uniform}
