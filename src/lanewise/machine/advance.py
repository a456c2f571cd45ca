"""Running one block for the lanes that are at it.

The block's code runs for all lanes; its new values are stored where the lane is at the block (`mask`), and the old ones
stay elsewhere. Only what another block reads is stored. Indexed writes are masked themselves (`masked_update`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Literal, Var, loaded, stored
from lanewise.blocks.analysis import writes_in_order
from lanewise.blocks.equations import masked_update, update_chain
from lanewise.blocks.form import (
    Block,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Jump,
    Return,
    Spawn,
    TailCall,
    arguments_of,
    reads,
    terminator_atoms,
)
from lanewise.blocks.link import Linked, ReturnPoint
from lanewise.core.accumulate import accumulate_p
from lanewise.core.errors import InternalError, Outcome
from lanewise.machine import observe
from lanewise.machine.held import added
from lanewise.machine.state import State
from lanewise.machine.sums import BlockSums
from lanewise.machine.together import FEWEST_GROUPS, index_for, lookups, needed_for, same_value

# For an equation (by its id): the indices it reads at, by variable, where they are the same for all lanes.
Shared = Mapping[int, Mapping[Any, Any]]


class Advance:
    """How blocks of one linked program change the state.

    `max_steps`: end a lane before it exceeds this many steps. `counting`: keep the counters of `Stats`. `expensive`:
    the blocks that a sweep guards.
    """

    def __init__(
        self,
        linked: Linked,
        lanes: int,
        *,
        max_steps: int | None,
        counting: bool,
        expensive: Collection[int] = (),
    ) -> None:
        self.linked = linked
        self.lanes = lanes
        self.max_steps = max_steps
        self.counting = counting
        self.expensive = expensive
        self.place = {var: i for i, var in enumerate(linked.registers)}
        self.uniform_place = {var: i for i, var in enumerate(linked.uniforms)}
        self.stack_place = {var: i for i, var in enumerate(linked.storage.stacks)}
        self.by_row: frozenset[Var] = frozenset()
        self.rows: Any = None
        self.keeps_others = True

    def with_lanes(self, lanes: int) -> Advance:
        """The same for another number of lanes."""
        return Advance(
            self.linked,
            lanes,
            max_steps=self.max_steps,
            counting=self.counting,
            expensive=self.expensive,
        )

    def of_tile(self, by_row: frozenset[Var], rows: Any) -> Advance:
        """The same for lanes that are copies; those of the mask are put back.

        They read slices of the registers `by_row` at rows that are not their own.
        """
        found = self.with_lanes(self.lanes)
        found.by_row, found.rows, found.keeps_others = by_row, rows, False
        return found

    def run(self, state: State, pc: int) -> State:
        """Advance the lanes that are at block `pc`."""
        item = self.linked.order[pc]
        mask = state.pc == pc
        if isinstance(item, ReturnPoint):
            state = self._pop(state, item, mask)
            return self.count(
                state.with_(pc=jnp.where(mask, self.linked.pc_after(item.target), state.pc)),
                mask,
                pc,
            )
        mask, shared = self.agreeing(state, item, mask, self.lanes // FEWEST_GROUPS)
        if self.max_steps is not None and item.steps:
            spent = mask & (state.steps + item.steps > self.max_steps)
            mask = mask & ~spent
            state = self._end(state, spent, Outcome.STEPS_EXHAUSTED)
        if isinstance(item.terminator, Call):
            full = mask & (state.depth >= state.returns.shape[0])
            mask = mask & ~full
            state = state.with_(pc=jnp.where(full, -1 - pc, state.pc))
        if item.steps and (self.max_steps is not None or self.counting):
            state = state.with_(steps=jnp.where(mask, state.steps + item.steps, state.steps))
        state, given = self.execute(state, item, mask, shared)
        return self.count(self.leave(state, item, mask, given), mask, pc)

    # -- parts -------------------------------------------------------------------------------------

    def agreeing(self, state: State, block: Block, mask: Any, enough: int) -> tuple[Any, Shared]:
        """The lanes that run the block together, and the indices at which they read shared arrays.

        Lanes that `enough` others agree with run; if there are none such, those with the smallest index.
        """
        found = lookups(block, self.uniform_place.__contains__)
        if not found:
            return mask, {}
        wanted = tuple(dict.fromkeys(var for lookup in found for var in lookup.indices))
        own = self.values_of(state, block, wanted, mask)
        chosen: dict[Var, Any] = {}
        for var, indices in zip(wanted, own, strict=True):
            twin = next((other for other in chosen if same_value(block.eqns, var, other)), None)
            if twin is not None:
                chosen[var] = chosen[twin]
                continue
            parts = []
            for column in indices.reshape(self.lanes, -1).T:
                index = index_for(column, mask, enough)
                mask = mask & (column == index)
                parts.append(index)
            chosen[var] = jnp.stack(parts).reshape(indices.shape[1:])
        # Where no lane is, any place is right.
        safe = {var: jnp.where(mask.any(), index, 0) for var, index in chosen.items()}
        return mask, {id(lookup.eqn): {v: safe[v] for v in lookup.indices} for lookup in found}

    def _end(self, state: State, which: Any, outcome: Outcome, site: int = -1) -> State:
        return state.with_(
            pc=jnp.where(which, self.linked.halt, state.pc),
            code=jnp.where(which, int(outcome), state.code),
            site=jnp.where(which, site, state.site),
        )

    def count(self, state: State, mask: Any, pc: int) -> State:
        """Record that a block has run for the lanes of the mask."""
        if not self.counting:
            return state
        active = mask.sum(dtype=jnp.float32)
        ran = (active > 0).astype(jnp.float32)
        share = [active, ran * self.lanes]
        nothing = [jnp.zeros_like(ran)] * 2
        of_expensive = share if pc in self.expensive else nothing
        # A block that only jumps is a little work, too.
        work = [(1.0 + self.linked.costs[pc].operations) * count for count in share]
        # The tick counts the last two.
        counted = jnp.stack([ran, *share, *of_expensive, *work, *nothing])
        return state.with_(
            counters=state.counters + counted,
            watch=observe.advanced(state.watch, pc, active),
        )

    def execute(
        self,
        state: State,
        block: Block,
        mask: Any,
        shared: Shared | None = None,
        adds: Any = None,
        known: Mapping[Var, Any] | None = None,
    ) -> tuple[State, list[Any]]:
        """Run the block's code and store what it writes; also returns what its terminator reads.

        `shared`: indices that all lanes of the mask have in common, by the equation that reads there. `adds`: those of
        the lanes that add to sums, if not all of them do. `known`: variables that are not registers, with their values.
        """
        alive = self.linked.storage.live_out[block.label]
        assigned = dict(block.assigns)
        kept = [
            var
            for var in dict.fromkeys(writes_in_order(block))
            if var in alive and self._is_kept(var)
        ]
        atoms = [assigned.get(var, var) for var in kept]
        chains = {
            var: update_chain(block.eqns, var, atom) for var, atom in zip(kept, atoms, strict=True)
        }
        given = terminator_atoms(block.terminator)
        once = [var in self.uniform_place for var in (*kept, *self._parameters(block))]
        handed = [update_chain(block.eqns, *pair) for pair in arguments_of(block.terminator)]
        updates = [eqn for chain in (*chains.values(), *handed) for eqn in chain]
        sums = BlockSums.of(block, self.linked, shared or {})
        once += [var not in sums.varying for var in sums.needs]
        outputs = [*atoms, *given, *sums.needs]
        known = known or {}

        def read(var: Var) -> Any:
            return known[var] if var in known else self._read(state, var)

        wanted = list(zip(outputs, once, strict=True))
        values = self._compute(read, block, wanted, updates, mask, shared or {})
        adds = mask if adds is None else adds
        more = values[len(atoms) + len(given) :]
        state = state.with_(sums=added(self.linked, state.sums, block, sums, more, adds))
        registers, uniforms = list(state.registers), list(state.uniforms)
        for var, value in zip(kept, values, strict=False):
            value = stored(value, var.aval)
            if var in self.uniform_place:
                uniforms[self.uniform_place[var]] = value
            elif chains[var]:
                registers[self.place[var]] = value
            else:
                registers[self.place[var]] = self._chosen(mask, value, registers[self.place[var]])
        state = state.with_(registers=tuple(registers), uniforms=tuple(uniforms))
        return state, values[len(kept) : len(kept) + len(given)]

    def values_of(self, state: State, block: Block, outputs: Sequence[Var], mask: Any) -> list[Any]:
        """The values of variables that a block defines, for each lane."""
        if not outputs:
            return []
        part = block.with_(
            eqns=needed_for(block, outputs), assigns=(), terminator=Return(), steps=0
        )
        read = functools.partial(self._read, state)
        return self._compute(read, part, [(var, False) for var in outputs], (), mask, {})

    def _chosen(self, mask: Any, new: Any, old: Any) -> Any:
        """New values where the mask holds; elsewhere the old ones, if they are kept."""
        return select(mask, new, old) if self.keeps_others else new

    def _is_kept(self, var: Var) -> bool:
        return var in self.place or var in self.uniform_place

    @staticmethod
    def _parameters(block: Block) -> list[Any]:
        """Where what the terminator reads goes: parameters of a callee, or nowhere."""
        if isinstance(block.terminator, Call | TailCall | Fork):
            return [var for var, _ in arguments_of(block.terminator)]
        if isinstance(block.terminator, Spawn):
            return [*(var for var, _ in arguments_of(block.terminator)), None]
        return [None for _ in terminator_atoms(block.terminator)]

    def _compute(
        self,
        read: Callable[[Var], Any],
        block: Block,
        wanted: Sequence[tuple[Any, bool]],
        updates: Sequence[Any],
        mask: Any,
        shared: Shared,
    ) -> list[Any]:
        """Values that are wanted after the block's equations, for all lanes, or once where that serves all."""
        outputs = [atom for atom, _ in wanted]
        inputs = list(reads(block))
        arrays = list(map(read, inputs))
        axes = [None if var in self.uniform_place or var in self.by_row else 0 for var in inputs]
        masked = {id(eqn) for eqn in updates}
        # What only leads to a sum over lanes is not computed for each of them.
        needed = {id(eqn) for eqn in needed_for(block, [a for a in outputs if isinstance(a, Var)])}
        eqns = [
            eqn
            for eqn in block.eqns
            if id(eqn) in needed or (eqn.effects and eqn.primitive is not accumulate_p)
        ]

        def one_lane(here: Any, row: Any, *values: Any) -> list[Any]:
            env = _jax.Environment(inputs, values, literal=_as_array)
            for eqn in eqns:
                # Closed over, and so the same for all lanes.
                common = shared.get(id(eqn), {})
                args = [
                    common[atom] if isinstance(atom, Var) and atom in common else env[atom]
                    for atom in eqn.invars
                ]
                if id(eqn) in masked:
                    outs = [masked_update(eqn, args, here)]
                elif eqn.invars and id(eqn.invars[0]) in by_row:
                    outs = [_slice_of_row(eqn, args, row)]
                else:
                    outs = _jax.run_eqn(eqn, args)
                env.bind(eqn.outvars, outs)
            return env.read(outputs)

        out_axes = [None if once else 0 for _, once in wanted]
        by_row = {id(var) for var in self.by_row}
        rows = None if self.rows is None else 0
        axes = (0, rows, *axes)
        run = jax.vmap(one_lane, in_axes=axes, out_axes=out_axes, axis_size=self.lanes)
        return run(mask, self.rows, *arrays)

    def _read(self, state: State, var: Var) -> Any:
        if var in self.uniform_place:
            return loaded(state.uniforms[self.uniform_place[var]], var.aval)
        return loaded(state.registers[self.place[var]], var.aval)

    def leave(self, state: State, block: Block, mask: Any, given: Sequence[Any]) -> State:
        """Follow the block's terminator."""
        pc_after = self.linked.pc_after
        match block.terminator:
            case Jump(target):
                return state.with_(pc=jnp.where(mask, pc_after(target), state.pc))
            case Branch(targets=targets):
                following = [pc_after(t) for t in targets]
                index = given[0]
                if targets[0] in self.linked.waiting:
                    return self._wait_unless(state, index, mask, following[1])
                if len(following) == 2:
                    chosen = jnp.where(index.astype(bool), following[1], following[0])
                else:
                    chosen = jnp.asarray(following, jnp.int32)[index.astype(jnp.int32)]
                return state.with_(pc=jnp.where(mask, chosen, state.pc))
            case Call():
                return self.enter(self._push(state, block, mask), block, given, mask)
            case TailCall():
                return self.enter(state, block, given, mask)
            case Fork() | Spawn() | Collect():
                raise InternalError("a machine whose frames are not lanes cannot fork")
            case Return():
                return self._return(state, mask)
            case Fail(site, outcome):
                return self._end(state, mask, outcome, site)

    def _wait_unless(self, state: State, room: Any, mask: Any, following: int) -> State:
        """Where a lane goes that needs room on its tape: if there is none it waits, and its code says so."""
        room = room.astype(bool)
        waits = mask & ~room
        return state.with_(
            pc=jnp.where(mask, jnp.where(room, following, -1 - following), state.pc),
            code=jnp.where(waits, int(Outcome.TAPE_FULL), state.code),
        )

    def enter(self, state: State, block: Block, given: Sequence[Any], mask: Any) -> State:
        """Give the function that a block calls its parameters, and go there."""
        assert isinstance(block.terminator, Call | TailCall)
        registers, uniforms = list(state.registers), list(state.uniforms)
        for (var, atom), value in zip(arguments_of(block.terminator), given, strict=True):
            value = stored(value, var.aval)
            if var in self.uniform_place:
                uniforms[self.uniform_place[var]] = value
            elif var in self.place and update_chain(block.eqns, var, atom):
                registers[self.place[var]] = value  # masked where it was written
            elif var in self.place:
                registers[self.place[var]] = self._chosen(mask, value, registers[self.place[var]])
        callee = self.linked.program.functions[block.terminator.callee]
        entry = self.linked.pc_of[callee.entry]
        return state.with_(
            registers=tuple(registers),
            uniforms=tuple(uniforms),
            pc=jnp.where(mask, entry, state.pc),
        )

    def _push(self, state: State, block: Block, mask: Any) -> State:
        moves = self.linked.storage.calls[block.label]
        row = jnp.where(mask, state.depth, state.returns.shape[0])
        lane = jnp.arange(self.lanes)

        def put(array: Any, value: Any) -> Any:
            return array.at[row, lane].set(value, mode="drop", unique_indices=True)

        stacks = list(state.stacks)
        for var in moves.push:
            place = self.stack_place[var]
            stacks[place] = put(stacks[place], state.registers[self.place[var]])
        back = jnp.full((self.lanes,), self.linked.pc_after_call(block.label), jnp.int32)
        depth = jnp.where(mask, state.depth + 1, state.depth)
        return state.with_(
            stacks=tuple(stacks),
            returns=put(state.returns, back),
            depth=depth,
            deepest=jnp.maximum(state.deepest, depth.max(initial=0))
            if self.counting
            else state.deepest,
        )

    def _pop(self, state: State, point: ReturnPoint, mask: Any) -> State:
        registers = list(state.registers)
        lane = jnp.arange(self.lanes)
        for var in point.moves.pop:
            top = state.stacks[self.stack_place[var]].at[state.depth, lane].get(mode="clip")
            place = self.place[var]
            registers[place] = select(mask, top, registers[place])
        return state.with_(registers=tuple(registers))

    def _return(self, state: State, mask: Any) -> State:
        halt = self.linked.halt
        if not self.linked.has_calls:
            return state.with_(pc=jnp.where(mask, halt, state.pc))
        below = state.depth - 1
        back = state.returns.at[below, jnp.arange(self.lanes)].get(mode="clip")
        following = jnp.where(below < 0, halt, back)
        return state.with_(
            pc=jnp.where(mask, following, state.pc),
            depth=jnp.where(mask, jnp.maximum(below, 0), state.depth),
        )


def sliced_alone(block: Block, var: Var) -> bool:
    """Whether a block reads a variable by slices of it alone."""
    if any(atom is var for _, atom in block.assigns) or var in terminator_atoms(block.terminator):
        return False
    return all(
        eqn.primitive.name == "dynamic_slice" and not any(a is var for a in eqn.invars[1:])
        for eqn in block.eqns
        if any(atom is var for atom in eqn.invars)
    )


def _as_array(literal: Literal) -> Any:
    return jnp.asarray(literal.val, literal.aval.dtype)


def _slice_of_row(eqn: Any, args: Sequence[Any], row: Any) -> Any:
    """A slice of one row of an array, by the equation that slices a lane's row."""
    whole, *starts = args
    sizes = (1, *eqn.params["slice_sizes"])
    starts = [lax.convert_element_type(s, jnp.int32) for s in (row, *starts)]
    found = lax.dynamic_slice(whole, starts, sizes, allow_negative_indices=False)
    return lax.squeeze(found, (0,))


def select(mask: Any, new: Any, old: Any) -> Any:
    """`new` for the lanes of the mask, `old` for the others."""
    return jnp.where(lax.expand_dims(mask, range(1, new.ndim)), new, old)
