"""The schedule `meet`: each lane on its own, in one kernel, up to a block with matrix work, where lanes run together.

See `cpp/variants/between.py` for the kernel.
"""

from __future__ import annotations

import functools

from lanewise.blocks.link import Linked
from lanewise.core.errors import OptionError
from lanewise.cpp.emit.emitted import Emitted
from lanewise.cpp.emit.rules import Unsupported
from lanewise.cpp.variants.between import emit_between, writes_shared_between
from lanewise.machine.advance import Advance
from lanewise.machine.compact import tile_width
from lanewise.machine.kernel_between import available, run_between
from lanewise.machine.once import with_shared_values
from lanewise.machine.state import State, Tick
from lanewise.machine.sweep import running_expensive
from lanewise.machine.worth import meeting_blocks


def meet(advance: Advance) -> Tick:
    """One tick of lanes that meet: each on its own to the next expensive block, then that for the lanes there."""
    linked, lanes = advance.linked, advance.lanes
    expensive = meeting_blocks(linked)
    between = kernel_between(linked, advance.max_steps, advance.counting)
    if isinstance(between, str):
        raise OptionError(f'schedule="meet" cannot run this program: {between}. Use "auto".')
    tick_cost = float(linked.profile.tick_operations)
    run_expensive = running_expensive(advance, expensive, tick_cost, lambda state, pc: state)

    def tick(state: State) -> State:
        state = run_between(between, state, lanes, advance.counting, linked.profile)
        if len(expensive) == 1 and tile_width(linked, expensive[0], lanes) is None:
            return advance.run(state, expensive[0])
        return run_expensive(state)

    return tick


def begun(linked: Linked, state: State) -> State:
    """The state from which lanes begin: with the values that all share, if the kernel would otherwise write some."""
    if not writes_shared_between(linked, meeting_blocks(linked)):
        return state
    return with_shared_values(linked, state)


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
