"""Refill: any number of examples through a machine of few lanes.

A lane that ends early would idle until the last one ends. Here its answer is stored under its example's number and the
lane starts over with the next example. All of it is traceable code around `run_until`, so it works inside `jit`.

When it pays. A refill costs about the same for one lane as for all, so lanes that have ended wait for others: the
refill is due when their waiting, summed over lanes and ticks, has cost what the refill costs. `schedule.py` runs an
expensive block by the same rule, for the same reason. Ordinary ticks pay one scalar test.

When there is nothing to refill with, lanes run out and the machine would end as empty as any other. Once a third of the
lanes idle, those that still run become the examples of a second machine with a quarter of the lanes, which loads them
as they are, stacks and all, and is refilled from them by the same rule; and so on, for three more copies of the code.
Only a machine of a 64th of the lanes runs half empty in the end. The numbers come from a simulation of the suite's
heavy tails: with fewer and larger steps (twice by sixteen, at half of the lanes) there were a third more ticks at 4,096
lanes and lanes were emptier at 128; halving would need six copies for the same.

Growth. A lane whose stack is full waits for the host to make room; when a quarter of the lanes wait, or nothing else
can be done, the machine stops for it. Where no host can help (inside `jit`, or at the greatest depth), such a lane
ends with its outcome and is refilled like any other.

Where frames are lanes, the slot of a lane that has ended takes the next example, and no machine is narrowed: slots of
calls fill tiles whichever example they belong to.

What it does not do: order examples by length. An example's length is not known before it has run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lanewise._jax import Var, storage_struct, stored
from lanewise.blocks.link import Linked
from lanewise.core.options import Options
from lanewise.feed.lanes import lanes_for
from lanewise.grow.larger import Counterparts, moved, with_room
from lanewise.machine import observe
from lanewise.machine.schedule import num_expensive
from lanewise.machine.state import (
    State,
    has_fuel,
    lanes_of,
    outcome_codes,
    put_lanes,
    running,
    waits_for_stack,
    with_lanes,
)
from lanewise.machine.ticking import Pause, results, run_until, statistics
from lanewise.machine.worth import swept_blocks

# How many times fewer lanes the machine has that finishes what is left, how often that is done, and the fewest lanes
# worth a machine.
NARROWING = 4
MOST_NARROWINGS = 3
FEWEST_NARROW_LANES = 2
# The share of lanes that still run when the next machine takes over.
NARROWED_AT = 2 / 3
# The machine stops for the host to make room when one in this many lanes waits for it.
WAITING_FOR_ROOM = 4


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["machine", "example", "next", "answers", "code", "site", "steps"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Flow:
    """A machine, and the examples that flow through it.

    `example` is the one each lane runs (their number, if none), `next` the first that no lane has had. `answers` (one
    array for each register with a result), `code` and `site` are kept by example; `steps` is the sum over all that
    ended.
    """

    machine: State
    example: Any
    next: Any
    answers: tuple[Any, ...]
    code: Any
    site: Any
    steps: Any

    def with_(self, **changes: Any) -> Flow:
        return replace(self, **changes)


# Brings examples into lanes: the flow, which lanes take one, and the number of the one each takes.
Load = Callable[[Flow, Any, Any], Flow]


class Refill:
    """A machine of `lanes` lanes for `examples` examples; `most_depth` is as deep as stacks can ever grow."""

    def __init__(
        self,
        linked: Linked,
        lanes: int,
        examples: int,
        mapped: Sequence[bool],
        options: Options,
        schedule: str,
        most_depth: int,
    ) -> None:
        self.linked = linked
        self.lanes = lanes
        self.examples = examples
        self.mapped = dict(zip(linked.program.inputs, mapped, strict=True))
        self.options = options
        self.schedule = schedule
        self.most_depth = most_depth
        self.machine = lanes_for(linked, lanes, schedule, options, most_depth)
        # Frames that are lanes fill tiles from wherever they are: few examples are no reason for another machine.
        narrowings = 0 if linked.forks else MOST_NARROWINGS
        narrower = (lanes // NARROWING**i for i in range(1, narrowings + 1))
        self.widths = (lanes, *(width for width in narrower if width >= FEWEST_NARROW_LANES))
        self.results = result_registers(linked)

    # -- the three phases --------------------------------------------------------------------------

    def start(self, capacity: int, operands: Sequence[Any]) -> Flow:
        """The first examples in their lanes."""
        flags = [self.mapped[var] for var in self.linked.program.inputs]
        first = [x[: self.lanes] if flag else x for x, flag in zip(operands, flags, strict=True)]
        structs = map(storage_struct, self.results)
        return Flow(
            machine=self.machine.first(first, flags, capacity),
            example=jnp.arange(self.lanes, dtype=jnp.int32),
            next=jnp.int32(self.lanes),
            answers=tuple(jnp.zeros((self.examples, *s.shape), s.dtype) for s in structs),
            code=jnp.zeros((self.examples,), jnp.int32),
            site=jnp.full((self.examples,), -1, jnp.int32),
            steps=jnp.float32(0),
        )

    def run(self, flow: Flow, operands: Sequence[Any]) -> Flow:
        """Tick and refill until all examples have ended, or wait for room on their stacks."""
        inputs = input_registers(self.linked, operands)

        def load(flow: Flow, takes: Any, number: Any) -> Flow:
            row = jnp.clip(number, 0, self.examples - 1)
            given = {var: x[row] if self.mapped.get(var) else x[None] for var, x in inputs.items()}
            return flow.with_(
                machine=self.machine.restarted(flow.machine, takes, given),
                example=jnp.where(takes, number, flow.example),
            )

        return self._run_widths(flow, load, self.examples, self.widths)

    def finish(self, flow: Flow) -> tuple[list[Any], Any, Any, list[Any]]:
        """Answers, codes and sites of all examples, and statistics."""
        # What is not stored by now waits for room that will not come.
        flow = self._put_away(flow, ended=flow.example < self.examples)
        values = dict(zip(self.results, flow.answers, strict=True))
        answers = results(self.linked, values, flow.machine, flow.code)
        observe.finished(flow.machine, flow.code, lives_of_lanes=False)
        return answers, flow.code, flow.site, statistics(flow.machine, flow.steps)

    # -- parts -------------------------------------------------------------------------------------

    def _run_widths(self, flow: Flow, load: Load, limit: Any, widths: Sequence[int]) -> Flow:
        """Run the examples below `limit` with a machine of the first width, the last of them with narrower ones."""
        lanes, *narrower = widths
        few = int(lanes * NARROWED_AT) if narrower else 0
        flow = self._run_through(flow, load, limit, lanes, few)
        return self._run_narrow(flow, flow.next >= limit, widths) if narrower else flow

    def _run_through(self, flow: Flow, load: Load, limit: Any, lanes: int, few: int) -> Flow:
        """Run the examples below `limit`; with none left, until no more than `few` lanes run."""
        patience = jnp.float32(lanes * refill_ticks(self.linked, lanes, self.schedule))
        stacks_grow = flow.machine.returns.shape[0] < self.most_depth and self.linked.has_calls
        # Slots wait for room only when nothing else can be done.
        growable = (stacks_grow or bool(self.linked.waiting)) and not self.linked.forks

        def enough(flow: Flow) -> Any:
            return jnp.where(flow.next < limit, 0, few)

        def goes_on(flow: Flow) -> Any:
            busy = self.machine.running(flow.machine) > enough(flow)
            if growable:
                busy &= (flow.machine.pc < 0).sum() * WAITING_FOR_ROOM < lanes
            return busy & has_fuel(flow.machine)

        def turn(flow: Flow) -> Flow:
            pause = Pause(jnp.where(flow.next < limit, patience, jnp.inf), enough(flow))
            machine, _ = run_until(
                self.linked,
                flow.machine,
                lanes,
                self.options,
                self.schedule,
                pause,
                waiting=limit - flow.next,
            )
            seen = self.machine.seen(machine)
            ended = seen.pc == self.linked.halt
            if not (stacks_grow or self.linked.forks):
                ended |= waits_for_stack(seen)
            flow = self._put_away(flow.with_(machine=machine), ended)
            number = flow.next + jnp.cumsum(ended, dtype=jnp.int32) - 1
            flow = flow.with_(
                next=jnp.minimum(flow.next + ended.sum(dtype=jnp.int32), limit),
            )
            return load(flow, ended & (number < limit), number)

        return jax.lax.while_loop(goes_on, turn, flow)

    def _put_away(self, flow: Flow, ended: Any) -> Flow:
        """Store the results of lanes that ended under their examples' numbers, and free them."""
        machine = self.machine.seen(flow.machine)
        lanes = machine.pc.shape[0]
        held = ended & (flow.example < self.examples)
        # Each lane without a result writes to a place of its own beyond the end.
        place = jnp.where(held, flow.example, self.examples + jnp.arange(lanes, dtype=jnp.int32))

        def put(kept: Any, values: Any) -> Any:
            return kept.at[place].set(values, mode="drop", unique_indices=True)

        registers = dict(zip(self.linked.registers, machine.registers, strict=True))
        code = outcome_codes(machine)
        return flow.with_(
            machine=self.machine.stopped(flow.machine, ended).with_(
                watch=observe.put_away(machine, place)
            ),
            example=jnp.where(ended, self.examples, flow.example),
            answers=tuple(
                put(kept, registers[var])
                for var, kept in zip(self.results, flow.answers, strict=True)
            ),
            code=put(flow.code, code),
            site=put(flow.site, machine.site),
            steps=flow.steps + jnp.where(held, machine.steps, 0).sum(dtype=jnp.float32),
        )

    def _run_narrow(self, flow: Flow, none_left: Any, widths: Sequence[int]) -> Flow:
        """Finish the lanes that still run with a machine of fewer lanes, if no example is left for this one."""
        lanes, width = widths[:2]
        wide, example = flow.machine, flow.example
        runs = running(wide, self.linked) & none_left
        count = runs.sum(dtype=jnp.int32)
        # The lanes that run, in order: the examples of the narrow machine.
        (lane_of,) = jnp.nonzero(runs, size=lanes, fill_value=0)

        def load(flow: Flow, takes: Any, number: Any) -> Flow:
            lane = lane_of[jnp.clip(number, 0, lanes - 1)]
            return flow.with_(
                machine=with_lanes(flow.machine, takes, lanes_of(wide, lane)),
                example=jnp.where(takes, example[lane], flow.example),
            )

        expensive = num_expensive(self.linked, width, self.schedule)
        number = jnp.arange(width, dtype=jnp.int32)
        empty = lanes_of(wide, number).with_(
            pc=jnp.full((width,), self.linked.halt, jnp.int32),
            waited=jnp.zeros((expensive,), wide.waited.dtype),
            spent=jnp.zeros((expensive,), wide.spent.dtype),
        )
        none = jnp.full((width,), self.examples, jnp.int32)
        narrow = flow.with_(machine=empty, example=none, next=jnp.minimum(width, count))
        narrow = load(narrow, number < count, number)
        narrow = self._run_widths(narrow, load, count, widths[1:])
        # Lanes that wait for room go back to where they were; those that ended leave an empty lane behind.
        taken = runs & (jnp.cumsum(runs) <= narrow.next)
        lane = jnp.argmax(example[None, :] == narrow.example[:, None], axis=1)
        back = jnp.where(narrow.example < self.examples, lane, lanes)
        left = wide.with_(pc=jnp.where(taken, self.linked.halt, wide.pc))
        whole = narrow.machine
        return narrow.with_(
            machine=put_lanes(left, back, whole).with_(
                uniforms=whole.uniforms,
                sums=whole.sums,
                deepest=whole.deepest,
                ticks=whole.ticks,
                counters=whole.counters,
                watch=whole.watch,
                fuel=whole.fuel,
            ),
            example=jnp.where(taken, self.examples, example)
            .at[back]
            .set(narrow.example, mode="drop"),
            next=flow.next,
        )


def flow_moved(
    flow: Flow, smaller: Linked, larger: Linked, pairs: Counterparts, num_expensive: int
) -> Flow:
    """The same for a machine that is refilled: stored answers have room, too."""
    answers = dict(zip(result_registers(smaller), flow.answers, strict=True))
    return flow.with_(
        machine=moved(flow.machine, smaller, larger, pairs, num_expensive),
        answers=tuple(with_room(answers[pairs[var]], var) for var in result_registers(larger)),
    )


def result_registers(linked: Linked) -> tuple[Var, ...]:
    """The registers that hold results at a lane's end."""
    kept = frozenset(linked.registers)
    return tuple(dict.fromkeys(v for v in linked.program.entry_function.results if v in kept))


def input_registers(linked: Linked, operands: Sequence[Any]) -> dict[Var, Any]:
    """The values of the registers that have one before the program starts."""
    given = {
        var: stored(value, var.aval)
        for var, value in zip(linked.program.inputs, operands, strict=True)
    }
    given |= {var: jnp.asarray(value) for var, value in linked.program.constants}
    return {var: given[var] for var in linked.registers if var in given}


def refill_ticks(linked: Linked, lanes: int, schedule: str) -> float:
    """What a refill costs, in ticks."""
    swept = [linked.costs[pc].operations for pc in swept_blocks(linked)] or [0.0]
    blocks_a_tick = len(swept) if schedule == "sweep" else 1
    operations = sum(swept) * blocks_a_tick / len(swept)
    tick = blocks_a_tick * linked.profile.block_operations + lanes * operations
    kept = set(linked.registers)
    moved = [*result_registers(linked), *(var for var in linked.program.inputs if var in kept)]
    elements = sum(math.prod(storage_struct(var).shape) for var in moved)
    entry = linked.pc_of[linked.program.entry_function.entry]
    once = linked.costs[entry].operations + linked.profile.move_operations * elements
    return (linked.profile.block_operations + lanes * once) / tick
