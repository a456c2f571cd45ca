"""What lanes that run on their own still do together: products with a matrix that they share.

Those of a core meet there (`cpp/emit/meeting.py`), and what they add to a sum as outer products is added many rows at a
time (`cpp/emit/rules/sums.py`). So the cost is about that for all lanes of a machine, though each lane takes its own
path in between. Products with matrices that are near anyway, and products of many rows, run at once, which is as fast,
and are not counted here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lanewise._jax import JaxprEqn, Literal, Var
from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.core.accumulate import accumulate_p
from lanewise.core.primitives.facts import Cost, bytes_of, eqn_cost, size_of
from lanewise.machine.worth import FEWEST_LANES_THAT_MEET

# Outer products of fewer numbers are added one by one.
LEAST_OUTER = 512


def met(linked: Linked, lanes: int) -> list[Cost]:
    """For each node, the products that lanes meet at, and the sums that outer products are added to in rows."""
    # Imports the C++ emitter: only where it is needed.
    from lanewise.cpp.emit.meeting import available

    if lanes < FEWEST_LANES_THAT_MEET or linked.profile.alone != "native" or not available():
        return [Cost()] * len(linked.order)
    program = linked.program
    given = {*program.inputs, *(var for var, _ in program.constants)}
    shared = {var for var in given if var in linked.storage.uniform}
    return [
        sum((_met(eqn, shared) for eqn in item.eqns), Cost()) if isinstance(item, Block) else Cost()
        for item in linked.order
    ]


def _met(eqn: JaxprEqn, shared: Collection[Var]) -> Cost:
    if eqn.primitive is accumulate_p:
        (part, *rest) = eqn.invars
        in_rows = not rest and len(part.aval.shape) == 2 and size_of(part) >= LEAST_OUTER
        return Cost(sums=eqn_cost(eqn).sums) if in_rows else Cost()
    if eqn.primitive.name != "dot_general":
        return Cost()
    return Cost(products=eqn_cost(eqn).products) if _meets(eqn, shared) else Cost()


def _meets(eqn: JaxprEqn, shared: Collection[Var]) -> bool:
    from lanewise.cpp.emit.meeting import LARGE_BYTES, MANY_ROWS

    summed: Sequence[Sequence[int]]
    summed, batch = eqn.params["dimension_numbers"]
    for matrix, rows, axes in zip(eqn.invars, eqn.invars[::-1], summed[::-1], strict=True):
        if isinstance(matrix, Literal) or matrix not in shared or rows in shared:
            continue
        terms = math.prod(rows.aval.shape[axis] for axis in axes)
        plain = len(matrix.aval.shape) == 2 and len(axes) == 1 and not any(batch)
        few = size_of(rows) <= MANY_ROWS * terms
        return plain and few and bytes_of(matrix) >= LARGE_BYTES
    return False
