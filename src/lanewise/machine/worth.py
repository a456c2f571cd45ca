"""Which blocks are worth a guard, or a meeting of lanes, and which need no guard.

A guard is a predicate that the host reads before it starts what comes next: on a GPU 10 to 30 µs, in which nothing
runs. A guard is worth that where a block might run for no lane. Where every cycle leads through one expensive block,
some lane is at it in every tick: it needs no guard. Where every cycle leads through one of several (an expert for each
choice), all lanes gather there: the one with the most lanes runs, which is one thing to read for all of them.
"""

from __future__ import annotations

from collections.abc import Collection

from lanewise.blocks.equations import holds_while
from lanewise.blocks.form import Block, successors
from lanewise.blocks.link import Linked
from lanewise.core.accumulate import accumulate_p

# The lanes of a core meet at products; with fewer than this in all, each core has too few.
FEWEST_LANES_THAT_MEET = 64
# A block is worth meeting at if a lane's products in it take this many operations.
MEETING_PRODUCTS = 10_000


def swept_blocks(linked: Linked) -> tuple[int, ...]:
    """The blocks of a sweep: none that no lane is ever at, nor an entry that nothing comes back to (it runs before)."""
    never = {linked.entered_once, *linked.bare_ends, *(linked.pc_of[b] for b in linked.waiting)}
    return tuple(pc for pc in range(linked.halt) if pc not in never)


def expensive_blocks(linked: Linked, lanes: int) -> tuple[int, ...]:
    """The blocks worth a guard: more work than the guard costs, or a loop that must not run on stale values."""
    work = [cost.shared + lanes * cost.operations for cost in linked.costs]
    items = zip(linked.order, work, strict=True)
    guard = linked.profile.guard_operations
    return tuple(
        pc
        for pc, (item, cost) in enumerate(items)
        if pc != linked.entered_once and (cost > guard or holds_while(getattr(item, "eqns", ())))
    )


def meeting_blocks(linked: Linked) -> tuple[int, ...]:
    """The blocks at which lanes meet: those whose work together differs from the work of each on its own.

    If there are any, lanes also meet where they add to a sum: a kernel on the machine's state has none of its own.
    """
    found = [
        pc
        for pc, cost in enumerate(linked.costs)
        if pc != linked.entered_once and cost.products >= MEETING_PRODUCTS
    ]
    adding = [
        pc
        for pc, item in enumerate(linked.order)
        if pc != linked.entered_once
        and any(eqn.primitive is accumulate_p for eqn in getattr(item, "eqns", ()))
    ]
    return tuple(sorted({*found, *adding})) if found else ()


def around(linked: Linked, expensive: Collection[int]) -> tuple[frozenset[int], frozenset[int]]:
    """The expensive blocks on every cycle, and those of which one is on every cycle; the others are neither.

    The second are alternatives: none of them leads to another without closing a cycle.
    """
    nothing: frozenset[int] = frozenset()
    if linked.has_calls or not expensive or not _acyclic(linked, expensive):
        return nothing, nothing
    always = frozenset(pc for pc in expensive if _acyclic(linked, (pc,)))
    others = frozenset(expensive) - always
    if always or len(others) < 2 or not _alternatives(linked, others):
        return always, nothing
    return nothing, others


def _edges(linked: Linked, pc: int) -> list[int]:
    item = linked.order[pc]
    return [linked.pc_of[label] for label in successors(item)] if isinstance(item, Block) else []


def _acyclic(linked: Linked, without: Collection[int]) -> bool:
    """Whether no lane can complete a cycle without these blocks."""
    left = {pc: set(_edges(linked, pc)) - set(without) for pc in range(linked.halt)}
    for pc in without:
        left.pop(pc)
    while ends := [pc for pc, targets in left.items() if not targets & left.keys()]:
        for pc in ends:
            left.pop(pc)
    return not left


def _alternatives(linked: Linked, blocks: Collection[int]) -> bool:
    """Whether a lane that has run one of these blocks comes to another only after going back in program order."""
    for first in blocks:
        seen: set[int] = set()
        ahead = [pc for pc in _edges(linked, first) if pc > first]
        while ahead:
            pc = ahead.pop()
            if pc in blocks:
                return False
            if pc not in seen:
                seen.add(pc)
                ahead += [target for target in _edges(linked, pc) if target > pc]
    return True
