"""`schedule="local"`: local static autobatching, the simpler scheme of Radul et al. (2019).

Each call of a function runs its blocks with a program counter of its own, for the lanes of that call; recursion is the
host's own. Lanes at the same block of *different* frames never run together, which is what program-counter
autobatching adds; it is here so that the two can be compared. It asks the host which block is next, so it runs
outside `jit` only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise._jax import Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Jump,
    Return,
    Spawn,
    TailCall,
)
from lanewise.blocks.link import Linked
from lanewise.core.errors import Outcome
from lanewise.core.options import DEPTH_INSIDE_JIT, Options
from lanewise.core.outcomes import counts
from lanewise.machine.advance import Advance, select
from lanewise.machine.state import initial_state
from lanewise.machine.ticking import answers

Values = dict[Var, Any]
_FRAMES_A_CALL = 4


def run_local(
    linked: Linked | None,
    operands: Sequence[Any],
    mapped: Sequence[bool],
    lanes: int,
    options: Options,
) -> tuple[list[Any], Any, Any, list[Any]]:
    """Answers, codes, sites and statistics."""
    assert linked is not None
    machine = _Local(linked, lanes, options)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, limit + _FRAMES_A_CALL * machine.max_depth))
    try:
        return machine.run(operands, mapped)
    finally:
        sys.setrecursionlimit(limit)


class _Local:
    def __init__(self, linked: Linked, lanes: int, options: Options) -> None:
        self.linked = linked
        self.lanes = lanes
        self.options = options
        self.max_depth = options.max_depth or DEPTH_INSIDE_JIT
        self.advance = Advance(linked, lanes, max_steps=None, counting=False)
        self.code = np.zeros(lanes, np.int32)
        self.site = np.full(lanes, -1, np.int32)
        self.steps = np.zeros(lanes, np.int64)
        self.runs = self.active = self.deepest = 0
        self.compiled: dict[int, Any] = {}
        self.blocks = {block.label: block for _, block in linked.program.all_blocks()}

    def run(
        self, operands: Sequence[Any], mapped: Sequence[bool]
    ) -> tuple[list[Any], Any, Any, list[Any]]:
        start = initial_state(self.linked, operands, mapped, self.lanes, 0)
        state = self.call(start, self.linked.program.entry_function, np.ones(self.lanes, bool), 0)
        ended = state.with_(
            pc=jnp.full((self.lanes,), self.linked.halt, jnp.int32),
            code=jnp.asarray(self.code),
            site=jnp.asarray(self.site),
        )
        values, code, site = answers(self.linked, ended)
        stats = counts(
            ticks=self.runs,
            runs=self.runs,
            advanced=self.active,
            offered=self.runs * self.lanes,
            steps=int(self.steps.sum()),
            deepest=self.deepest,
        )
        return values, code, site, stats

    def call(self, state: Any, function: BlockFunction, mask: np.ndarray, depth: int) -> Any:
        """Run one function for the lanes of `mask`; returns the state with its results in place.

        A tail call stays in this frame, so the blocks are those of the whole program.
        """
        blocks, order = self.blocks, self.linked.pc_of
        nowhere = -1
        self.deepest = max(self.deepest, depth)
        at = np.where(mask, function.entry, nowhere)
        while (at != nowhere).any():
            label = min(set(at[at != nowhere].tolist()), key=order.__getitem__)
            block = blocks[label]
            here = at == label
            if self.options.max_steps is not None:
                spent = here & (self.steps + block.steps > self.options.max_steps)
                self.fail(spent, Outcome.STEPS_EXHAUSTED)
                at[spent] = nowhere
                here = here & ~spent
            self.steps[here] += block.steps
            self.runs += 1
            self.active += int(here.sum())
            state, given = self.execute(state, block, here)
            match block.terminator:
                case Jump(target):
                    at[here] = target
                case Branch(targets=targets):
                    chosen = np.asarray(targets)[np.asarray(given[0]).astype(np.int32)]
                    at = np.where(here, chosen, at)
                case Call(target=target):
                    state, back = self.enter(state, block, given, here, depth)
                    at = np.where(here, np.where(back, target, nowhere), at)
                case TailCall(callee=callee):
                    state = self.advance.enter(state, block, given, jnp.asarray(here))
                    at[here] = self.linked.program.functions[callee].entry
                case Return():
                    at[here] = nowhere
                case Fail(site, outcome):
                    self.fail(here, outcome, site)
                    at[here] = nowhere
                case Fork() | Spawn() | Collect():
                    raise AssertionError("only a machine that forks has these")
        return state

    def enter(
        self,
        state: Any,
        block: Block,
        given: Sequence[Any],
        here: np.ndarray,
        depth: int,
    ) -> tuple[Any, np.ndarray]:
        """Call a function for some lanes: the host's stack keeps the caller's registers."""
        if depth >= self.max_depth:
            self.fail(here, Outcome.STACK_OVERFLOW)
            return state, np.zeros_like(here)
        assert isinstance(block.terminator, Call)
        function = self.linked.program.functions[block.terminator.callee]
        kept = state.registers
        inner = self.advance.enter(state, block, given, jnp.asarray(here))
        after = self.call(inner, function, here, depth + 1)
        registers = list(kept)
        for var in function.results:
            if var in self.advance.place:
                place = self.advance.place[var]
                registers[place] = select(
                    jnp.asarray(here), after.registers[place], registers[place]
                )
        return after.with_(registers=tuple(registers)), here & (self.code == int(Outcome.DONE))

    def execute(self, state: Any, block: Block, here: np.ndarray) -> tuple[Any, Sequence[Any]]:
        if block.label not in self.compiled:
            self.compiled[block.label] = jax.jit(
                lambda state, mask: self.advance.execute(state, block, mask)
            )
        return self.compiled[block.label](state, jnp.asarray(here))

    def fail(self, which: np.ndarray, outcome: Outcome, site: int = -1) -> None:
        self.code[which] = int(outcome)
        self.site[which] = site
