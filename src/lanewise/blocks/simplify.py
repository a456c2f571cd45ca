"""Passes over blocks; `simplify` lists them in order.

After flattening, a `break` is a flag that a later branch tests. `thread_jumps` follows constants: a block that leaves
a flag with a known value and goes on to a block that only tests it jumps straight to where the test leads, so early
exits become jumps, and the flag dies. Loop rotation is the same operation: a loop's test is copied to the end of its
body, so that an iteration is one block. `select_cheap_branches` then turns branches around little work into selects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.analysis import live_out, reachable_functions, writes
from lanewise.blocks.constants import constants_at_start
from lanewise.blocks.cost import Cost, bytes_of, cost_of, holds_while
from lanewise.blocks.divergence import CHEAP_BYTES, CHEAP_OPERATIONS
from lanewise.blocks.fold import known_value
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Jump,
    Label,
    Return,
    TailCall,
    Terminator,
    defined,
    predecessors,
    retarget,
    successors,
    terminator_atoms,
)
from lanewise.blocks.update import UPDATES, masked_update, update_chain

# Code copied to the end of another block (a loop's test, say) may cost a lane no more than this.
COPY_OPERATIONS = 256
ROUNDS = 8

Pass = Callable[[BlockProgram], BlockProgram]


def simplify(program: BlockProgram, check: Pass = lambda program: program) -> BlockProgram:
    """All passes, until nothing changes; `check` runs after each (tests give the verifier)."""
    program = check(tail_calls(program))
    for _ in range(ROUNDS):
        before = _shape(program)
        for step in PASSES:
            program = check(step(program))
        if _shape(program) == before:
            break
    return program


def _shape(program: BlockProgram) -> tuple[Any, ...]:
    return tuple(
        (name, len(f.blocks), sum(len(b.eqns) + len(b.assigns) for b in f.blocks))
        for name, f in program.functions.items()
    )


def each_function(
    step: Callable[[BlockProgram, BlockFunction], Sequence[Block]],
) -> Pass:
    """A pass over one function's blocks, lifted to programs."""

    def run(program: BlockProgram) -> BlockProgram:
        functions = {
            name: replace(function, blocks=_reachable(step(program, function)))
            for name, function in program.functions.items()
        }
        return replace(program, functions=functions)

    run.__name__ = step.__name__
    run.__doc__ = step.__doc__
    return run


def _reachable(blocks: Sequence[Block]) -> tuple[Block, ...]:
    by_label = {block.label: block for block in blocks}
    seen: set[Label] = set()
    work = [blocks[0].label]
    while work:
        label = work.pop()
        if label not in seen:
            seen.add(label)
            work += successors(by_label[label])
    return tuple(block for block in blocks if block.label in seen)


# -- joining two blocks ------------------------------------------------------------------------------


def substitute(env: dict[Var, Atom], atom: Atom) -> Atom:
    return atom if isinstance(atom, Literal) else env.get(atom, atom)


def joined(first: Block, second: Block) -> Block:
    """`first`, then `second`, as one block. What `second` defines is renamed: `first` may define it too."""
    env: dict[Var, Atom] = dict(first.assigns)
    eqns = list(first.eqns)
    fresh: dict[Var, Atom] = {}
    for eqn in second.eqns:
        outs = []
        for var in eqn.outvars:
            renamed = _jax.new_var(var.aval)
            outs.append(renamed)
            fresh[var] = renamed
        eqns.append(eqn.replace(invars=[substitute(env, a) for a in eqn.invars], outvars=outs))
        env.update(zip(eqn.outvars, outs, strict=True))
    stored = dict(first.assigns) | fresh
    stored |= {var: substitute(env, atom) for var, atom in second.assigns}
    assigns = tuple((var, atom) for var, atom in stored.items() if var is not atom)
    return first.with_(
        eqns=tuple(eqns),
        assigns=assigns,
        terminator=substitute_terminator(second.terminator, env),
        steps=first.steps + second.steps,
    )


def substitute_terminator(terminator: Terminator, env: dict[Var, Atom]) -> Terminator:
    match terminator:
        case Branch(index, targets):
            return Branch(substitute(env, index), targets)
        case Call(callee, arguments, target):
            return Call(callee, tuple((v, substitute(env, a)) for v, a in arguments), target)
        case TailCall(callee, arguments):
            return TailCall(callee, tuple((v, substitute(env, a)) for v, a in arguments))
        case _:
            return terminator


# -- passes ------------------------------------------------------------------------------------------


@each_function
def merge_blocks(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Join a block to its only successor where that has no other predecessor; skip empty blocks."""
    blocks = {block.label: block for block in function.blocks}
    empty = {
        b.label: b.terminator.target
        for b in function.blocks
        if isinstance(b.terminator, Jump)
        and not (b.eqns or b.assigns or b.steps)
        and b.label != function.entry
    }

    def final(label: Label) -> Label:
        seen = set()
        while label in empty and label not in seen:
            seen.add(label)
            label = empty[label]
        return label

    skip = {label: final(label) for label in empty if final(label) not in empty}
    blocks = {
        label: b.with_(terminator=retarget(b.terminator, skip)) for label, b in blocks.items()
    }
    blocks = {b.label: b for b in _reachable(list(blocks.values()))}
    preds = predecessors(blocks.values())
    for label in list(blocks):
        while label in blocks and isinstance(end := blocks[label].terminator, Jump):
            target = end.target
            if target in (label, function.entry) or len(preds[target]) != 1:
                break
            blocks[label] = joined(blocks[label], blocks.pop(target))
            for after in successors(blocks[label]):
                preds[after] = [label if p == target else p for p in preds[after]]
    return list(blocks.values())


@each_function
def thread_jumps(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Follow constants over jumps: where a block decides its successor's branch, go straight there.

    Also rotates loops: a loop's cheap test is copied behind each jump to it, so that its block goes away.
    """
    blocks = {block.label: block for block in function.blocks}
    heads = _loop_heads(function)
    for label in list(blocks):
        for _ in range(ROUNDS):
            block = blocks[label]
            if not isinstance(block.terminator, Jump):
                break
            target = blocks[block.terminator.target]
            if target.label in (label, function.entry) or not isinstance(
                target.terminator, Branch | Jump
            ):
                break
            if cost_of(target.eqns).operations > COPY_OPERATIONS:
                break
            together = _decided(joined(block, target))
            decides = isinstance(target.terminator, Branch) and isinstance(
                together.terminator, Jump
            )
            rotates = (
                target.label in heads
                and label not in heads
                and isinstance(target.terminator, Branch)
            )
            leads_on = isinstance(target.terminator, Jump) and _leads_to_decision(blocks, together)
            if not (decides or rotates or leads_on):
                break
            blocks[label] = together
    # A branch's side that only carries a constant to a test is threaded too: give the edge a block of its own.
    return _fold_branches(list(blocks.values()))


def _leads_to_decision(blocks: dict[Label, Block], block: Block) -> bool:
    """Whether the constants a block leaves decide the branch after its jump."""
    assert isinstance(block.terminator, Jump)
    target = blocks[block.terminator.target]
    if (
        not isinstance(target.terminator, Branch)
        or cost_of(target.eqns).operations > COPY_OPERATIONS
    ):
        return False
    return isinstance(_decided(joined(block, target)).terminator, Jump)


def _loop_heads(function: BlockFunction) -> set[Label]:
    """Blocks that a later block jumps back to."""
    position = {block.label: i for i, block in enumerate(function.blocks)}
    return {
        target
        for i, block in enumerate(function.blocks)
        for target in successors(block)
        if position[target] <= i
    }


def _decided(block: Block) -> Block:
    """The block with its branch turned into a jump, if its own equations and constants decide it."""
    if not isinstance(block.terminator, Branch):
        return block
    index, targets = block.terminator.index, block.terminator.targets
    if len(set(targets)) == 1:
        return block.with_(terminator=Jump(targets[0]))
    value = known_value(index, block.eqns)
    return block if value is None else block.with_(terminator=Jump(targets[int(value)]))


def _fold_branches(blocks: Sequence[Block]) -> Sequence[Block]:
    return [_decided(block) for block in blocks]


@each_function
def propagate_constants(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Put constants in place of the variables that hold them on every way to a block."""
    known = constants_at_start(program, function)
    return [
        _decided(_with_constants(block, known[block.label]))
        for block in function.blocks
        if block.label in known
    ]


def _with_constants(block: Block, known: dict[Var, Any]) -> Block:
    inside = defined(block)
    env: dict[Var, Atom] = {
        var: Literal(np.asarray(value, var.aval.dtype)[()], _jax.strong(var.aval))
        for var, value in known.items()
        if var not in inside
    }
    return block.with_(
        eqns=tuple(
            eqn.replace(invars=[substitute(env, a) for a in eqn.invars]) for eqn in block.eqns
        ),
        assigns=tuple((var, substitute(env, atom)) for var, atom in block.assigns),
        terminator=substitute_terminator(block.terminator, env),
    )


@each_function
def select_cheap_branches(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """A branch whose sides do little and meet again runs all sides, and selects."""
    blocks = {block.label: block for block in function.blocks}
    preds = predecessors(blocks.values())
    alive = live_out(program, function)
    for label in reversed(list(blocks)):
        block = blocks[label]
        if not isinstance(block.terminator, Branch):
            continue
        targets = block.terminator.targets
        meet = _meeting_point(blocks, preds, label, targets)
        if meet is None:
            continue
        sides = [None if t == meet else blocks[t] for t in targets]
        if not _cheap(sides, alive):
            continue
        blocks[label] = _selected(block, sides, meet, alive)
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
    made_by = {out: eqn for eqn in side.eqns for out in eqn.outvars}
    while isinstance(atom, Var) and atom in made_by and made_by[atom].primitive.name in UPDATES:
        atom = made_by[atom].invars[0]
    return isinstance(atom, Var) and atom not in made_by


def _selected(
    block: Block, sides: Sequence[Block | None], meet: Label, alive: dict[Label, Any]
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
    """An array that one side writes at some places and the other leaves alone: a masked write, not a select."""
    if len(options) != 2:
        return None
    for side, (old, new) in enumerate((options[::-1], options)):
        chain = update_chain(eqns, old, new)
        if not chain:
            continue
        taken = _jax.trace(lambda i, side=side: [i.astype(bool) == bool(side)], [index.aval])
        (mask,) = _inlined(taken.jaxpr, [index], eqns)
        value = old
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
    return None


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
    preds = predecessors(blocks.values())
    for label in reversed(list(blocks)):
        block = blocks.get(label)
        if (
            block is None
            or not isinstance(block.terminator, Branch)
            or len(block.terminator.targets) != 2
        ):
            continue
        targets = block.terminator.targets
        for inner, other in (targets, targets[::-1]):
            side = blocks[inner]
            if (
                inner in (other, label, function.entry)
                or preds[inner] != [label]
                or side.steps
                or not isinstance(side.terminator, Branch)
                or other not in side.terminator.targets
                or not _cheap([side], alive)
            ):
                continue
            blocks[label] = _tested_once(block, side, inner, other, alive)
            del blocks[inner]
            preds = predecessors(blocks.values())
            break
    return list(blocks.values())


def _tested_once(
    block: Block, side: Block, inner: Label, other: Label, alive: dict[Label, Any]
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
            stored[var] = atom if atom is old else select(atom, old)
    chosen = select(index, literal)
    assigns = tuple((var, atom) for var, atom in stored.items() if var is not atom)
    return block.with_(
        eqns=tuple(eqns), assigns=assigns, terminator=Branch(chosen, side.terminator.targets)
    )


def _select(index: Atom, options: Sequence[Atom], out: Var) -> JaxprEqn:
    return _jax.new_eqn([index, *options], [out], _jax.primitives.select_n_p, {})


@each_function
def drop_dead_code(program: BlockProgram, function: BlockFunction) -> Sequence[Block]:
    """Remove stores nobody reads and equations nobody needs."""
    alive = live_out(program, function)
    return [_without_dead(block, alive[block.label]) for block in function.blocks]


def _without_dead(block: Block, alive: Any) -> Block:
    assigned = {var for var, _ in block.assigns}
    assigns = tuple((var, atom) for var, atom in block.assigns if var in alive)
    needed = {atom for _, atom in assigns if isinstance(atom, Var)}
    needed |= {atom for atom in terminator_atoms(block.terminator) if isinstance(atom, Var)}
    needed |= {var for var in alive if var not in assigned}
    eqns = []
    for eqn in reversed(block.eqns):
        if eqn.effects or any(var in needed for var in eqn.outvars):
            eqns.append(eqn)
            needed |= {atom for atom in eqn.invars if isinstance(atom, Var)}
    return block.with_(eqns=tuple(reversed(eqns)), assigns=assigns)


def tail_calls(program: BlockProgram) -> BlockProgram:
    """A call whose result is returned as it is keeps no frame: tail recursion costs what a loop costs."""
    reach = reachable_functions(program)
    results = _shared_results(program, reach)
    functions = {}
    for name, function in program.functions.items():
        blocks = {block.label: block for block in function.blocks}
        for label, block in blocks.items():
            if isinstance(block.terminator, Call) and _returns_at_once(
                program, function, blocks, block
            ):
                callee = block.terminator.callee
                if name in reach[callee] and results[callee] == results[name]:
                    blocks[label] = block.with_(
                        terminator=TailCall(callee, block.terminator.arguments)
                    )
        functions[name] = replace(function, blocks=_reachable(list(blocks.values())))
    return _unify_results(replace(program, functions=functions), results)


def _shared_results(
    program: BlockProgram, reach: dict[str, frozenset[str]]
) -> dict[str, tuple[Var, ...]]:
    """Result variables for each function: those that recurse together and return the same types share them."""
    shared: dict[Any, tuple[Var, ...]] = {}
    found = {}
    for name, function in program.functions.items():
        group = frozenset(other for other in reach[name] if name in reach[other])
        types = tuple((var.aval.shape, str(var.aval.dtype)) for var in function.results)
        found[name] = shared.setdefault((group or name, types), function.results)
    return found


def _unify_results(program: BlockProgram, results: dict[str, tuple[Var, ...]]) -> BlockProgram:
    rename: dict[Var, Atom] = {
        old: new
        for name, function in program.functions.items()
        for old, new in zip(function.results, results[name], strict=True)
        if old is not new
    }
    if not rename:
        return program

    def renamed(block: Block) -> Block:
        eqns = tuple(
            eqn.replace(invars=[substitute(rename, a) for a in eqn.invars]) for eqn in block.eqns
        )
        assigns = tuple((rename.get(v, v), substitute(rename, a)) for v, a in block.assigns)
        return block.with_(
            eqns=eqns, assigns=assigns, terminator=substitute_terminator(block.terminator, rename)
        )  # type: ignore[arg-type]

    functions = {
        name: replace(f, results=results[name], blocks=tuple(renamed(b) for b in f.blocks))
        for name, f in program.functions.items()
    }
    return replace(program, functions=functions)


def _returns_at_once(
    program: BlockProgram, function: BlockFunction, blocks: dict[Label, Block], block: Block
) -> bool:
    """Whether everything after a call only hands the callee's results on."""
    assert isinstance(block.terminator, Call)
    callee = program.functions[block.terminator.callee]
    if len(callee.results) != len(function.results):
        return False
    values: dict[Var, Atom] = {var: var for var in callee.results}
    label: Label = block.terminator.target
    for _ in range(len(blocks)):
        after = blocks[label]
        if after.eqns or after.steps:
            return False
        values |= {var: substitute(values, atom) for var, atom in after.assigns}
        if isinstance(after.terminator, Return):
            handed = [values.get(var) for var in function.results]
            return all(h is r for h, r in zip(handed, callee.results, strict=True))
        if not isinstance(after.terminator, Jump):
            return False
        label = after.terminator.target
    return False


PASSES: tuple[Pass, ...] = (
    merge_blocks,
    thread_jumps,
    propagate_constants,
    merge_blocks,
    drop_dead_code,
    select_cheap_branches,
    merge_blocks,
    fold_short_circuits,
    merge_blocks,
    drop_dead_code,
)
