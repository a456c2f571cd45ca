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
    BlockProgram,
    Branch,
    Call,
    Collect,
    Fail,
    Fork,
    Forked,
    Jump,
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
    values: Values = dict(program.constants)
    values.update(zip(program.inputs, operands, strict=True))
    # What all frames share, and blocks push to.
    state: Values = {var: jnp.zeros(var.aval.shape, var.aval.dtype) for var in program.state}
    values.update(state)
    function = program.entry_function
    blocks = {block.label: (f, block) for f, block in program.all_blocks()}
    label = function.entry
    frames: list[_Frame] = []
    spawned: list[Values] = []
    steps = deepest = 0
    sums = [jnp.zeros(aval.shape, aval.dtype) for aval in program.sums]

    def ended(outcome: Outcome, site: int = -1, message: str | None = None) -> Answer:
        found = (
            [values[var] for var in program.entry_function.results]
            if outcome is Outcome.DONE
            else None
        )
        return Answer(found, outcome, site, steps, deepest, message, tuple(sums))

    while True:
        function, block = blocks[label]
        if max_steps is not None and steps + block.steps > max_steps:
            return ended(Outcome.STEPS_EXHAUSTED)
        if (
            isinstance(block.terminator, Call | Fork | Spawn)
            and max_depth is not None
            and len(frames) >= max_depth
        ):
            return ended(Outcome.STACK_OVERFLOW)
        steps += block.steps
        if visit is not None:
            visit(block)
        stored, given = run(block, values)
        _outside_frames(block, values, stored, sums, state)
        values = values | stored | state
        match block.terminator:
            case Jump(target):
                label = target
            case Branch(targets=targets):
                label = targets[int(given[0])]
            case Call(callee, _, target):
                own = Forked(callee, block.terminator.arguments, program.functions[callee].results)
                frames.append(_Frame(values, target, [_Pending(own, given)], spawned))
                spawned = []
                deepest = max(deepest, len(frames))
                values, label = frames[-1].next_call(program)
            case Fork(calls) | Spawn(calls):
                # In order: what the calls give does not depend on it.
                rest = iter(given)
                made = [_Pending(c, list(itertools.islice(rest, len(c.arguments)))) for c in calls]
                if isinstance(block.terminator, Fork):
                    frames.append(_Frame(values, block.terminator.target, made, spawned))
                else:
                    target = block.terminator.targets[int(given[-1])]
                    frames.append(_Frame(values, target, made, spawned, keeps=True))
                spawned = []
                deepest = max(deepest, len(frames))
                values, label = frames[-1].next_call(program)
            case Collect(copies, target, done):
                turn, spawned = spawned[: len(copies)], spawned[len(copies) :]
                for pairs, theirs in zip(copies, turn, strict=bool(turn)):
                    values = values | {var: theirs[other] for var, other in pairs}
                label = target if turn else done
            case TailCall(callee, arguments):
                values = values | {
                    var: value for (var, _), value in zip(arguments, given, strict=True)
                }
                label = program.functions[callee].entry
            case Return():
                if not frames:
                    return ended(Outcome.DONE)
                frames[-1].take([values[var] for var in function.results], values)
                if frames[-1].calls:
                    values, label = frames[-1].next_call(program)
                else:
                    back = frames.pop()
                    values, label, spawned = back.values, back.target, back.spawned
                values = values | state
            case Fail(site, outcome, message=message):
                return ended(outcome, site, None if message is None else message(given))


def _outside_frames(
    block: Block, values: Values, stored: Values, sums: list[Any], state: Values
) -> None:
    """Add to sums, and push to what all frames share, as the block's equations say."""
    for eqn in block.eqns:
        if eqn.primitive is accumulate_p:
            made = values | {var: stored[var] for var in defined(block)}
            own = [a.val if isinstance(a, Literal) else made[a] for a in eqn.invars]
            number = eqn.params["number"]
            sums[number] = accumulated(eqn.params, sums[number], own)
        elif eqn.primitive is push_p and state:
            for held, new in zip(eqn.invars[:2], eqn.outvars[:2], strict=True):
                assert isinstance(held, Var)
                state[held] = stored[new]


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
