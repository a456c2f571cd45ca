"""Calls of a loop that do not wait for one another: a loop that spawns them, then a loop that collects what they gave.

`for child in children: total += f(child)` makes a number of calls that is known at run time alone, so no `Fork` can
name them, nor the variables that their results go to. But nothing of a turn's call waits for the turn before: the loop
can be cut in two (loop distribution, Kennedy and McKinley 1990). The first half goes through all turns, makes their
calls and goes on without waiting (`Spawn`); the second, when all are back, goes through the turns again, in order, and
does what needs results (`Collect`). So sums have the same order, and the same rounding, as without it.

*The inbox is the arena.* A call that was spawned and is back keeps its slot, and its results are there in the variables
that it returned them in. The slots of one caller are a list, in the order in which they were made. `Collect` takes the
first of it, copies what the caller reads, and frees it. What a turn had before its call and needs after it (the number
of the turn, say) is written to the slot of the call, in variables that the called function does not know: its
*luggage*. What can be computed as cheaply from that, and from what does not change in the loop, is computed again
instead.

What was considered: an array of results in the caller's frame, with a place for each turn. Every frame of the arena
would have to have room for the longest list there is, or loops would be cut into strips of a few turns. Lists in the
arena take what is there, for a node with 1,000 children as for a leaf. Where there is no room for more calls, the loop
is cut into strips too: what was spawned is collected, and the first half goes on.

*Which loops.* One whose turn is a block that ends in a fork and a block after it, where neither the arguments of the
calls nor whether there is another turn depends on what calls of the loop gave, in this turn or an earlier one. The
state of the loop falls into two parts by that: what the first half writes, and what the second does. A loop with calls
in a branch, with another loop before the call or with an assertion inside stays in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.analysis import live_out
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Collect,
    Fail,
    Fork,
    Forked,
    Jump,
    Label,
    Spawn,
    defined,
    joined,
    predecessors,
    reachable,
    reads,
    substitute,
    substitute_inputs,
)
from lanewise.core.accumulate import accumulate_p
from lanewise.core.errors import Outcome
from lanewise.core.primitives.facts import bytes_of, cost_of
from lanewise.core.push import push_p

Variables = frozenset[Var]

# What the second half may compute again, in operations, and for each element: no product, nor a loop.
CHEAP_OPERATIONS, CHEAP_AN_ELEMENT = 64.0, 16.0


def spawned_loops(program: BlockProgram, inbox: Variables) -> BlockProgram:
    """The same program whose loops of calls are cut in two where they can be; `inbox`: where forks put results."""
    labels = itertools.count(1 + max(block.label for _, block in program.all_blocks()))
    functions = {}
    for name, function in program.functions.items():
        blocks = {block.label: block for block in function.blocks}
        alive = live_out(program, function)
        for label in list(blocks):
            turn = _turn(function, blocks, label)
            made = turn and _halves(program, turn, alive[turn.last], inbox, labels)
            blocks |= {block.label: block for block in made or ()}
        functions[name] = replace(function, blocks=reachable(tuple(blocks.values())))
    return replace(program, functions=functions)


@dataclass(frozen=True)
class _Check:
    """A test on the way through a turn: all its targets but one end the example."""

    index: Atom
    targets: tuple[Label, ...]
    goes_on: Label


@dataclass(frozen=True)
class _Turn:
    """A turn of a loop: a block that forks, and all of it as one block without the fork.

    `after`: the block behind the fork, `last`: the one that ends the turn. `checks`: tests on the way that end the
    example if there is no more room on its tapes: they may as well be made at its end.
    """

    first: Block
    after: Block
    last: Label
    fork: Fork
    whole: Block
    checks: tuple[_Check, ...]

    @property
    def results(self) -> tuple[Var, ...]:
        return tuple(var for call in self.fork.calls for var in call.results)

    @property
    def branch(self) -> Branch:
        assert isinstance(self.whole.terminator, Branch)
        return self.whole.terminator


def _turn(function: BlockFunction, blocks: dict[Label, Block], label: Label) -> _Turn | None:
    """The loop whose turns begin with this block."""
    first = blocks.get(label)
    if first is None or not isinstance(first.terminator, Fork) or label == function.entry:
        return None
    before = predecessors(blocks.values())
    after, checks = blocks[first.terminator.target], []
    last, whole = label, first.with_(terminator=Jump(after.label))
    seen = {label, function.entry}
    while not (isinstance(whole.terminator, Branch) and label in whole.terminator.targets):
        following = _following(whole, blocks)
        if following is None or following in seen:
            return None
        seen.add(following)
        own = blocks[following]
        # The test of a loop may be a block of its own, which the first turn comes from too.
        test = isinstance(own.terminator, Branch) and label in own.terminator.targets
        if len(before[following]) != 1 and not (test and isinstance(whole.terminator, Jump)):
            return None
        if isinstance(whole.terminator, Branch):
            checks.append(_Check(whole.terminator.index, whole.terminator.targets, following))
        last, whole = following, joined(whole, own)
    return _Turn(first, after, last, first.terminator, whole, tuple(checks))


def _following(block: Block, blocks: dict[Label, Block]) -> Label | None:
    """Where all lanes go that go on from a block."""
    match block.terminator:
        case Jump(target):
            return target
        case Branch(targets=targets):
            goes_on = [t for t in targets if not _is_full(blocks[t])]
            return goes_on[0] if len(goes_on) == 1 else None
        case _:
            return None


def _is_full(block: Block) -> bool:
    """Whether a block ends the example, for a reason whose time does not matter."""
    end = block.terminator
    return (
        isinstance(end, Fail)
        and end.outcome != Outcome.ASSERTION_FAILED
        and not (block.eqns or block.assigns)
    )


def _halves(
    program: BlockProgram,
    turn: _Turn,
    after: Variables,
    inbox: Variables,
    labels: Iterator[Label],
) -> list[Block] | None:
    """The blocks of both loops; None if calls must wait for one another. `after`: what is read after a turn."""
    whole = turn.whole
    inside = defined(whole)
    if inbox & (frozenset(reads(turn.first)) | after) or not inside.keys().isdisjoint(reads(whole)):
        return None
    stored: dict[Var, Atom] = {var: var for var in inside} | dict(whole.assigns)
    stored = {var: atom for var, atom in stored.items() if var in after}
    late, carried = _waiting(turn, stored)
    arguments = [atom for call in turn.fork.calls for _, atom in call.arguments]
    if any(is_one_of(atom, late) for atom in (*arguments, turn.branch.index)):
        return None
    if any(map(has_other_effect, whole.eqns)) or not all(
        is_one_of(c.index, late) for c in turn.checks
    ):
        return None
    back = [eqn for eqn in whole.eqns if is_late(eqn, late)]
    used = _read_by(back, [*(stored[var] for var in carried), *(c.index for c in turn.checks)])
    luggage, once_more = _luggage(whole, used - late, frozenset(stored))
    own: dict[Var, Var] = {var: _jax.new_var(var.aval) for var in (*turn.results, *luggage)}
    calls, copies = _loaded(program, turn, luggage)
    read = used.union(luggage)
    copied = tuple(tuple((own[v], theirs) for v, theirs in c if v in read) for c in copies)
    join, again = next(labels), next(labels)
    collect = Collect(copied, turn.after.label, again)
    way = _jax.new_var(turn.branch.index.aval)
    early = [(var, atom) for var, atom in stored.items() if var not in carried and var is not atom]
    targets = tuple(t if t == turn.first.label else join for t in turn.branch.targets)
    front = turn.first.with_(
        eqns=tuple(eqn for eqn in whole.eqns if not is_late(eqn, late)),
        assigns=(*early, (way, turn.branch.index)),
        terminator=Spawn(tuple(calls), turn.branch.index, targets, join),
    )
    chosen = {id(eqn) for eqn in (*back, *once_more)}
    env: dict[Var, Atom] = dict(own)
    second = turn.after.with_(
        note="collected",
        eqns=renamed([eqn for eqn in whole.eqns if id(eqn) in chosen], env),
        assigns=tuple((var, substitute(env, stored[var])) for var in carried),
        terminator=collect,
        steps=whole.steps - turn.first.steps,
    )
    return [
        front,
        Block(join, "spawned", (), (), collect),
        *_checked(
            second, [replace(c, index=substitute(env, c.index)) for c in turn.checks], labels
        ),
        Block(again, "all collected", (), (), Branch(way, turn.branch.targets)),
    ]


def _loaded(
    program: BlockProgram, turn: _Turn, luggage: Sequence[Var]
) -> tuple[list[Forked], list[list[tuple[Var, Var]]]]:
    """The calls of a turn, the first with the luggage; and what each of them then holds for which variable."""
    kept = {var: _jax.new_var(var.aval) for var in luggage}
    calls, copies = [], []
    for number, call in enumerate(turn.fork.calls):
        more = kept if number == 0 else {}
        given = tuple((place, var) for var, place in more.items())
        calls.append(replace(call, arguments=(*call.arguments, *given), results=()))
        results = zip(call.results, program.functions[call.callee].results, strict=True)
        copies.append([*results, *more.items()])
    return calls, copies


def _checked(block: Block, checks: Sequence[_Check], labels: Iterator[Label]) -> list[Block]:
    """A block that makes some checks before it goes where it goes, each in a block of its own but the first."""
    if not checks:
        return [block]
    held = [_jax.new_var(check.index.aval) for check in checks]
    following = [next(labels) for _ in checks]
    ends = [
        Branch(test, tuple(after if t == check.goes_on else t for t in check.targets))
        for check, test, after in zip(checks, held, following, strict=True)
    ]
    tests = tuple((test, check.index) for check, test in zip(checks, held, strict=True))
    return [
        block.with_(
            assigns=(*block.assigns, *tests[1:]),
            terminator=replace(ends[0], index=checks[0].index),
        ),
        *(
            Block(label, "room", (), (), end)
            for label, end in zip(following, [*ends[1:], block.terminator], strict=True)
        ),
    ]


def _waiting(turn: _Turn, stored: dict[Var, Atom]) -> tuple[Variables, tuple[Var, ...]]:
    """The values of a turn that wait for results of calls, and the state of the loop that does."""
    carried: dict[Var, None] = {}
    while True:
        late = {*turn.results, *carried}
        for eqn in turn.whole.eqns:
            if is_late(eqn, late):
                late.update(eqn.outvars)
        found = {var: None for var, atom in stored.items() if is_one_of(atom, late)}
        if len(found) == len(carried):
            return frozenset(late), tuple(found)
        carried = found


def is_one_of(atom: Atom, values: Variables | set[Var]) -> bool:
    """Whether an atom is one of these variables."""
    return isinstance(atom, Var) and atom in values


def is_late(eqn: JaxprEqn, late: Variables | set[Var]) -> bool:
    """Whether an equation belongs to the second half. What is pushed is part of what calls leave behind them."""
    return eqn.primitive is push_p or any(is_one_of(atom, late) for atom in eqn.invars)


def has_other_effect(eqn: JaxprEqn) -> bool:
    """Whether an equation does more than to add to sums or to push, neither of which has an order."""
    return bool(eqn.effects) and eqn.primitive is not accumulate_p and eqn.primitive is not push_p


def _read_by(eqns: Sequence[JaxprEqn], atoms: Iterable[Atom]) -> set[Var]:
    """What equations, and those that store atoms, read that the equations do not define."""
    found = {a for eqn in eqns for a in eqn.invars if isinstance(a, Var)}
    found |= {a for a in atoms if isinstance(a, Var)}
    return found - {var for eqn in eqns for var in eqn.outvars}


def _luggage(
    whole: Block, wanted: set[Var], written: Variables
) -> tuple[list[Var], list[JaxprEqn]]:
    """The values of the first half that the second wants: those that are kept, and what computes the others."""
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
    needs = {atom for atom in eqn.invars if isinstance(atom, Var) and varies(atom)}
    return (
        not eqn.effects
        and not cost.products
        and cost.operations <= CHEAP_OPERATIONS + CHEAP_AN_ELEMENT * size
        and sum(map(bytes_of, needs)) <= sum(map(bytes_of, eqn.outvars))
    )


def renamed(eqns: Sequence[JaxprEqn], env: dict[Var, Atom]) -> tuple[JaxprEqn, ...]:
    """Equations that define variables of their own, which `env` then has too."""
    found = []
    for eqn in eqns:
        outs = [_jax.new_var(var.aval) for var in eqn.outvars]
        found.append(substitute_inputs(env, eqn).replace(outvars=outs))
        env.update(zip(eqn.outvars, outs, strict=True))
    return tuple(found)
