"""The schedule `meet`: each lane by itself, in one kernel, up to a block with matrix work, where lanes run together.

See `cpp/variants/between.py` for the kernel.
"""

from __future__ import annotations

import functools

from lanewise.blocks.link import Linked
from lanewise.core.errors import OptionError
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.rules import Unsupported
from lanewise.cpp.variants.between import emit_between
from lanewise.machine.advance import Advance
from lanewise.machine.compact import tile_width
from lanewise.machine.kernel_between import available, run_between
from lanewise.machine.state import State, Tick
from lanewise.machine.sweep import running_dear
from lanewise.machine.worth import meeting_blocks


def meet(advance: Advance) -> Tick:
    """One tick of lanes that meet: each by itself to the next dear block, then those for the lanes that are there."""
    linked, lanes = advance.linked, advance.lanes
    dear = meeting_blocks(linked)
    between = kernel_between(linked, advance.max_steps, advance.counting)
    if isinstance(between, str):
        raise OptionError(f'schedule="meet" cannot run this program: {between}. Use "auto".')
    tick_cost = float(linked.profile.tick_operations)
    run_dear = running_dear(advance, dear, tick_cost, lambda state, pc: state)

    def tick(state: State) -> State:
        state = run_between(between, state, lanes, advance.counting, linked.profile)
        if len(dear) == 1 and tile_width(linked, dear[0], lanes) is None:
            return advance.run(state, dear[0])
        return run_dear(state)

    return tick


@functools.lru_cache(maxsize=64)
def kernel_between(linked: Linked, max_steps: int | None, counting: bool) -> Emitted | str:
    """The kernel that runs lanes between meetings, or why there is none."""
    if not meeting_blocks(linked):
        return "it has no block with enough matrix work for lanes to meet at"
    if not available(linked.profile):
        return "kernels cannot be made here"
    try:
        return emit_between(
            linked,
            meeting_blocks(linked),
            max_steps=max_steps,
            counting=counting,
        )
    except Unsupported as refusal:
        return f"{refusal.operation or 'its state'}: {refusal.why}"
