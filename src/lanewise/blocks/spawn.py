"""Calls of a loop that do not wait for one another: a loop that spawns them, then a loop that collects what they gave.

`for child in children: total += f(child)` makes a number of calls that is known at run time alone, so no `Fork` can name
them, nor the variables that their results go to. But nothing of a turn's call waits for the turn before: the loop can be
cut in two (loop distribution, Kennedy and McKinley 1990). The first half goes through all turns, makes their calls and
goes on without waiting (`Spawn`); the second, when all are back, goes through the turns again, in order, and does what
needs results (`Collect`). So sums have the same order, and the same rounding, as without it.

*The inbox is the arena.* A call that was spawned and is back keeps its slot, and its results lie there in the variables
that it returned them in. The slots of one caller are a list, in the order in which they were made. `Collect` takes the
first of it, copies what the caller reads, and frees it. What a turn had before its call and needs after it (the number of
the turn, say) is written to the slot of the call, in variables that the called function does not know: its *luggage*.
What is had as cheaply from that and from what does not change in the loop is computed again instead.

What was considered: an array of results in the caller's frame, with a place for each turn. Every frame of the arena would
have to have room for the longest list there is, or loops would be cut into strips of a few turns; and a frame that is
copied or grows would move all of it. Lists in the arena take what is there, a node with 1,000 children as well as a leaf.

*Which loops.* One whose turn is a block that ends in a fork and a block after it, where neither the arguments of the
calls nor whether there is another turn depends on what calls of the loop gave, in this turn or an earlier one. The state of
the loop falls into two parts by that: what the first half writes, and what the second does. A loop with calls in a branch,
with another loop before the call or with an assertion inside stays in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.analysis import live_out
from lanewise.blocks.equations import bytes_of, cost_of
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Collect,
    Fork,
    Jump,
    Label,
    Spawn,
    defined,
    joined,
    predecessors,
    reads,
    substitute,
    substitute_inputs,
)
from lanewise.core.accumulate import accumulate_p
from lanewise.core.push import push_p

Variables = frozenset[Var]

# What the second half may compute again, in operations, and for each element: no product, nor a loop.
CHEAP_OPERATIONS, CHEAP_AN_ELEMENT = 64.0, 16.0


def spawned_loops(program: BlockProgram, inbox: Variables) -> BlockProgram:
    """The same program whose loops of calls are cut in two where they can be; `inbox`: where forks put results."""
    fresh = 1 + max(block.label for _, block in program.all_blocks())
    functions = {}
    for name, function in program.functions.items():
        blocks = {block.label: block for block in function.blocks}
        alive = live_out(program, function)
        for label in list(blocks):
            found = _turn(function, blocks, label)
            made = found and _halves(program, found, alive, inbox, (fresh, fresh + 1))
            if found and made:
                fresh += 2
                del blocks[found.second.label]
                blocks |= {block.label: block for block in made}
        functions[name] = replace(function, blocks=tuple(blocks.values()))
    return replace(program, functions=functions)


@dataclass(frozen=True)
class _Turn:
    """A turn of a loop: a block that forks, the one that comes after, and both as one, without the fork."""

    first: Block
    second: Block
    fork: Fork
    whole: Block

    @property
    def results(self) -> Variables:
        return frozenset(var for call in self.fork.calls for var in call.results)

    @property
    def branch(self) -> Branch:
        assert isinstance(self.whole.terminator, Branch)
        return self.whole.terminator


def _turn(function: BlockFunction, blocks: dict[Label, Block], label: Label) -> _Turn | None:
    """The loop whose turns begin with this block."""
    before = predecessors(blocks.values())
    first = blocks.get(label)
    if first is None or not isinstance(first.terminator, Fork) or label == function.entry:
        return None
    fork, second = first.terminator, blocks[first.terminator.target]
    if second.label in (label, function.entry) or len(before[second.label]) != 1:
        return None
    if isinstance(second.terminator, Jump):
        # The test is a block by itself, which the first turn comes from as well.
        test = blocks[second.terminator.target]
        if test.label == second.label or not isinstance(test.terminator, Branch):
            return None
        second = joined(second, test)
    if not isinstance(second.terminator, Branch) or label not in second.terminator.targets:
        return None
    whole = joined(first.with_(terminator=Jump(second.label)), second)
    return _Turn(first, second, fork, whole)


def _halves(
    program: BlockProgram,
    turn: _Turn,
    alive: dict[Label, Variables],
    inbox: Variables,
    fresh: tuple[Label, Label],
) -> list[Block] | None:
    """The blocks of both loops; None if calls must wait for one another."""
    whole, after = turn.whole, alive[turn.second.label]
    inside = defined(whole)
    if inbox & (frozenset(reads(turn.first)) | after) or not inside.keys().isdisjoint(reads(whole)):
        return None
    stored: dict[Var, Atom] = {var: var for var in inside} | dict(whole.assigns)
    stored = {var: atom for var, atom in stored.items() if var in after}
    late, carried = _waiting(turn, stored)
    arguments = [atom for call in turn.fork.calls for _, atom in call.arguments]
    if any(atom in late for atom in (*arguments, turn.branch.index) if isinstance(atom, Var)):
        return None
    if any(_is_other_effect(eqn) for eqn in whole.eqns):
        return None
    join, again = fresh
    back = [eqn for eqn in whole.eqns if _is_late(eqn, late)]
    used = _read_by(back, [stored[var] for var in carried])
    luggage, once_more = _luggage(whole, used - late, frozenset(stored))
    own: dict[Var, Atom] = {var: _jax.new_var(var.aval) for var in (*turn.results, *luggage)}
    kept = {var: _jax.new_var(var.aval) for var in luggage}
    calls, copies = [], []
    for number, call in enumerate(turn.fork.calls):
        more = kept.items() if number == 0 else ()
        given = tuple((place, var) for var, place in more)
        calls.append(replace(call, arguments=(*call.arguments, *given), results=()))
        results = program.functions[call.callee].results
        pairs = [p for p in zip(call.results, results, strict=True) if p[0] in used]
        pairs += [(var, place) for var, place in more]
        copies.append(tuple((_variable(own[var]), place) for var, place in pairs))
    collect = Collect(tuple(copies), turn.second.label, again)
    repeated = {id(eqn) for eqn in (*back, *once_more)}
    second = _renamed([eqn for eqn in whole.eqns if id(eqn) in repeated], own)
    way = _jax.new_var(turn.branch.index.aval)
    early = [(var, atom) for var, atom in stored.items() if var not in carried and var is not atom]
    targets = tuple(t if t == turn.first.label else join for t in turn.branch.targets)
    front = turn.first.with_(
        eqns=tuple(eqn for eqn in whole.eqns if not _is_late(eqn, late)),
        assigns=(*early, (way, turn.branch.index)),
        terminator=Spawn(tuple(calls), turn.branch.index, targets, join),
    )
    return [
        front,
        Block(join, "spawned", (), (), collect),
        turn.second.with_(
            note="collected",
            eqns=second,
            assigns=tuple((var, substitute(own, stored[var])) for var in carried),
            terminator=collect,
        ),
        Block(again, "all collected", (), (), Branch(way, turn.branch.targets)),
    ]


def _waiting(turn: _Turn, stored: dict[Var, Atom]) -> tuple[Variables, tuple[Var, ...]]:
    """The values of a turn that wait for results of calls, and the state of the loop that does."""
    carried: dict[Var, None] = {}
    while True:
        late = {*turn.results, *carried}
        for eqn in turn.whole.eqns:
            if _is_late(eqn, late):
                late.update(eqn.outvars)
        found = {var: None for var, atom in stored.items() if atom in late}
        if len(found) == len(carried):
            return frozenset(late), tuple(found)
        carried = found


def _is_late(eqn: JaxprEqn, late: Variables | set[Var]) -> bool:
    """Whether an equation belongs to the second half. What is pushed is part of what calls leave behind them."""
    return eqn.primitive is push_p or any(a in late for a in eqn.invars if isinstance(a, Var))


def _is_other_effect(eqn: JaxprEqn) -> bool:
    return bool(eqn.effects) and eqn.primitive is not accumulate_p and eqn.primitive is not push_p


def _read_by(eqns: Sequence[JaxprEqn], atoms: Iterable[Atom]) -> set[Var]:
    """What equations, and those who store atoms, read that the equations do not define."""
    found = {a for eqn in eqns for a in eqn.invars if isinstance(a, Var)}
    found |= {a for a in atoms if isinstance(a, Var)}
    return found - {var for eqn in eqns for var in eqn.outvars}


def _luggage(
    whole: Block, wanted: set[Var], written: Variables
) -> tuple[list[Var], list[JaxprEqn]]:
    """Of the values of the first half that the second wants, those that are kept, and what computes the others."""
    made_by = {var: eqn for eqn in whole.eqns for var in eqn.outvars}
    kept: dict[Var, None] = {}
    again: dict[int, JaxprEqn] = {}

    def varies(atom: Atom) -> bool:
        return not isinstance(atom, Literal) and (atom in made_by or atom in written)

    def want(var: Var) -> None:
        if not varies(var) or var in kept:
            return
        eqn = made_by.get(var)
        if eqn is None or not _is_cheap(eqn, varies):
            kept[var] = None
        elif id(eqn) not in again:
            again[id(eqn)] = eqn
            for atom in eqn.invars:
                if isinstance(atom, Var):
                    want(atom)

    # In order of appearance, so that the program does not change from run to run.
    order = {var: i for i, var in enumerate((*reads(whole), *defined(whole)))}
    for var in sorted(wanted, key=lambda v: order.get(v, -1)):
        want(var)
    return list(kept), list(again.values())


def _is_cheap(eqn: JaxprEqn, varies: Callable[[Atom], bool]) -> bool:
    """Whether computing an equation again costs no more than keeping its results."""
    cost = cost_of([eqn])
    size = sum(var.aval.size for var in eqn.outvars)
    needs = {atom for atom in eqn.invars if varies(atom)}
    return (
        not eqn.effects
        and not cost.products
        and cost.operations <= CHEAP_OPERATIONS + CHEAP_AN_ELEMENT * size
        and sum(map(bytes_of, needs)) <= sum(map(bytes_of, eqn.outvars))
    )


def _renamed(eqns: Sequence[JaxprEqn], env: dict[Var, Atom]) -> tuple[JaxprEqn, ...]:
    """Equations that define variables of their own, which `env` has then as well."""
    found = []
    for eqn in eqns:
        outs = [_jax.new_var(var.aval) for var in eqn.outvars]
        found.append(substitute_inputs(env, eqn).replace(outvars=outs))
        env.update(zip(eqn.outvars, outs, strict=True))
    return tuple(found)


def _variable(atom: Atom) -> Var:
    assert isinstance(atom, Var)
    return atom
