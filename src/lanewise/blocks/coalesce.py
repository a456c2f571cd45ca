"""Variables that only copy each other get one place.

A loop inside a loop, or a branch inside a loop, hands its whole state from variable to variable. For a machine that
keeps every variable for every lane, each copy is a masked write. Two variables may share a place unless one is written
while the other still holds a different value that is needed (Chaitin 1982). Only copies are reasons to share. All of a
block's writes happen at its end, after all its reads, so variables can only interfere there.

A function that takes a state and passes it on (a buffer it writes to, say) takes it in a parameter and gives it in a
result. Where these two do not interfere, they share a place too, in the whole program, and so a recursion
hands its state from call to call without a copy. A function outside of the recursion that passes on what a call gave
leaves it where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, Literal, Var
from lanewise.blocks.analysis import (
    identical,
    live_in,
    live_out,
    uniform_variables,
    writes_in_order,
)
from lanewise.blocks.equations import before_updates
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Call,
    Collect,
    Fork,
    Return,
    callees,
    defined,
    given_back,
    is_called,
    reads,
    substitute,
    substitute_terminator,
)
from lanewise.core.primitives.facts import bytes_of


def coalesce(program: BlockProgram, varying_inputs: Iterable[bool]) -> BlockProgram:
    """Give variables that copy each other one place where they do not interfere."""
    varying_inputs = tuple(varying_inputs)
    program = within_functions(program, varying_inputs)
    place = _results_in_parameters(program, uniform_variables(program, varying_inputs))
    if place:
        functions = {}
        for name, function in program.functions.items():
            alive = live_out(program, function)
            functions[name] = replace(
                function,
                results=tuple(place.get(var, var) for var in function.results),
                blocks=tuple(_renamed(b, alive[b.label], place) for b in function.blocks),
            )
        program = within_functions(replace(program, functions=functions), varying_inputs)
    return _given_on(program)


def _given_on(program: BlockProgram) -> BlockProgram:
    """What a call gave and a function passes on, copied where it ends, is left in the called function's variable.

    Only outside of recursions: there, the variable could be another frame's. Its callers copy what they are given
    before they make another call; the entry's results are read when the lane has ended.
    """
    for name in _callees_first(program):
        function = program.functions[name]
        stays = _stays(program, function)
        if not stays:
            continue
        blocks = tuple(
            b.with_(assigns=tuple((dst, src) for dst, src in b.assigns if dst not in stays))
            for b in function.blocks
        )
        results = tuple(stays.get(var, var) for var in function.results)
        functions = {n: _reading(program, f, stays) for n, f in program.functions.items()}
        functions[name] = replace(function, results=results, blocks=blocks)
        program = replace(program, functions=functions)
    return program


def _callees_first(program: BlockProgram) -> list[str]:
    """The functions that are part of no recursion, each after those that it calls."""
    calls = {
        name: {callee for block in function.blocks for callee in callees(block.terminator)}
        for name, function in program.functions.items()
    }
    reach: dict[str, set[str]] = {}
    for name in calls:
        found, todo = set(), list(calls[name])
        while todo:
            other = todo.pop()
            if other not in found:
                found.add(other)
                todo += calls[other]
        reach[name] = found
    return sorted((name for name in calls if name not in reach[name]), key=lambda n: len(reach[n]))


def _stays(program: BlockProgram, function: BlockFunction) -> dict[Var, Var]:
    """The results of a function that are results of one that it calls, with those."""
    called = {callee for block in function.blocks for callee in callees(block.terminator)}
    given = {var for name in called for var in program.functions[name].results}
    read = {var for b in function.blocks for var in reads(b)}
    stays: dict[Var, Var] = {}
    for result in function.results:
        ends = [(b, src) for b in function.blocks for dst, src in b.assigns if dst is result]
        sources = {src for _, src in ends if isinstance(src, Var)}
        if (
            result not in read
            and len(sources) == 1
            and all(
                isinstance(block.terminator, Return)
                and isinstance(src, Var)
                and src in given
                and src not in writes_in_order(block)
                and (src.aval.shape, src.aval.dtype) == (result.aval.shape, result.aval.dtype)
                for block, src in ends
            )
        ):
            stays[result] = sources.pop()
    kept = {
        var
        for other in program.functions.values()
        if other is not function
        for alive in live_out(program, other).values()
        for var in alive
    }
    return {var: src for var, src in stays.items() if var not in kept}


def _reading(
    program: BlockProgram, function: BlockFunction, place: dict[Var, Var]
) -> BlockFunction:
    """A function that reads these variables at their new places."""
    if not any(var in place for block in function.blocks for var in reads(block)):
        return function
    alive = live_out(program, function)
    return replace(
        function, blocks=tuple(_renamed(b, alive[b.label], place) for b in function.blocks)
    )


def within_functions(program: BlockProgram, varying_inputs: Iterable[bool]) -> BlockProgram:
    uniform = uniform_variables(program, varying_inputs)
    functions = {name: _coalesced(program, f, uniform) for name, f in program.functions.items()}
    return replace(program, functions=functions)


def _results_in_parameters(program: BlockProgram, uniform: frozenset[Var]) -> dict[Var, Var]:
    """Results of functions that may have the place of one of their parameters, with that parameter."""
    made_of: dict[Var, set[Var]] = {}
    for _, block in program.all_blocks():
        for dst, src in block.assigns:
            before = before_updates(block.eqns, src)
            if before is not None:
                made_of.setdefault(dst, set()).add(before)
    # One that has such a place already keeps it: it is read there as a parameter, too.
    taken = {var for function in program.functions.values() for var in function.params}
    results_of = [function.results for function in program.functions.values()]
    place: dict[Var, Var] = {}
    for name, function in program.functions.items():
        if not is_called(program, name):
            continue
        alive = live_out(program, function)
        conflicts = _conflicts(program, function, alive, set(function.results) - uniform)
        own = {var for b in function.blocks for var in writes_in_order(b)}
        own -= {*program.inputs, *taken, *uniform, *(v for f in results_of for v in f)}
        for result in (var for var in function.results if var not in taken):
            for param in function.params:
                free = param not in place.values() and not {result, param} & uniform
                between = _between(result, param, made_of, own - place.keys())
                if free and between is not None and _apart([result, param, *between], conflicts):
                    place.update(dict.fromkeys([result, *between], param))
                    break
    return place


def _between(
    result: Var, param: Var, made_of: dict[Var, set[Var]], own: set[Var]
) -> list[Var] | None:
    """The variables that a parameter goes through, written at some places, to become a result; None if it does not.

    A tape that branches push to goes through one where they join.
    """
    kind = (param.aval.shape, param.aval.dtype)
    if (result.aval.shape, result.aval.dtype) != kind:
        return None
    found: dict[Var, None] = {}
    todo = [result]
    while todo:
        for var in made_of.get(todo.pop(), ()):
            if var in own and var not in found and (var.aval.shape, var.aval.dtype) == kind:
                found[var] = None
                todo.append(var)
    ends = [made_of.get(var, set()) for var in (result, *found)]
    reaches = any(param in each for each in ends) or result in made_of.get(param, ())
    return list(found) if reaches else None


def _apart(variables: Sequence[Var], conflicts: dict[Var, set[Var]]) -> bool:
    """Whether no two of them interfere."""
    return not any(conflicts.get(var, set()) & {*variables} for var in variables)


def _coalesced(
    program: BlockProgram, function: BlockFunction, uniform: frozenset[Var]
) -> BlockFunction:
    alive = live_out(program, function)
    others = {
        var
        for f in program.functions.values()
        if f is not function
        for var in (*f.params, *f.results)
    }
    # What others see keeps its name; what is the same for all lanes must stay so. The results of a function that
    # nothing calls are seen at the very end only: an answer may stay where it was computed.
    fixed = {*program.inputs, *function.params, *(v for v, _ in program.constants), *others}
    if is_called(program, function.name):
        fixed |= set(function.results)
    movable = {var for b in function.blocks for var in writes_in_order(b)} - uniform - others
    conflicts = _conflicts(program, function, alive, movable)
    groups = _Groups(conflicts, fixed)
    copies = [
        (dst, src)
        for block in function.blocks
        for dst, src in (*block.assigns, *_written_copies(program, block, alive[block.label]))
        if isinstance(src, Var) and _may_share(dst, src, movable, function)
    ]
    for dst, src in sorted(copies, key=lambda pair: -bytes_of(pair[0])):
        groups.join(dst, src)
    place = groups.places()
    if not place:
        return function
    return replace(
        function,
        results=tuple(place.get(var, var) for var in function.results),
        blocks=tuple(_renamed(b, alive[b.label], place) for b in function.blocks),
    )


def _written_copies(
    program: BlockProgram, block: Block, alive: frozenset[Var]
) -> list[tuple[Var, Var | None]]:
    """What leaves a block, where it is another variable written at some places: in its place only those are written.

    Only in programs of one function that nothing calls: with calls, generated programs came out wrong on `native`.
    """
    if len(program.functions) > 1 or is_called(program, program.entry_function.name):
        return []
    stored = {var: var for var in defined(block)} | dict(block.assigns)
    return [(var, before_updates(block.eqns, atom)) for var, atom in stored.items() if var in alive]


def _may_share(dst: Var, src: Var, movable: set[Var], function: BlockFunction) -> bool:
    usable = movable | set(function.params)
    same_type = (dst.aval.shape, dst.aval.dtype) == (src.aval.shape, src.aval.dtype)
    return dst in usable and src in usable and same_type and dst is not src


def _conflicts(
    program: BlockProgram,
    function: BlockFunction,
    alive: dict[int, frozenset[Var]],
    movable: set[Var],
) -> dict[Var, set[Var]]:
    found: dict[Var, set[Var]] = {}

    def against(first: Var, second: Var) -> None:
        found.setdefault(first, set()).add(second)
        found.setdefault(second, set()).add(first)

    entry = function.blocks[0]
    at_start = (live_in(entry, alive[entry.label]) | set(function.params)) & (
        movable | set(function.params)
    )
    for first in at_start:
        for second in at_start:
            if first is not second:
                against(first, second)
    for block in function.blocks:
        if isinstance(block.terminator, Call):
            # The callee writes its results while the frame waits.
            for result in program.functions[block.terminator.callee].results:
                for other in alive[block.label]:
                    against(result, other)
        if isinstance(block.terminator, Fork | Collect):
            # So do calls, to the variables that a fork names.
            for result in given_back(program, block.terminator):
                for other in alive[block.label]:
                    against(result, other)
        stored: dict[Var, Any] = {var: var for var in defined(block)} | dict(block.assigns)
        kept = alive[block.label]
        for var in stored:
            if var not in kept:
                continue
            source = stored[var]
            for other in kept:
                if other is not var and not _same(source, stored.get(other, other)):
                    against(var, other)
    return found


def _same(first: Atom, second: Atom) -> bool:
    if isinstance(first, Literal) and isinstance(second, Literal):
        return identical(
            np.asarray(first.val, first.aval.dtype), np.asarray(second.val, second.aval.dtype)
        )
    return first is second


class _Groups:
    """Sets of variables that share a place, with what interferes with each."""

    def __init__(self, conflicts: dict[Var, set[Var]], fixed: set[Var]) -> None:
        self.conflicts = conflicts
        self.fixed = fixed
        self.members: dict[Var, set[Var]] = {}
        self.group: dict[Var, Var] = {}

    def find(self, var: Var) -> Var:
        return self.group.get(var, var)

    def join(self, first: Var, second: Var) -> None:
        a, b = self.find(first), self.find(second)
        if a is b:
            return
        left, right = self.members.get(a, {a}), self.members.get(b, {b})
        if any(self.conflicts.get(var, set()) & right for var in left):
            return
        if len((left | right) & self.fixed) > 1:
            return
        named = next(iter((left | right) & self.fixed), a)
        self.members[named] = left | right
        for var in left | right:
            self.group[var] = named

    def places(self) -> dict[Var, Var]:
        return {var: named for var, named in self.group.items() if var is not named}


def _renamed(block: Block, alive: frozenset[Var], place: dict[Var, Var]) -> Block:
    """The block with its reads and writes at the shared places; what its equations define stays its own."""
    env: dict[Var, Atom] = dict(place)
    eqns = []
    stored: dict[Var, Atom] = {}
    assigned = {var for var, _ in block.assigns}
    for eqn in block.eqns:
        invars = [substitute(env, atom) for atom in eqn.invars]
        outs = []
        for var in eqn.outvars:
            own = _jax.new_var(var.aval)
            outs.append(own)
            env[var] = own
            if var in alive and var not in assigned:
                stored[place.get(var, var)] = own
        eqns.append(eqn.replace(invars=invars, outvars=outs))
    for var, atom in block.assigns:
        if var in alive:
            stored[place.get(var, var)] = substitute(env, atom)
    assigns = tuple((var, atom) for var, atom in stored.items() if var is not atom)
    return block.with_(
        eqns=tuple(eqns), assigns=assigns, terminator=substitute_terminator(block.terminator, env)
    )
