"""Which blocks are worth a guard, or a meeting of lanes."""

from __future__ import annotations

from lanewise.blocks.equations import holds_while
from lanewise.blocks.link import Linked

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
    """The blocks at which lanes meet: those whose work together is another than the work of each by itself."""
    return tuple(
        pc
        for pc, cost in enumerate(linked.costs)
        if pc != linked.entered_once and cost.products >= MEETING_PRODUCTS
    )
