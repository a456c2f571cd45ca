"""What is known about blocks without running them: liveness, storage, uniformity, constants.

Storage
-------
A variable is a *temporary* if only its own block reads it, else a *register*; it also has a *stack* if it is live
across a call that may come back into its own function. Registers hold the running frame's values, so the top of every
stack is cached: a call pushes, a return pops.

Each frame has one slot in every stack, at the frame's depth. So a value that was pushed for one call is still in
its slot at the next call of the same frame: it is not pushed again (pop-push cancels) unless the variable changed in
between; and after the return it is not popped unless something reads it before the next call. Both are found by
dataflow: *saved* goes forward (what certainly is in its slot), *wanted* backward (what is read before the next call).

Constants
---------
`evaluate` folds the small scalars that control flow depends on: flags, indices, comparisons of constants.
`constants_at_start` follows them from block to block: conditional constant propagation. Optimistic, after Wegman and
Zadeck (1991): a way that a known branch rules out contributes nothing, so a flag that only an already threaded exit
sets is known to be clear in the rest of its loop. A branch determines its own index too: on the way taken for True the
index is True.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Collect,
    Fork,
    Label,
    Return,
    arguments_of,
    callees,
    defined,
    given_back,
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

    What only feeds values that are not needed is not needed either, so a loop does not keep alive what it carries
    only for itself.
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
    """Liveness, with control over what stays live across a call."""
    after: dict[Label, Variables] = {block.label: frozenset() for block in function.blocks}
    before: dict[Label, Variables] = dict(after)
    changed = True
    while changed:
        changed = False
        for block in reversed(function.blocks):
            out: Variables = frozenset().union(*(before[t] for t in successors(block)))
            if isinstance(block.terminator, Return):
                out = out | frozenset(function.results)
            out = out - frozenset(given_back(program, block.terminator))
            if isinstance(block.terminator, Call):
                out = across_call(block, out)
            entering = live_in(block, out)
            if out != after[block.label] or entering != before[block.label]:
                after[block.label], before[block.label] = out, entering
                changed = True
    return after


def reachable_functions(program: BlockProgram) -> dict[str, frozenset[str]]:
    """For each function, those a call to it may run, itself included."""
    reach = {
        name: {name, *(callee for b in function.blocks for callee in callees(b.terminator))}
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
    `live_out` is given by block, so that the machine writes only what is read.
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
    """Choose where each variable lives; `varying_inputs` says which inputs differ between lanes."""
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
        if isinstance(block.terminator, Collect):
            # What a frame was given to keep for its caller.
            registers.update(dict.fromkeys(v for own in block.terminator.copies for _, v in own))
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
    # A parameter that is passed on unchanged is not written.
    return tuple((var, atom) for var, atom in arguments_of(block.terminator) if var is not atom)


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
    """For each call: the variables whose current value is certainly in the frame's slot already."""
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
        if isinstance(block.terminator, Fork | Collect):
            varies.update(given_back(program, block.terminator))
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


Known = dict[Var, Any]

_PLAIN: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "xor": np.bitwise_xor,
}


# What can be found of an equation's results, with all of its inputs known or only some.
_FOLDED = {
    *_PLAIN,
    *("not", "and", "or", "select_n", "cond", "jit", "pjit"),
    *("convert_element_type", "copy", "stop_gradient"),
}


def known_value(atom: Atom, eqns: Iterable[JaxprEqn]) -> Any | None:
    """The value of a scalar if the equations fix it, else None."""
    return value_of(evaluate(eqns, {}), atom)


def evaluate(eqns: Iterable[JaxprEqn], known: Known) -> Known:
    """What the equations fix, given what is known of their inputs."""
    known = dict(known)
    for eqn in eqns:
        if eqn.primitive.name in _FOLDED and all(var.aval.shape == () for var in eqn.outvars):
            known.update(
                {
                    k: v
                    for k, v in zip(eqn.outvars, _outputs(eqn, known), strict=True)
                    if v is not None
                }
            )
    return known


def value_of(known: Known, atom: Atom) -> Any | None:
    if isinstance(atom, Literal):
        return np.asarray(atom.val, atom.aval.dtype)[()] if np.ndim(atom.val) == 0 else None
    return known.get(atom)


def identical(first: Any, second: Any) -> bool:
    """Whether two constants are the same bits.

    >>> identical(np.float32(0.0), np.float32(-0.0))
    False
    """
    first, second = np.asarray(first), np.asarray(second)
    return (first.dtype, first.shape, first.tobytes()) == (
        second.dtype,
        second.shape,
        second.tobytes(),
    )


def _outputs(eqn: JaxprEqn, known: Known) -> list[Any | None]:
    values = [value_of(known, atom) for atom in eqn.invars]
    nothing = [None] * len(eqn.outvars)
    name = eqn.primitive.name
    is_bool = len(eqn.outvars) == 1 and eqn.outvars[0].aval.dtype == np.bool_
    if name == "not" and is_bool:
        return [None if values[0] is None else np.logical_not(values[0])]
    if name in ("and", "or") and is_bool:
        decisive = name == "or"
        if any(v is not None and bool(v) == decisive for v in values):
            return [np.bool_(decisive)]
        return nothing if any(v is None for v in values) else [np.bool_(not decisive)]
    if name == "select_n" and values[0] is not None:
        return [values[1 + int(values[0])]]
    if name == "cond" and values[0] is not None:
        branch = _jax.Cond.of(eqn, values)
        return _run(branch.branches[int(values[0])], branch.operands)
    if name in ("jit", "pjit"):
        return _run(eqn.params["jaxpr"], values)
    if any(v is None for v in values):
        return nothing
    if name == "convert_element_type" and not _jax.is_extended(eqn.params["new_dtype"]):
        return [np.asarray(values[0]).astype(eqn.params["new_dtype"])[()]]
    if name in ("copy", "stop_gradient"):
        return [values[0]]
    return [_PLAIN[name](*values)] if name in _PLAIN else nothing


def _run(jaxpr: Any, values: Iterable[Any | None]) -> list[Any | None]:
    known = evaluate(
        jaxpr.eqns, {var: v for var, v in zip(jaxpr.invars, values, strict=True) if v is not None}
    )
    return [value_of(known, atom) for atom in jaxpr.outvars]


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
    for var in given_back(program, block.terminator):
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
