"""Calls in branches of their own: a part of a function that spawns all of them, then the same part with what they gave.

`if tree.left is not None: a = f(tree.left)`, then the same for the right: whether either call is made, and with what,
does not depend on the other, but they stand in different blocks, so no `Fork` holds both. The part of the function
around them, a *region* that is entered at one block, left to one and has no loops, is run twice, as a loop of
calls is (`spawn.py`). The first time its forks are `Spawn`s, which do not wait, and all that waits for results is left
out. When all calls are back, it is run again along the same branches, and does what was left out; where a call
was made, what it gave is collected.

A variable of the function belongs to the second time if a value that waits for results is stored there anywhere in the
region, else to the first. What the second time reads of the first is in the frame: a block of a region runs at most
once, so a copy of what may be written over is enough.

What it does not do: regions with an assertion or with loops in them, or where what a call gave decides about another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.blocks.analysis import live_in, live_out
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
    Terminator,
    defined,
    predecessors,
    reachable,
    reads,
    substitute,
    successors,
    terminator_atoms,
)
from lanewise.blocks.spawn import Variables, has_other_effect, is_late, is_one_of, renamed

Blocks = dict[Label, Block]
Alive = dict[Label, Variables]


def spawned_regions(program: BlockProgram, inbox: Variables) -> BlockProgram:
    """The same program whose calls in branches of their own are spawned; `inbox`: where forks put results."""
    labels = itertools.count(1 + max(block.label for _, block in program.all_blocks()))
    functions = {}
    for name, function in program.functions.items():
        blocks = {block.label: block for block in function.blocks}
        alive = live_out(program, function)
        for start in list(blocks):
            candidates = (
                _twice(program, region, alive, inbox, labels)
                for region in _regions(function, blocks, start)
            )
            made = next((found for found in candidates if found), [])
            blocks |= {block.label: block for block in made}
        functions[name] = replace(function, blocks=reachable(tuple(blocks.values())))
    return replace(program, functions=functions)


@dataclass(frozen=True)
class _Region:
    """Blocks in an order in which they may run, all through the first, and the one that all ways lead to then."""

    blocks: tuple[Block, ...]
    exit: Block

    @property
    def forks(self) -> list[Fork]:
        return [b.terminator for b in self.blocks if isinstance(b.terminator, Fork)]


def _regions(function: BlockFunction, blocks: Blocks, start: Label) -> list[_Region]:
    """The regions that begin with a block, those with the most calls first, and of these the smallest."""
    if not isinstance(blocks[start].terminator, Branch | Fork):
        return []
    before = predecessors(blocks.values())
    found = []
    for end in _passed_by_all(blocks, start) - {start, function.entry}:
        order = _in_order(blocks, start, end)
        if order is None or any(not set(order).issuperset(before[label]) for label in order[1:]):
            continue
        region = _Region(tuple(blocks[label] for label in order), blocks[end])
        if _one_after_another(region) and _taken_at_once(region, before):
            found.append(region)
    return sorted(found, key=lambda region: (-len(region.forks), len(region.blocks)))


def _passed_by_all(blocks: Blocks, start: Label) -> set[Label]:
    """The blocks that come on every way from a block to an end."""
    after = {label: set(blocks) for label in blocks}
    changed = True
    while changed:
        changed = False
        for label, block in blocks.items():
            ways = [after[target] for target in successors(block)]
            now = {label, *(set.intersection(*ways) if ways else ())}
            if now != after[label]:
                after[label], changed = now, True
    return after[start]


def _in_order(blocks: Blocks, start: Label, end: Label) -> list[Label] | None:
    """The blocks between two, each before those that it leads to; None if there is a loop, or another way to end."""
    order: list[Label] = []
    fine: dict[Label, bool] = {end: True}

    def visit(label: Label) -> bool:
        if label not in fine:
            fine[label] = False  # coming here again in the meantime is a cycle
            plain = isinstance(blocks[label].terminator, Jump | Branch | Fork)
            if plain and all(list(map(visit, successors(blocks[label])))):
                fine[label] = True
                order.append(label)
        return fine[label]

    return order[::-1] if visit(start) else None


def _one_after_another(region: _Region) -> bool:
    """Whether some way through a region makes a call after another, which a fork would not hold."""
    makes: dict[Label, int] = {region.exit.label: 0}
    for block in reversed(region.blocks):
        own = isinstance(block.terminator, Fork)
        makes[block.label] = own + max(makes[target] for target in successors(block))
    return makes[region.blocks[0].label] > 1


def _taken_at_once(region: _Region, before: dict[Label, list[Label]]) -> bool:
    """Whether a block of the region that nothing else leads to takes what each fork gives."""
    inside = {block.label for block in region.blocks}
    return all(fork.target in inside and len(before[fork.target]) == 1 for fork in region.forks)


def _twice(
    program: BlockProgram, region: _Region, alive: Alive, inbox: Variables, labels: Iterator[Label]
) -> list[Block] | None:
    """The blocks of a region that is run twice; None if one of its calls waits for another."""
    late = _waiting(region, alive)
    given = {fork.target: fork for fork in region.forks}
    if inbox & live_in(region.exit, alive[region.exit.label]):
        return None
    own: dict[Label, dict[Var, Var]] = {}
    for block in region.blocks:
        fork = given.get(block.label)
        results = {var for call in fork.calls for var in call.results} if fork else set()
        read = set(reads(block))
        if (inbox & read) - results or read.intersection(defined(block)):
            return None
        if any(map(has_other_effect, block.eqns)):
            return None
        if any(is_one_of(atom, late) for atom in terminator_atoms(block.terminator)):
            return None
        if fork:
            wanted = (var for call in fork.calls for var in call.results if var in read)
            own[block.label] = {var: _jax.new_var(var.aval) for var in wanted}
    again = {block.label: next(labels) for block in region.blocks}
    join, first = next(labels), again[region.blocks[0].label]
    at_start = live_in(region.blocks[0], alive[region.blocks[0].label])
    twice = _Twice(program, region, alive, late, at_start, again, join, own)
    before, after = map(list, zip(*map(twice.both, region.blocks), strict=True))
    before[0] = _cleared(before, after, at_start)
    return [*before, Block(join, "spawned", (), (), Collect((), first, first)), *after]


def _cleared(once: list[Block], twice: list[Block], at_start: Variables) -> Block:
    """The first block of a region, which also writes what the second time reads and only some ways write.

    No lane takes the other ways and reads it, but that is not seen from blocks: a value would be kept, and handed from
    call to call.
    """
    written = {v for b in once[1:] for v in (*defined(b), *(var for var, _ in b.assigns))}
    some = [v for b in twice for v in reads(b) if v in written and v not in at_start]
    some = list(dict.fromkeys(some))
    traced = _jax.trace(lambda: [_jax.zeros(var.aval) for var in some], [])
    assert not traced.captures, "zeros capture nothing"
    zeros = tuple(zip(some, traced.jaxpr.outvars, strict=True))
    eqns = (*once[0].eqns, *traced.jaxpr.eqns)
    return once[0].with_(eqns=eqns, assigns=(*once[0].assigns, *zeros))


def _waiting(region: _Region, alive: Alive) -> Variables:
    """The values of a region that wait for results of calls, and the variables that such are stored in."""
    late = {var for fork in region.forks for call in fork.calls for var in call.results}
    while True:
        before = len(late)
        for block in region.blocks:
            for eqn in block.eqns:
                if is_late(eqn, late):
                    late.update(eqn.outvars)
            live = ((v, a) for v, a in block.assigns if v in alive[block.label])
            late.update(var for var, atom in live if is_one_of(atom, late))
        if len(late) == before:
            return frozenset(late)


@dataclass(frozen=True)
class _Twice:
    """A region that is run twice.

    `late`: what waits for results of calls. `at_start`: what is alive where it begins. `again`: labels of the
    second time, `join`: the block between. `own`: for blocks behind forks, where results go.
    """

    program: BlockProgram
    region: _Region
    alive: Alive
    late: Variables
    at_start: Variables
    again: dict[Label, Label]
    join: Label
    own: dict[Label, dict[Var, Var]]

    def both(self, block: Block) -> tuple[Block, Block]:
        """A block as it is the first time and the second."""
        late = self.late
        stored: dict[Var, Atom] = {var: var for var in defined(block)} | dict(block.assigns)
        stored = {var: atom for var, atom in stored.items() if var in self.alive[block.label]}
        back = [eqn for eqn in block.eqns if is_late(eqn, late)]
        wanted = [atom for eqn in back for atom in eqn.invars]
        wanted += [atom for var, atom in stored.items() if var in late]
        wanted += [block.terminator.index] if isinstance(block.terminator, Branch) else []
        kept = {
            var: _jax.new_var(var.aval)
            for var in dict.fromkeys(a for a in wanted if isinstance(a, Var))
            if var not in late and self._may_change(block, var)
        }
        env: dict[Var, Atom] = {**kept, **self.own.get(block.label, {})}
        eqns = renamed(back, env)
        first = block.with_(
            eqns=tuple(eqn for eqn in block.eqns if not is_late(eqn, late)),
            assigns=(
                *((v, a) for v, a in stored.items() if v not in late and v is not a),
                *((copy, var) for var, copy in kept.items()),
            ),
            terminator=self._first_end(block.terminator),
        )
        second = Block(
            self.again[block.label],
            block.note,
            eqns,
            tuple((v, substitute(env, a)) for v, a in stored.items() if v in late),
            self._second_end(block.terminator, env),
        )
        return first, second

    def _may_change(self, block: Block, var: Var) -> bool:
        """Whether the first time may write a variable with another value than a block has read, or defined."""
        blocks = self.region.blocks
        writers = [b for b in blocks if var in defined(b) or var in dict(b.assigns)]
        if not writers or (writers == [block] and var in defined(block)):
            return False
        (*_, last) = writers
        by_one = len(writers) == 1 and var in defined(last) and var not in self.at_start
        return not (by_one and blocks.index(last) < blocks.index(block))

    def _first_end(self, end: Terminator) -> Terminator:
        def to(target: Label) -> Label:
            return target if target in self.again else self.join

        match end:
            case Fork(calls, target):
                number = Literal(np.int32(0), _jax.shaped((), np.dtype("int32")))
                return Spawn(tuple(replace(c, results=()) for c in calls), number, (to(target),))
            case Branch(index, targets):
                return Branch(index, tuple(map(to, targets)))
            case Jump(target):
                return Jump(to(target))
            case _:
                raise AssertionError("a block of a region ends in no other way")

    def _second_end(self, end: Terminator, env: dict[Var, Atom]) -> Terminator:
        functions, again = self.program.functions, self.again
        match end:
            case Fork(calls, target):
                copies, places = [], self.own[target]
                for call in calls:
                    pairs = zip(call.results, functions[call.callee].results, strict=True)
                    copies.append(tuple((places[v], theirs) for v, theirs in pairs if v in places))
                return Collect(tuple(copies), again[target], again[target])
            case Branch(index, targets):
                return Branch(substitute(env, index), tuple(again.get(t, t) for t in targets))
            case Jump(target):
                return Jump(again.get(target, target))
            case _:
                raise AssertionError("a block of a region ends in no other way")
