"""Products that are made for a sum alone are made where they are added.

The adjoint of a weight matrix is an outer product for each row, which a host does not make: it keeps the two vectors
and adds the products of many rows at once (`rules/sums.py`). A rule sees that where the product stands before the sum,
in the same code. A derivative has its products first and its sums last, and a function that several places share
(`outline.py`) may end between them: it would hand on an array of the weights' size. So products that only a sum reads
move to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import replace

from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.form import Block, terminator_atoms
from lanewise.blocks.link import Linked
from lanewise.core.accumulate import accumulate_p
from lanewise.cpp.emit.rules.sums import outer


def products_late(linked: Linked) -> Linked:
    """The program with each outer product that is made for a sum just before it."""
    live_out = linked.storage.live_out

    def moved(block: Block) -> Block:
        if not any(eqn.primitive is accumulate_p for eqn in block.eqns):
            return block
        atoms = [*(atom for _, atom in block.assigns), *terminator_atoms(block.terminator)]
        kept = {atom for atom in atoms if isinstance(atom, Var)} | set(live_out[block.label])
        return block.with_(eqns=tuple(late(block.eqns, kept)))

    order = tuple(moved(item) if isinstance(item, Block) else item for item in linked.order)
    return replace(linked, order=order)


def late(eqns: Sequence[JaxprEqn], kept: Set[Var]) -> list[JaxprEqn]:
    """Equations, in another order; `kept`: the variables that are read after them."""
    made = {var: eqn for eqn in eqns for var in eqn.outvars}
    readers: dict[Var, list[JaxprEqn]] = {}
    for eqn in eqns:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                readers.setdefault(atom, []).append(eqn)

    def chain(atom: Atom, reader: JaxprEqn, ends: Collection[Atom]) -> list[JaxprEqn]:
        """What makes an atom of some others, in order, as far as nothing else reads it."""
        if isinstance(atom, Literal) or atom in ends or atom not in made or atom in kept:
            return []
        if any(other is not reader for other in readers[atom]):
            return []
        eqn = made[atom]
        return [*(found for a in eqn.invars for found in chain(a, eqn, ends)), eqn]

    # By sum: what waits for it.
    before: dict[int, list[JaxprEqn]] = {}
    for eqn in eqns:
        found = outer(eqn.invars[0], made) if eqn.primitive is accumulate_p else None
        if found is not None:
            ends = [atom for atom in found[1:] if not isinstance(atom, Literal)]
            before[id(eqn)] = chain(eqn.invars[0], eqn, ends)
    waits = {id(eqn) for chained in before.values() for eqn in chained}
    out: list[JaxprEqn] = []
    for eqn in eqns:
        if id(eqn) not in waits:
            out += [*before.get(id(eqn), ()), eqn]
    return out
