"""Branches around little work become selects: run all sides, keep the one that counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.analysis import live_out, writes
from lanewise.blocks.divergence import CHEAP_BYTES, CHEAP_OPERATIONS
from lanewise.blocks.equations import before_updates, holds_while, masked_update, update_chain
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Jump,
    Label,
    defined,
    defined_at_start,
    each_function,
    joined,
    predecessors,
    substitute,
)
from lanewise.core.primitives.facts import Cost, bytes_of, cost_of


@each_function
def select_cheap_branches(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """A branch whose sides do little and meet again runs all sides, and selects."""
    blocks = {block.label: block for block in function.blocks}
    preds = predecessors(blocks.values())
    alive = live_out(program, function)
    have = defined_at_start(program, function)
    for label in reversed(list(blocks)):
        block = blocks.get(label)
        if block is None or not isinstance(block.terminator, Branch):  # None: it was a side
            continue
        targets = block.terminator.targets
        meet = _meeting_point(blocks, preds, label, targets)
        if meet is None:
            continue
        sides = [None if t == meet else blocks[t] for t in targets]
        if not _cheap(sides, alive):
            continue
        blocks[label] = _selected(block, sides, meet, alive, have[label])
        alive[label] = next(alive[side.label] for side in sides if side is not None)
        for target in set(targets) - {meet}:
            del blocks[target]
        preds = predecessors(blocks.values())
    return list(blocks.values())


def _meeting_point(
    blocks: dict[Label, Block],
    preds: dict[Label, list[Label]],
    label: Label,
    targets: Sequence[Label],
) -> Label | None:
    """The block at which all sides meet: each side is one block of its own, or nothing."""
    ends = set()
    for target in targets:
        side = blocks[target]
        if preds[target] == [label] and isinstance(side.terminator, Jump) and not side.steps:
            ends.add(side.terminator.target)
        else:
            ends.add(target)
    if len(ends) != 1 or len(set(targets)) < 2:
        return None
    (meet,) = ends
    own_sides = all(t == meet or preds[t] == [label] for t in targets)
    return meet if own_sides and meet != label else None


def _cheap(sides: Sequence[Block | None], alive: dict[Label, Any]) -> bool:
    total = Cost()
    for side in sides:
        if side is None:
            continue
        if holds_while(side.eqns) or any(
            eqn.primitive.name == "scan" or eqn.effects for eqn in side.eqns
        ):
            return False
        stored = sum(
            bytes_of(var)
            for var in writes(side) & alive[side.label]
            if not _only_updated(side, var)
        )
        total = total + cost_of(side.eqns) + Cost(0.0, stored)
    return total.operations <= CHEAP_OPERATIONS and total.bytes <= CHEAP_BYTES


def _only_updated(side: Block, var: Var) -> bool:
    """Whether a side leaves in `var` another variable as it is, or written at some places."""
    atom = dict(side.assigns).get(var, var)
    old = before_updates(side.eqns, atom)
    return old is not None and old not in defined(side)


def _selected(
    block: Block,
    sides: Sequence[Block | None],
    meet: Label,
    alive: dict[Label, Any],
    have: set[Var],
) -> Block:
    assert isinstance(block.terminator, Branch)
    start = block.with_(terminator=Jump(meet))
    kept = next(alive[side.label] for side in sides if side is not None)
    base = {var: atom for var, atom in block.assigns if var in kept}
    eqns = list(block.eqns)
    after: list[dict[Var, Atom]] = []
    for side in sides:
        if side is None:
            after.append(base)
            continue
        both = joined(start.with_(eqns=()), side)
        eqns += both.eqns
        after.append({var: atom for var, atom in both.assigns if var in kept})
    stored: dict[Var, Atom] = {}
    for var in dict.fromkeys(v for assigned in after for v in assigned):
        options = [assigned.get(var, var) for assigned in after]
        # A side that has not written the variable is one after which it is not read: any value will do.
        written_here = have | set(base) | set(defined(block))
        if var not in written_here and any(option is var for option in options):
            value = next(option for option in options if option is not var)
            options = [value if option is var else option for option in options]
        if all(option is options[0] for option in options):
            stored[var] = options[0]
            continue
        written = _written_where_taken(block.terminator.index, options, eqns)
        if written is None:
            written = _jax.new_var(_jax.strong(var.aval))
            eqns.append(_select(block.terminator.index, options, written))
        stored[var] = written
    assigns = tuple((var, atom) for var, atom in stored.items() if var is not atom)
    return block.with_(eqns=tuple(eqns), assigns=assigns, terminator=Jump(meet))


def _written_where_taken(index: Atom, options: Sequence[Atom], eqns: list[JaxprEqn]) -> Atom | None:
    """An array that each side leaves alone or writes at some places: masked writes one after the other, no select."""
    old = before_updates(eqns, options[0])
    if old is None or any(before_updates(eqns, option) is not old for option in options):
        return None
    value: Atom = old
    for side, new in enumerate(options):
        chain = update_chain(eqns, old, new)
        if chain:
            (mask,) = _inlined(_side_taken(index, side, len(options)), [index], eqns)
            value = _masked(chain, value, mask, eqns)
    return value


def _side_taken(index: Atom, side: int, num_sides: int) -> Any:
    """Code that computes whether a branch on `index` goes to this side."""

    def taken(i: Any) -> list[Any]:
        if num_sides == 2:
            return [i.astype(bool) == bool(side)]
        return [jnp.clip(i, 0, num_sides - 1) == side]

    return _jax.trace(taken, [index.aval]).jaxpr


def _masked(chain: Sequence[JaxprEqn], value: Atom, mask: Atom, eqns: list[JaxprEqn]) -> Atom:
    """The writes of a chain, done to `value` where the mask holds."""
    for eqn in reversed(chain):
        inputs = [atom for atom in eqn.invars[1:] if isinstance(atom, Var)]

        def masked(here: Any, operand: Any, *given: Any, eqn: JaxprEqn = eqn) -> list[Any]:
            rest = iter(given)
            args = [
                operand,
                *(a.val if isinstance(a, Literal) else next(rest) for a in eqn.invars[1:]),
            ]
            return [masked_update(eqn, args, here)]

        traced = _jax.trace(masked, [mask.aval, value.aval, *(atom.aval for atom in inputs)])
        (value,) = _inlined(traced.jaxpr, [mask, value, *inputs], eqns)
    return value


def _inlined(jaxpr: Any, args: Sequence[Atom], eqns: list[JaxprEqn]) -> list[Atom]:
    """Append a jaxpr's equations, renamed, to a block's."""
    env: dict[Var, Atom] = dict(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        outs = [_jax.new_var(var.aval) for var in eqn.outvars]
        eqns.append(eqn.replace(invars=[substitute(env, a) for a in eqn.invars], outvars=outs))
        env.update(zip(eqn.outvars, outs, strict=True))
    return [substitute(env, atom) for atom in jaxpr.outvars]


@each_function
def fold_short_circuits(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """`a and b`: where one side of a branch only tests again, towards the same place, test once for both."""
    blocks = {block.label: block for block in function.blocks}
    alive = live_out(program, function)
    written = defined_at_start(program, function)
    for label in reversed(list(blocks)):
        block = blocks[label]
        if not isinstance(block.terminator, Branch) or len(block.terminator.targets) != 2:
            continue
        targets = block.terminator.targets
        for inner, other in (targets, targets[::-1]):
            side = blocks[inner]
            if (
                inner in (other, label, function.entry)
                or side.steps
                or not isinstance(side.terminator, Branch)
                or other not in side.terminator.targets
                or not _cheap([side], alive)
            ):
                continue
            # Others that come to the second test keep it; this one takes a copy along.
            have = written[label] | set(defined(block)) | {var for var, _ in block.assigns}
            blocks[label] = _tested_once(block, side, inner, other, alive, have)
            break
    return list(blocks.values())


def _tested_once(
    block: Block,
    side: Block,
    inner: Label,
    other: Label,
    alive: dict[Label, Any],
    have: set[Var],
) -> Block:
    assert isinstance(block.terminator, Branch) and isinstance(side.terminator, Branch)
    outer, targets = block.terminator.index, block.terminator.targets
    both = joined(block.with_(terminator=Jump(inner)), side)
    assert isinstance(both.terminator, Branch)
    eqns = list(both.eqns)
    index = both.terminator.index

    def select(first: Atom, second: Atom) -> Var:
        options = [first if target == inner else second for target in targets]
        out = _jax.new_var(_jax.strong(first.aval))
        eqns.append(_select(outer, options, out))
        return out

    straight = side.terminator.targets.index(other)
    literal = Literal(np.asarray(straight, index.aval.dtype)[()], _jax.strong(index.aval))
    base = dict(block.assigns)
    stored: dict[Var, Atom] = {}
    for var, atom in both.assigns:
        if var in alive[side.label] or var in alive[block.label]:
            old = base.get(var, var)
            # Not written on the other way: it is not read there, any value will do.
            free = atom is old or (old is var and var not in have)
            stored[var] = atom if free else select(atom, old)
    chosen = select(index, literal)
    assigns = tuple((var, atom) for var, atom in stored.items() if var is not atom)
    return block.with_(
        eqns=tuple(eqns), assigns=assigns, terminator=Branch(chosen, side.terminator.targets)
    )


def _select(index: Atom, options: Sequence[Atom], out: Var) -> JaxprEqn:
    return _jax.new_eqn([index, *options], [out], _jax.select_n_p, {})
