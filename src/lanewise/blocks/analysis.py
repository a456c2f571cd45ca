"""What is known about blocks without running them: liveness, storage, uniformity.

Storage
-------
A variable is a *temporary* if only its own block reads it, else a *register*; it has a *stack* besides if it is live
across a call that may come back into its own function. Registers hold the running frame's values, so the top of every
stack is cached: a call pushes, a return pops.

Each frame has one slot in every stack, at the frame's depth. So a value that was pushed for one call still lies in
its slot at the next call of the same frame: it is not pushed again (pop-push cancels) unless the variable changed in
between; and after the return it is not popped unless something reads it before the next call. Both are found by
dataflow: *saved* goes forward (what certainly lies in its slot), *wanted* backward (what is read before the next call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lanewise._jax import Literal, Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Call,
    Label,
    Return,
    TailCall,
    defined,
    reads,
    successors,
    terminator_atoms,
)

Variables = frozenset[Var]


def writes(block: Block) -> Variables:
    """Variables that hold another value after the block than before it."""
    return frozenset(defined(block)) | frozenset(var for var, _ in block.assigns)


def writes_in_order(block: Block) -> list[Var]:
    return [*defined(block), *(var for var, _ in block.assigns)]


def live_out(program: BlockProgram, function: BlockFunction) -> dict[Label, Variables]:
    """The variables that may still be read after each block of `function`."""
    return _backward(program, function, lambda block, after: after)


def live_in(block: Block, after: Variables) -> Variables:
    """What a block needs at its start if `after` is needed at its end.

    What only feeds values that nobody needs is not needed either, so a loop does not keep alive what it carries for
    itself alone.
    """
    assigned = dict(block.assigns)
    needed = {atom for var, atom in assigned.items() if var in after and isinstance(atom, Var)}
    needed |= {atom for atom in terminator_atoms(block.terminator) if isinstance(atom, Var)}
    needed |= {var for var in after if var not in assigned}
    for eqn in reversed(block.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.difference_update(eqn.outvars)
            needed.update(atom for atom in eqn.invars if isinstance(atom, Var))
    return frozenset(needed)


def _backward(
    program: BlockProgram,
    function: BlockFunction,
    across_call: Callable[[Block, Variables], Variables],
) -> dict[Label, Variables]:
    """Liveness, with a say in what stays live across a call."""
    after: dict[Label, Variables] = {block.label: frozenset() for block in function.blocks}
    before: dict[Label, Variables] = dict(after)
    changed = True
    while changed:
        changed = False
        for block in reversed(function.blocks):
            out: Variables = frozenset().union(*(before[t] for t in successors(block)))
            if isinstance(block.terminator, Return):
                out = out | frozenset(function.results)
            if isinstance(block.terminator, Call):
                results = frozenset(program.functions[block.terminator.callee].results)
                out = across_call(block, out - results)
            entering = live_in(block, out)
            if out != after[block.label] or entering != before[block.label]:
                after[block.label], before[block.label] = out, entering
                changed = True
    return after


def reachable_functions(program: BlockProgram) -> dict[str, frozenset[str]]:
    """For each function, those a call to it may run, itself included."""
    reach = {
        name: {name}
        | {
            b.terminator.callee
            for b in function.blocks
            if isinstance(b.terminator, Call | TailCall)
        }
        for name, function in program.functions.items()
    }
    changed = True
    while changed:
        changed = False
        for found in reach.values():
            more = set().union(*(reach[callee] for callee in found))
            if not more <= found:
                found |= more
                changed = True
    return {name: frozenset(found) for name, found in reach.items()}


@dataclass(frozen=True)
class CallStorage:
    """What one call pushes before it, and what its return pops."""

    push: tuple[Var, ...]
    pop: tuple[Var, ...]


@dataclass(frozen=True, eq=False)
class Storage:
    """Where each variable lives.

    `registers` are read by another block than the one that writes them (or are inputs, parameters, results);
    `stacks` are those of them with a stack; `uniform` hold one value for all lanes. Everything else is temporary.
    `live_out` is kept by block, for the machine to write only what is read.
    """

    registers: tuple[Var, ...]
    stacks: tuple[Var, ...]
    uniform: Variables
    calls: dict[Label, CallStorage]
    live_out: dict[Label, Variables]

    def of(self, var: Var) -> str:
        """The storage class of a variable, by name."""
        if var in self.stacks:
            return "stack"
        return "register" if var in self.registers else "temporary"


def storage(program: BlockProgram, varying_inputs: Iterable[bool]) -> Storage:
    """Choose where each variable lives; `varying_inputs` tells which inputs differ between lanes."""
    reach = reachable_functions(program)
    fixed = constant_variables(program)
    calls: dict[Label, CallStorage] = {}
    alive: dict[Label, Variables] = {}
    uniform = uniform_variables(program, varying_inputs)
    for function in program.functions.values():
        after = live_out(program, function)
        alive.update(after)
        calls.update(_call_storage(program, function, after, reach, fixed | uniform))
    registers: dict[Var, None] = dict.fromkeys(
        [*program.inputs, *(var for var, _ in program.constants)]
    )
    for function, block in program.all_blocks():
        registers.update(dict.fromkeys((*function.params, *function.results)))
        registers.update(dict.fromkeys(var for var in reads(block)))
    stacks = dict.fromkeys(var for call in calls.values() for var in call.push)
    return Storage(tuple(registers), tuple(stacks), uniform, calls, alive)


def shared_by_frames(program: BlockProgram, found: Storage) -> Variables:
    """Variables that no call that may come back saves, as their value is the same in all frames."""
    reach = reachable_functions(program)
    across = {
        var
        for function, block in program.all_blocks()
        if isinstance(block.terminator, Call) and function.name in reach[block.terminator.callee]
        for var in found.live_out[block.label]
    }
    return frozenset(across.difference(found.stacks))


def constant_variables(program: BlockProgram) -> Variables:
    """Inputs that no block writes: they need no saving."""
    written = {
        var
        for _, block in program.all_blocks()
        for var in (*writes(block), *(v for v, _ in _arguments(block)))
    }
    inputs = (*program.inputs, *(var for var, _ in program.constants))
    return frozenset(var for var in inputs if var not in written)


def _arguments(block: Block) -> tuple[tuple[Var, object], ...]:
    if isinstance(block.terminator, Call | TailCall):
        # A parameter handed on as it is is not written.
        return tuple((var, atom) for var, atom in block.terminator.arguments if var is not atom)
    return ()


def _call_storage(
    program: BlockProgram,
    function: BlockFunction,
    after: dict[Label, Variables],
    reach: dict[str, frozenset[str]],
    never_saved: Variables,
) -> dict[Label, CallStorage]:
    invariant = frozenset(
        var
        for var in function.params
        if not any(
            var in writes(b) or var in (v for v, _ in _arguments(b))
            for name, other in program.functions.items()
            # A function that cannot run while this one waits changes nothing meanwhile.
            if name == function.name or name in reach[function.name]
            for b in other.blocks
        )
    )
    comes_back = {
        block.label: function.name in reach[block.terminator.callee]
        for block in function.blocks
        if isinstance(block.terminator, Call)
    }
    across = {
        label: after[label] - never_saved - invariant if recursive else frozenset()
        for label, recursive in comes_back.items()
    }
    saved = _saved_before(function, across)
    push = {label: across[label] - saved[label] for label in across}

    # A variable is wanted in its register if it is read before the next call that has it in its slot.
    def leave_saved_in_their_slots(block: Block, out: Variables) -> Variables:
        return (out - across[block.label]) | push[block.label]

    wanted_out = _backward(program, function, leave_saved_in_their_slots)
    blocks = {block.label: block for block in function.blocks}
    found = {}
    for label in across:
        target = blocks[successors(blocks[label])[0]]
        wanted = live_in(target, wanted_out[target.label])
        pop = across[label] & wanted
        found[label] = CallStorage(_ordered(push[label], function), _ordered(pop, function))
    return found


def _saved_before(
    function: BlockFunction, across: dict[Label, Variables]
) -> dict[Label, Variables]:
    """For each call: the variables whose current value certainly lies in the frame's slot already."""
    universe: Variables = frozenset().union(*across.values()) if across else frozenset()
    entering: dict[Label, Variables] = {block.label: universe for block in function.blocks}
    entering[function.entry] = frozenset()
    leaving = dict(entering)
    changed = True
    while changed:
        changed = False
        for block in function.blocks:
            kept = entering[block.label] - writes(block)
            out = kept | across.get(block.label, frozenset())
            if out != leaving[block.label]:
                leaving[block.label] = out
                changed = True
        for block in function.blocks:
            for target in successors(block):
                meet = entering[target] & leaving[block.label]
                if meet != entering[target]:
                    entering[target] = meet
                    changed = True
    return {
        block.label: entering[block.label] - writes(block)
        for block in function.blocks
        if block.label in across
    }


def _ordered(variables: Variables, function: BlockFunction) -> tuple[Var, ...]:
    """In order of first appearance, so that the printed program does not change from run to run."""
    seen = dict.fromkeys(
        [*function.params, *(v for b in function.blocks for v in (*reads(b), *writes_in_order(b)))]
    )
    return tuple(var for var in seen if var in variables)


def uniform_variables(program: BlockProgram, varying_inputs: Iterable[bool]) -> Variables:
    """Variables with one value for all lanes at all times.

    A variable qualifies if it is written in one place only, from values that qualify: whenever and for whichever
    lane the write happens, it stores the same value.
    """
    sources: dict[Var, list[tuple[object, ...]]] = {var: [()] for var, _ in program.constants}
    varies: set[Var] = set()
    for var, flag in zip(program.inputs, varying_inputs, strict=True):
        sources.setdefault(var, []).append(())
        if flag:
            varies.add(var)
    for _, block in program.all_blocks():
        for eqn in block.eqns:
            for var in eqn.outvars:
                sources.setdefault(var, []).append(tuple(eqn.invars))
        for var, atom in (*block.assigns, *_arguments(block)):
            sources.setdefault(var, []).append((atom,))
    varies |= {var for var, found in sources.items() if len(found) > 1}
    changed = True
    while changed:
        changed = False
        for var, found in sources.items():
            if var not in varies and any(
                atom in varies for atoms in found for atom in atoms if not isinstance(atom, Literal)
            ):
                varies.add(var)
                changed = True
    return frozenset(var for var in sources if var not in varies)
