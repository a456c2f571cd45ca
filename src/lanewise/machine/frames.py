"""Frames as lanes: the state of a machine that forks.

A machine with stacks has one frame of a lane in its registers and the others on stacks, so that a lane does one thing
at a time. Here every pending call has a row of its own in every register: a *slot*. The first slots are the lanes
themselves, one for each example, and stay theirs; the others are handed out to calls and come back. A slot has

* `parent`, the slot that made the call (none for a lane), and `place`, which of the fork's calls it is;
* `pending`, how many calls of its own are not back, and `resume`, the block it goes on at when all are;
* `root`, the lane that it belongs to, and its `depth`;
* `launched`, how many calls of the fork it stands at have been made, where there was no room for all;
* how it has failed, if it has, or the first of its calls that did (`failed` is that call's place, `code`, `site`);
* of calls that it has spawned and not collected (`blocks/spawn.py`), the `first` and the `last`, and how many it has
  `made` so far, which is the next one's place; and of itself, if it was `spawned`, the `next` call of its parent's.

A free slot, like a lane that has ended, is at pc `halt`; a slot that waits for its calls is at `halt + 1`, one that has
failed and has not reported it to its parent yet at `halt + 2`, and one that was spawned and is back, and holds results
that its parent has not collected, at `halt + 3`. So the tests of which lanes run, and whether all have ended, are those
of any machine. Arguments of an example that nothing writes are held once for each lane, and read through `root`.

Room. `capacity` is how many frames may be pending on one way down from a lane, as that of a stack is. The arena has
slots for the lanes, for one such way down (`reserve`), and for work besides (`num_slots`). `fork.py` says what happens
when the arena is full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise._jax import storage_struct
from lanewise.blocks.form import Spawn
from lanewise.blocks.link import Linked
from lanewise.core.one_function import as_one_function
from lanewise.core.options import Options
from lanewise.machine.banks import in_banks, out_of_banks, with_rows
from lanewise.machine.compact import first_lanes
from lanewise.machine.state import State, initial_state

# A place that no call of a fork has.
NOWHERE = 1 << 30
# In the place of the call that has failed: the example has ended.
ENDED = -1
# The arena has n slots for each lane besides those for depth: at least the one and at most the other number, and,
# unless lanes need them, no more than fit in these bytes.
SLOTS_A_LANE = 64
FEWEST_SLOTS, MOST_SLOTS = 256, 4096
MOST_ARENA_BYTES = 256 << 20
# Without max_depth, how deep frames go at the most: an arena is never larger than this.
DEEPEST = 1 << 18
MOST_DEPTH_BYTES = 4 << 30


# What a slot holds besides registers, with its value in an unused slot. It is one table with a row for each slot:
# a write of rows is a loop of its own to XLA, which takes a tenth of a second to compile.
_COLUMNS = {
    "parent": -1,
    "place": 0,
    "pending": 0,
    "resume": 0,
    "root": 0,
    "depth": 0,
    "launched": 0,
    "failed": NOWHERE,
    "code": 0,
    "site": -1,
    "first": -1,
    "last": -1,
    "made": 0,
    "spawned": 0,
    "next": -1,
}


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["table", "banks", "final"],
    meta_fields=["lanes"],
)
@dataclass(frozen=True)
class Frames:
    """The registers of slots (`banks.py`), and what they hold besides, as a table; `final`: the arena grows no more."""

    table: Any
    banks: tuple[Any, ...]
    final: Any
    lanes: int

    def with_(self, **changes: Any) -> Frames:
        return replace(self, **changes)


def column(table: Any, name: str) -> Any:
    """A column of the table, or of some rows of it."""
    return table[:, column_number(name)]


def column_number(name: str) -> int:
    return list(_COLUMNS).index(name)


def with_columns(rows: Any, **columns: Any) -> Any:
    """Rows with other values in some columns."""
    names = list(_COLUMNS)
    return jnp.stack(
        [jnp.broadcast_to(columns.get(n, column(rows, n)), rows.shape[:1]) for n in names], axis=1
    ).astype(jnp.int32)


def unused_rows(number: int) -> Any:
    """Rows of unused slots."""
    return jnp.tile(jnp.asarray(list(_COLUMNS.values()), jnp.int32), (number, 1))


def waiting_pc(linked: Linked) -> int:
    """The pc of a slot that waits for its calls."""
    return linked.halt + 1


def failed_pc(linked: Linked) -> int:
    """The pc of a slot that has failed, and has not reported it to its parent."""
    return linked.halt + 2


def held_pc(linked: Linked) -> int:
    """The pc of a slot that was spawned and is back, and holds what its parent has not collected."""
    return linked.halt + 3


def spawns(linked: Linked) -> int:
    """The most calls that a frame may have to spawn before it can collect; 0 if none spawns any."""
    most = 0
    for function in linked.program.functions.values():
        ends = [b.terminator for b in function.blocks if isinstance(b.terminator, Spawn)]
        # For a loop the calls of a turn, for branches those of all.
        most = max([most, *(len(end.calls) for end in ends)])
        most = max(most, sum(len(end.calls) for end in ends if end.join is None))
    return most


def reserve(linked: Linked, capacity: int) -> int:
    """How many slots one way down takes, of frames `capacity` deep: one for each, or as many as a turn spawns."""
    return capacity * max(spawns(linked), 1)


def slot_bytes(linked: Linked) -> int:
    """What a slot takes."""
    structs = [storage_struct(v) for v in linked.registers if v not in linked.held_by_lanes]
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in structs) + 4 * (len(_COLUMNS) + 5)


def num_slots(linked: Linked, lanes: int, capacity: int) -> int:
    """How many slots a machine of `lanes` lanes has, whose frames may be `capacity` deep."""
    wanted = min(max(SLOTS_A_LANE * lanes, FEWEST_SLOTS), MOST_SLOTS)
    affordable = MOST_ARENA_BYTES // slot_bytes(linked)
    return lanes + reserve(linked, capacity) + max(min(wanted, affordable), FEWEST_SLOTS)


def most_frames(linked: Linked, options: Options) -> int:
    """How deep frames may be outside `jit`."""
    if options.max_depth is not None:
        return options.max_depth
    return min(DEEPEST, max(FEWEST_SLOTS, MOST_DEPTH_BYTES // slot_bytes(linked)))


def first_frames(
    linked: Linked,
    operands: Sequence[Any],
    mapped: Sequence[bool],
    lanes: int,
    capacity: int,
    final: bool,
) -> State:
    """All lanes at the entry, and all other slots free; `final`: the host will not make room."""
    state = initial_state(linked, operands, mapped, lanes, 0)
    rows = jnp.arange(lanes, dtype=jnp.int32)
    banks, registers = in_banks(linked, state.registers)
    table = with_columns(unused_rows(lanes), root=rows)
    frames = Frames(table, banks, final=jnp.array(final), lanes=lanes)
    state = state.with_(registers=registers, frames=frames)
    return with_slots(state, linked, capacity, final)


def with_slots(state: State, linked: Linked, capacity: int, final: bool) -> State:
    """The same state with slots for frames `capacity` deep; those that waited for room go on."""
    more = num_slots(linked, state.frames.lanes, capacity) - state.pc.shape[0]

    def pad(array: Any, value: int = 0) -> Any:
        widths = [(0, more)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, widths, constant_values=value)

    frames = state.frames.with_(
        table=jnp.concatenate([state.frames.table, unused_rows(more)]),
        banks=tuple(with_rows(x, x.shape[0] + more) for x in state.frames.banks),
        final=jnp.array(final),
    )
    goes_on = jnp.where(state.pc < 0, -1 - state.pc, state.pc)
    return state.with_(
        pc=pad(goes_on, linked.halt),
        returns=jnp.zeros((capacity, 0), jnp.int32),
        depth=pad(state.depth),
        steps=pad(state.steps),
        code=pad(state.code),
        site=pad(state.site, -1),
        frames=frames,
    )


def first_slots(mask: Any, width: int, linked: Linked) -> Any:
    """The first `width` slots of a mask; where there are fewer, a number no slot has."""
    if linked.profile.host_reads_guards:
        return first_lanes(mask, width)
    slots = mask.shape[0]

    def walk(mask: Any) -> list[Any]:
        def step(slot: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            number, found = carry
            at = jnp.minimum(number, width)
            here = mask[slot]
            written = jnp.where(here, slot, slots).astype(jnp.int32)
            found = lax.dynamic_update_slice(found, written[None], (at,))
            return number + here.astype(jnp.int32), found

        # One place more than asked for, where the rest goes.
        start = (jnp.int32(0), jnp.full((width + 1,), slots, jnp.int32))
        return [lax.fori_loop(0, slots, step, start)[1][:width]]

    # A cumulative sum is a dozen kernels to XLA:CPU; this is one, and compiles in a tenth of the time.
    (found,) = as_one_function(walk, mask)
    return found


def ranks(mask: Any, linked: Linked) -> Any:
    """For each row of a mask, how many of the mask come before it."""
    if linked.profile.host_reads_guards:
        return jnp.cumsum(mask, dtype=jnp.int32) - mask

    def step(row: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        number, found = carry
        found = lax.dynamic_update_slice(found, number[None], (row,))
        return number + mask[row].astype(jnp.int32), found

    start = (jnp.int32(0), jnp.zeros(mask.shape, jnp.int32))
    return lax.fori_loop(0, mask.shape[0], step, start)[1]


def lanes_alone(state: State, linked: Linked) -> State:
    """The state of the lanes themselves, without the frames of their calls."""
    lanes = state.frames.lanes
    own = {name: getattr(state, name)[:lanes] for name in ("pc", "steps", "depth")}
    rows = state.frames.table[:lanes]
    return state.with_(
        **own,
        registers=out_of_banks(linked, state.frames.banks, state.registers, lanes),
        code=column(rows, "code"),
        site=column(rows, "site"),
    )
