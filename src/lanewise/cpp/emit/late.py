"""Products that are made for a sum alone are made where they are added.

The adjoint of a weight matrix is an outer product for each row, which a host does not make: it keeps the two vectors and
adds the products of many rows at once (`rules/sums.py`). A rule sees that where the product stands before the sum, in
the same code. A derivative has all of its products first and all of its sums last, and between them the line may be
drawn of a function that several places share (`outline.py`), which then hands on an array of the weights' size. So
products that only a sum reads move to it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from lanewise._jax import JaxprEqn, Literal, Var
from lanewise.blocks.form import Block, terminator_atoms
from lanewise.blocks.link import Linked
from lanewise.core.accumulate import accumulate_p
from lanewise.cpp.emit.rules.sums import outer


def productslate(linked: Linked) -> Linked:
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
    # What each sum waits for, in order.
    before: dict[int, list[JaxprEqn]] = {}
    moved: set[int] = set()
    for eqn in eqns:
        found = outer(eqn.invars[0], made) if eqn.primitive is accumulate_p else None
        if found is None:
            continue
        vectors = {atom for atom in found[1:] if not isinstance(atom, Literal)}
        chain: list[JaxprEqn] = []

        def collect(atom: object, reader: JaxprEqn, chain: list[JaxprEqn] = chain) -> None:
            if not isinstance(atom, Var) or atom in vectors or atom not in made or atom in kept:
                return
            # Whatever else reads it has it earlier.
            if any(other is not reader for other in readers[atom]) or id(made[atom]) in moved:
                return
            for inner in made[atom].invars:
                collect(inner, made[atom])
            chain.append(made[atom])

        collect(eqn.invars[0], eqn)
        before[id(eqn)] = chain
        moved.update(map(id, chain))
    out: list[JaxprEqn] = []
    for eqn in eqns:
        if id(eqn) not in moved:
            out += [*before.get(id(eqn), ()), eqn]
    return out
