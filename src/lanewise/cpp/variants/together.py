"""Which threads of a GPU run a lane between expensive blocks: one alone, or those of a warp together."""

from __future__ import annotations

from collections.abc import Sequence

from lanewise._jax import JaxprEqn
from lanewise.blocks.equations import inside
from lanewise.blocks.form import Block
from lanewise.blocks.link import Linked
from lanewise.core.primitives.facts import facts_of, size_of
from lanewise.cpp.emit.dtypes import OneThread, Warp


def threads_for(linked: Linked, expensive: Sequence[int]) -> OneThread:
    """A warp, if whatever is done to long arrays may be done by each thread in full."""
    cheap = (
        item
        for pc, item in enumerate(linked.order)
        if isinstance(item, Block) and pc not in expensive
    )
    repeatable = all(_may_be_repeated(eqn) for block in cheap for eqn in block.eqns)
    return Warp() if repeatable else OneThread()


def _may_be_repeated(eqn: JaxprEqn) -> bool:
    if facts_of(eqn).repeatable:
        return True
    if not any(Warp().shares(size_of(a)) for a in (*eqn.invars, *eqn.outvars)):
        return True
    called = inside(eqn)
    return called is not None and all(map(_may_be_repeated, called.jaxpr.eqns))
