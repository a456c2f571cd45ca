"""Which variables hold a known constant when a block starts: conditional constant propagation.

Optimistic, after Wegman and Zadeck (1991): a way that a known branch rules out brings nothing, so a flag that only an
already threaded exit sets is known to be clear in the rest of its loop. A branch tells about its own index too: on the
way taken for True the index is True.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lanewise._jax import Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Label,
    defined,
    successors,
)
from lanewise.blocks.known import Known, evaluate, identical, value_of


def constants_at_start(program: BlockProgram, function: BlockFunction) -> dict[Label, Known]:
    """Known scalars at the start of each block that can be reached."""
    blocks = {block.label: block for block in function.blocks}
    position = {label: i for i, label in enumerate(blocks)}
    at_start: dict[Label, Known] = {function.entry: {}}
    work = {function.entry}
    while work:
        # In program order, what comes after a join is looked at when all ways into it have been.
        label = min(work, key=position.__getitem__)
        work.remove(label)
        for target, leaving in constants_leaving(program, blocks[label], at_start[label]):
            before = at_start.get(target)
            now = (
                leaving
                if before is None
                else {v: x for v, x in before.items() if _same(x, leaving.get(v))}
            )
            if before is None or len(now) != len(before):
                at_start[target] = now
                work.add(target)
    return at_start


def _same(first: Any, second: Any) -> bool:
    # Bit for bit: 0.0 equals -0.0, and is another constant.
    return first is second or (second is not None and identical(first, second))


def constants_leaving(
    program: BlockProgram, block: Block, known: Known
) -> list[tuple[Label, Known]]:
    """Where a block may go when it starts with these constants, and what is known on each way."""
    written = defined(block)
    inside = evaluate(block.eqns, {v: x for v, x in known.items() if v not in written})
    after = dict(inside)
    for var, atom in block.assigns:
        value = value_of(inside, atom)
        if value is None or var.aval.shape != ():
            after.pop(var, None)
        else:
            after[var] = value
    if isinstance(block.terminator, Call):
        for var in program.functions[block.terminator.callee].results:
            after.pop(var, None)
    if not isinstance(block.terminator, Branch):
        return [(target, after) for target in successors(block)]
    index, targets = block.terminator.index, block.terminator.targets
    value = value_of(inside, index)
    if value is not None:
        return [(targets[int(value)], after)]
    return [
        (target, _refined(after, block, index, targets, target)) for target in successors(block)
    ]


def _refined(
    after: Known, block: Block, index: Any, targets: tuple[Label, ...], target: Label
) -> Known:
    """On the way to one of two targets, the index itself is known, wherever it was stored."""
    if len(targets) != 2 or targets[0] == targets[1] or not isinstance(index, Var):
        return after
    value = np.asarray(targets.index(target), index.aval.dtype)[()]
    stored = {var for var, atom in block.assigns if atom is index}
    overwritten = {var for var, _ in block.assigns}
    holders = stored | ({index} - overwritten)
    return {**after, **dict.fromkeys(holders, value)}
