"""The one-lane reference interpreter: what a program means.

Plain Python over blocks: run the block's equations, store, follow the terminator; a call pushes a dictionary. It is
slow on purpose. Every carrier and schedule must give what it gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from lanewise import _jax
from lanewise._jax import Literal, Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Forked,
    Jump,
    Label,
    Return,
    Spawn,
    TailCall,
    defined,
    reads,
    terminator_atoms,
)
from lanewise.core.accumulate import accumulate_p, accumulated
from lanewise.core.errors import Outcome
from lanewise.core.push import push_p

Values = dict[Var, Any]


@dataclass(frozen=True)
class Answer:
    """What one lane gives: its answers (None unless done), how it ended, what it took, and what it adds to sums."""

    values: list[Any] | None
    outcome: Outcome
    site: int
    steps: int
    deepest: int
    # The message of the failed assertion, where the program was flattened to explain.
    message: str | None = None
    sums: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Pending:
    """A call that has not come back, and its arguments."""

    call: Forked
    given: list[Any]


@dataclass
class _Frame:
    """A function that waits for calls, the first of which runs; it goes on at `target` when all are back.

    `spawned`: what spawned calls have left, each with all variables of its frame; `keeps`: its calls are spawned.
    """

    values: Values
    target: int
    calls: list[_Pending]
    spawned: list[Values]
    keeps: bool = False

    def next_call(self, program: BlockProgram) -> tuple[Values, int]:
        first = self.calls[0]
        params = [var for var, _ in first.call.arguments]
        given = dict(zip(params, first.given, strict=True))
        return self.values | given, program.functions[first.call.callee].entry

    def take(self, results: list[Any], values: Values) -> None:
        first = self.calls.pop(0)
        if self.keeps:
            self.spawned.append(values)
            return
        self.values = self.values | dict(zip(first.call.results, results, strict=True))


class _Lane:
    """A lane on its way: its variables, the frames that wait for it, and what all frames share."""

    def __init__(self, program: BlockProgram, operands: Sequence[Any]) -> None:
        self.program = program
        self.frames: list[_Frame] = []
        # What calls that this frame has spawned have left.
        self.spawned: list[Values] = []
        self.steps = self.deepest = 0
        self.sums = [jnp.zeros(aval.shape, aval.dtype) for aval in program.sums]
        # What blocks push to.
        self.state: Values = {
            var: jnp.zeros(var.aval.shape, var.aval.dtype) for var in program.state
        }
        given = dict(zip(program.inputs, operands, strict=True))
        self.values: Values = dict(program.constants) | given | self.state

    def ended(self, outcome: Outcome, site: int = -1, message: str | None = None) -> Answer:
        results = self.program.entry_function.results
        found = [self.values[var] for var in results] if outcome is Outcome.DONE else None
        return Answer(found, outcome, site, self.steps, self.deepest, message, tuple(self.sums))

    def store(self, block: Block, stored: Values) -> None:
        """Take what a block has changed; add to sums, and push to what all frames share, as its equations say."""
        for eqn in block.eqns:
            if eqn.primitive is accumulate_p:
                made = self.values | {var: stored[var] for var in defined(block)}
                own = [a.val if isinstance(a, Literal) else made[a] for a in eqn.invars]
                number = eqn.params["number"]
                self.sums[number] = accumulated(eqn.params, self.sums[number], own)
            elif eqn.primitive is push_p and self.state:
                for held, new in zip(eqn.invars[:2], eqn.outvars[:2], strict=True):
                    assert isinstance(held, Var)
                    self.state[held] = stored[new]
        self.values = self.values | stored | self.state

    def follow(self, function: BlockFunction, block: Block, given: list[Any]) -> Label | Answer:
        """Where the terminator of a block leads, with the values it reads."""
        functions = self.program.functions
        match block.terminator:
            case Jump(target):
                return target
            case Branch(targets=targets):
                return targets[int(given[0])]
            case Call(callee, arguments, target):
                own = Forked(callee, arguments, functions[callee].results)
                return self._wait(target, [_Pending(own, given)])
            case Fork(calls, target):
                return self._wait(target, _pending(calls, given))
            case Spawn(calls, targets=targets):
                return self._wait(targets[int(given[-1])], _pending(calls, given), keeps=True)
            case Collect(copies, target, done):
                turn, self.spawned = self.spawned[: len(copies)], self.spawned[len(copies) :]
                for pairs, theirs in zip(copies, turn, strict=bool(turn)):
                    self.values = self.values | {var: theirs[other] for var, other in pairs}
                return target if turn else done
            case TailCall(callee, arguments):
                params = [var for var, _ in arguments]
                self.values = self.values | dict(zip(params, given, strict=True))
                return functions[callee].entry
            case Return():
                if not self.frames:
                    return self.ended(Outcome.DONE)
                return self._come_back([self.values[var] for var in function.results])
            case Fail(site, outcome, message=message):
                return self.ended(outcome, site, None if message is None else message(given))

    def _wait(self, target: Label, calls: list[_Pending], keeps: bool = False) -> Label:
        """Wait for calls, which run in order: what they give does not depend on it. Returns where the first begins."""
        frame = _Frame(self.values, target, calls, self.spawned, keeps)
        self.frames.append(frame)
        self.spawned = []
        self.deepest = max(self.deepest, len(self.frames))
        self.values, label = frame.next_call(self.program)
        return label

    def _come_back(self, results: list[Any]) -> Label:
        """A call is back: returns where the next one begins, or where the frame that waits goes on."""
        frame = self.frames[-1]
        frame.take(results, self.values)
        if frame.calls:
            values, label = frame.next_call(self.program)
        else:
            self.frames.pop()
            values, label, self.spawned = frame.values, frame.target, frame.spawned
        self.values = values | self.state
        return label


def _pending(calls: Sequence[Forked], given: list[Any]) -> list[_Pending]:
    rest = iter(given)
    return [_Pending(call, list(itertools.islice(rest, len(call.arguments)))) for call in calls]


def interpret(
    program: BlockProgram,
    operands: Sequence[Any],
    *,
    max_steps: int | None = None,
    max_depth: int | None = None,
    visit: Callable[[Block], None] | None = None,
    run: Callable[[Block, Values], tuple[Values, list[Any]]] | None = None,
) -> Answer:
    """Run one lane; `visit` gets each block before it runs, and `run` may run it in another way."""
    run = run or _run
    lane = _Lane(program, operands)
    blocks = {block.label: (f, block) for f, block in program.all_blocks()}
    at: Label | Answer = program.entry_function.entry
    while not isinstance(at, Answer):
        function, block = blocks[at]
        if max_steps is not None and lane.steps + block.steps > max_steps:
            return lane.ended(Outcome.STEPS_EXHAUSTED)
        calls = isinstance(block.terminator, Call | Fork | Spawn)
        if calls and max_depth is not None and len(lane.frames) >= max_depth:
            return lane.ended(Outcome.STACK_OVERFLOW)
        lane.steps += block.steps
        if visit is not None:
            visit(block)
        stored, given = run(block, lane.values)
        lane.store(block, stored)
        at = lane.follow(function, block, given)
    return at


def _run(block: Block, values: Values) -> tuple[Values, list[Any]]:
    """The variables a block changes, and the values its terminator reads."""
    names, inputs, code = block_code(block)
    outs = _jax.eval_jaxpr(code, *(values[var] for var in inputs))
    return dict(zip(names, outs, strict=False)), outs[len(names) :]


def block_code(block: Block) -> tuple[list[Var], list[Var], _jax.Jaxpr]:
    """A block as a function: the variables it changes, those it reads, and code that gives the first, then what its
    terminator reads."""
    inside = defined(block)
    names = [*inside, *(var for var, _ in block.assigns)]
    atoms = [
        *inside,
        *(atom for _, atom in block.assigns),
        *terminator_atoms(block.terminator),
    ]
    inputs = list(reads(block))
    eqns = [eqn for eqn in block.eqns if eqn.primitive is not accumulate_p]
    return names, inputs, _jax.new_jaxpr(inputs, atoms, eqns)
