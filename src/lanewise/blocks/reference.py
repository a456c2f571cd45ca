"""The one-lane reference interpreter: what a program means.

Plain Python over blocks: run the block's equations, store, follow the terminator; a call pushes a dictionary. It is
slow on purpose. Every carrier and schedule must give what it gives.
"""

from __future__ import annotations

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
    Fail,
    Jump,
    Return,
    TailCall,
    defined,
    reads,
    terminator_atoms,
)
from lanewise.core.accumulate import accumulate_p, accumulated
from lanewise.core.errors import Outcome

Values = dict[Var, Any]


@dataclass(frozen=True)
class Answer:
    """What one lane gives: its answers (None unless done), how it ended, what it took, and what it adds to sums."""

    values: list[Any] | None
    outcome: Outcome
    site: int
    steps: int
    deepest: int
    # What the assertion says that it failed, where the program was flattened to explain.
    message: str | None = None
    sums: tuple[Any, ...] = ()


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
    function = program.entry_function
    blocks = {block.label: (f, block) for f, block in program.all_blocks()}
    label = function.entry
    frames: list[tuple[Values, int]] = []
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
            isinstance(block.terminator, Call)
            and max_depth is not None
            and len(frames) >= max_depth
        ):
            return ended(Outcome.STACK_OVERFLOW)
        steps += block.steps
        if visit is not None:
            visit(block)
        stored, given = run(block, values)
        for eqn in block.eqns:
            if eqn.primitive is accumulate_p:
                made = values | {var: stored[var] for var in defined(block)}
                own = [a.val if isinstance(a, Literal) else made[a] for a in eqn.invars]
                number = eqn.params["number"]
                sums[number] = accumulated(eqn.params, sums[number], own)
        values = values | stored
        match block.terminator:
            case Jump(target):
                label = target
            case Branch(targets=targets):
                label = targets[int(given[0])]
            case Call(callee, arguments, target):
                frames.append((values, target))
                deepest = max(deepest, len(frames))
                values = values | {
                    var: value for (var, _), value in zip(arguments, given, strict=True)
                }
                label = program.functions[callee].entry
            case TailCall(callee, arguments):
                values = values | {
                    var: value for (var, _), value in zip(arguments, given, strict=True)
                }
                label = program.functions[callee].entry
            case Return():
                if not frames:
                    return ended(Outcome.DONE)
                saved, label = frames.pop()
                values = saved | {var: values[var] for var in function.results}
            case Fail(site, outcome, message=message):
                return ended(outcome, site, None if message is None else message(given))


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
