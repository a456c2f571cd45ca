"""The flat form: blocks of straight-line equations, each ending in a terminator.

Blocks read and write *variables* (jaxpr `Var`s used as mutable places, not SSA values). Inside a block every
equation defines a new variable; at its end `assigns` stores atoms into variables, all at once, so that a
swap is a swap. A block reads a variable at its start unless an equation of the block defines it. A value
that no other block reads never leaves its block: whether a variable is a temporary, a register or a stack
is not written here but found by `analysis.py`.

What passes over blocks are made of is here too: substitution, joining two blocks, one function at a time. Every program
has one verifier, `verify`, which tests run after each pass, as LANEWISE_VERIFY=1 in the environment does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.core.errors import InternalError, Outcome
from lanewise.core.outcomes import Site

Label = int


@dataclass(frozen=True)
class Jump:
    """Go to `target`."""

    target: Label


@dataclass(frozen=True)
class Branch:
    """Go to `targets[index]`; a boolean index counts False as 0."""

    index: Atom
    targets: tuple[Label, ...]


@dataclass(frozen=True)
class Call:
    """Give the callee its parameters, run it, go on at `target`. Its results are in its result variables."""

    callee: str
    arguments: tuple[tuple[Var, Atom], ...]
    target: Label


@dataclass(frozen=True)
class TailCall:
    """Give the callee its parameters and become it: no frame is kept, its results are ours."""

    callee: str
    arguments: tuple[tuple[Var, Atom], ...]


@dataclass(frozen=True)
class Forked:
    """One call of a fork: `results` are the caller's variables that its results go to."""

    callee: str
    arguments: tuple[tuple[Var, Atom], ...]
    results: tuple[Var, ...]


@dataclass(frozen=True)
class Fork:
    """Make calls that do not wait for one another, in frames of their own; go on at `target` when all are back.

    Only a machine whose frames are lanes forks (`blocks/fork.py`).
    """

    calls: tuple[Forked, ...]
    target: Label


@dataclass(frozen=True)
class Spawn:
    """Make calls as a fork does, but go on at `targets[index]` at once: their results are collected later.

    Where there is no room for them, the block is not run. If there is a `join`, those made before are collected there
    first.
    """

    calls: tuple[Forked, ...]
    index: Atom
    targets: tuple[Label, ...]
    join: Label | None = None


@dataclass(frozen=True)
class Collect:
    """When all spawned calls are back: take what those of the next turn have, and go to `target`; if none, to `done`.

    For each call of a turn, the caller's variables, and whose value of the call's frame each takes. Without calls, it
    only waits for those that are not back.
    """

    copies: tuple[tuple[tuple[Var, Var], ...], ...]
    target: Label
    done: Label


@dataclass(frozen=True)
class Return:
    """Leave the function; its result variables hold the answer."""


@dataclass(frozen=True)
class Fail:
    """End the lane: the assertion `sites[site]` does not hold, or whatever else `outcome` says.

    `waits`: the lane needs room on a tape. A machine whose host makes room lets it wait for that instead, and go on
    along the other way of the branch that led here. `message`: what writes the assertion's message from `values`; only
    where the program was flattened to explain (`rules/explain.py`).
    """

    site: int
    outcome: Outcome = Outcome.ASSERTION_FAILED
    waits: bool = False
    message: Callable[[Sequence[Any]], str] | None = None
    values: tuple[Atom, ...] = ()


Terminator = Jump | Branch | Call | TailCall | Fork | Spawn | Collect | Return | Fail


@dataclass(frozen=True, eq=False)
class Block:
    """Straight-line code and a terminator. Running it costs the lane `steps` steps.

    `frame`: a call follows, so the lane ends here if there is no room for a frame, whether one is kept or not.
    """

    label: Label
    note: str
    eqns: tuple[JaxprEqn, ...]
    assigns: tuple[tuple[Var, Atom], ...]
    terminator: Terminator
    steps: int = 0
    frame: bool = False

    def with_(self, **changes: Any) -> Block:
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class BlockFunction:
    """One function's blocks, in program order; the first is its entry.

    `threads`: parameters that are state of the whole run, each with the number of the result that it becomes.
    """

    name: str
    params: tuple[Var, ...]
    results: tuple[Var, ...]
    blocks: tuple[Block, ...]
    threads: tuple[tuple[Var, int], ...] = ()

    @property
    def entry(self) -> Label:
        return self.blocks[0].label


@dataclass(frozen=True, eq=False)
class BlockProgram:
    """All functions of a program in flat form.

    `inputs` are the variables the operands go to (captures first); `constants` hold arrays found in the code; `sums`
    are the types of the accumulators that blocks add to; `state` are variables that an example has once, whichever
    frame of it runs, and that blocks push to (`lane_state.py`)."""

    functions: dict[str, BlockFunction]
    entry: str
    inputs: tuple[Var, ...]
    constants: tuple[tuple[Var, Any], ...]
    sites: tuple[Site, ...]
    sums: tuple[Any, ...] = ()
    state: tuple[Var, ...] = ()

    @property
    def entry_function(self) -> BlockFunction:
        return self.functions[self.entry]

    def all_blocks(self) -> Iterator[tuple[BlockFunction, Block]]:
        for function in self.functions.values():
            for block in function.blocks:
                yield function, block


def successors(block: Block) -> tuple[Label, ...]:
    """Where a lane may go next inside the same function."""
    match block.terminator:
        case Jump(target) | Call(target=target) | Fork(target=target):
            return (target,)
        case Branch(targets=targets):
            return tuple(dict.fromkeys(targets))
        case Spawn(targets=targets, join=join):
            return tuple(dict.fromkeys((*targets, *([] if join is None else [join]))))
        case Collect(target=target, done=done):
            return (target, done)
        case _:
            return ()


def predecessors(blocks: Iterable[Block]) -> dict[Label, list[Label]]:
    blocks = list(blocks)
    found: dict[Label, list[Label]] = {block.label: [] for block in blocks}
    for block in blocks:
        for target in successors(block):
            found[target].append(block.label)
    return found


def retarget(terminator: Terminator, mapping: dict[Label, Label]) -> Terminator:
    match terminator:
        case Jump(target):
            return Jump(mapping.get(target, target))
        case Branch(index, targets):
            return Branch(index, tuple(mapping.get(t, t) for t in targets))
        case Call(callee, arguments, target):
            return Call(callee, arguments, mapping.get(target, target))
        case Fork(calls, target):
            return Fork(calls, mapping.get(target, target))
        case Spawn(calls, index, targets, join):
            own = tuple(mapping.get(t, t) for t in targets)
            return Spawn(calls, index, own, None if join is None else mapping.get(join, join))
        case Collect(copies, target, done):
            return Collect(copies, mapping.get(target, target), mapping.get(done, done))
        case _:
            return terminator


def terminator_atoms(terminator: Terminator) -> tuple[Atom, ...]:
    """What the terminator itself reads."""
    match terminator:
        case Branch(index=index):
            return (index,)
        case Call() | TailCall() | Fork():
            return tuple(atom for _, atom in arguments_of(terminator))
        case Spawn(index=index):
            return (*(atom for _, atom in arguments_of(terminator)), index)
        case Fail(values=values):
            return values
        case _:
            return ()


def callees(terminator: Terminator) -> tuple[str, ...]:
    """The functions that it calls."""
    match terminator:
        case Call(callee=callee) | TailCall(callee=callee):
            return (callee,)
        case Fork(calls) | Spawn(calls):
            return tuple(call.callee for call in calls)
        case _:
            return ()


def is_called(program: BlockProgram, name: str) -> bool:
    """Whether some block calls this function."""
    return any(name in callees(block.terminator) for _, block in program.all_blocks())


def arguments_of(terminator: Terminator) -> tuple[tuple[Var, Atom], ...]:
    """The parameters of the functions that it calls, and what they are given, call after call."""
    match terminator:
        case Call(arguments=arguments) | TailCall(arguments=arguments):
            return arguments
        case Fork(calls) | Spawn(calls):
            return tuple(pair for call in calls for pair in call.arguments)
        case _:
            return ()


def given_back(program: BlockProgram, terminator: Terminator) -> tuple[Var, ...]:
    """The variables that hold what its calls gave when it goes on."""
    match terminator:
        case Call(callee=callee):
            return program.functions[callee].results
        case Fork(calls):
            return tuple(var for call in calls for var in call.results)
        case Collect(copies):
            return tuple(var for own in copies for var, _ in own)
        case _:
            return ()


def defined(block: Block) -> dict[Var, None]:
    """Variables its equations define."""
    return {var: None for eqn in block.eqns for var in eqn.outvars}


def reads(block: Block) -> dict[Var, None]:
    """Variables whose value at the block's start it reads, in order of use."""
    found: dict[Var, None] = {}
    inside: set[Var] = set()

    def look(atoms: Iterable[Atom]) -> None:
        for atom in atoms:
            if isinstance(atom, Var) and atom not in inside:
                found[atom] = None

    for eqn in block.eqns:
        look(eqn.invars)
        inside.update(eqn.outvars)
    look(atom for _, atom in block.assigns)
    look(terminator_atoms(block.terminator))
    return found


def verify(program: BlockProgram) -> BlockProgram:
    """Check what every pass must keep true; gives the program back."""
    for name, function in program.functions.items():
        labels = [block.label for block in function.blocks]
        _require(len(set(labels)) == len(labels), f"{name}: a label is used twice")
        known = set(labels)
        for block in function.blocks:
            where = f"{name}, block {block.label}"
            for target in successors(block):
                _require(target in known, f"{where} goes to block {target}, which is not there")
            seen: set[Var] = set()
            for eqn in block.eqns:
                for var in eqn.outvars:
                    _require(var not in seen, f"{where} defines {var} twice")
                    seen.add(var)
            stored = [var for var, _ in block.assigns]
            _require(len(set(stored)) == len(stored), f"{where} assigns a variable twice")
            pairs = list(block.assigns)
            for callee in callees(block.terminator):
                _require(callee in program.functions, f"{where} calls an unknown function")
            pairs += arguments_of(block.terminator)
            if isinstance(block.terminator, Fork):
                into = given_back(program, block.terminator)
                _require(len(set(into)) == len(into), f"{where} forks into a variable twice")
                for call in block.terminator.calls:
                    own = program.functions[call.callee].results
                    _require(len(own) == len(call.results), f"{where} forks into too few variables")
                    pairs += zip(call.results, own, strict=True)
            if isinstance(block.terminator, Collect):
                into = given_back(program, block.terminator)
                _require(len(set(into)) == len(into), f"{where} collects into a variable twice")
                pairs += [pair for own in block.terminator.copies for pair in own]
            for var, atom in pairs:
                _require(
                    (var.aval.shape, var.aval.dtype) == (atom.aval.shape, atom.aval.dtype),
                    f"{where} assigns {atom.aval} to a variable of type {var.aval}",
                )
        _verify_defined(program, function)
    return program


def defined_at_start(program: BlockProgram, function: BlockFunction) -> dict[Label, set[Var]]:
    """The variables that every path to a block has written."""
    captured = {
        var for _, block in program.all_blocks() for var, _ in arguments_of(block.terminator)
    }
    constants = (var for var, _ in program.constants)
    outside = {*program.inputs, *constants, *program.state, *captured}
    blocks = {block.label: block for block in function.blocks}
    at_start: dict[Label, set[Var]] = {}
    work = [(function.entry, outside | set(function.params))]
    while work:
        label, incoming = work.pop()
        before = at_start.get(label)
        now = set(incoming) if before is None else before & incoming
        if before is not None and now == before:
            continue
        at_start[label] = now
        block = blocks[label]
        after = now | set(defined(block)) | {var for var, _ in block.assigns}
        after = after | set(given_back(program, block.terminator))
        work += [(target, after) for target in successors(block)]
    return at_start


def _verify_defined(program: BlockProgram, function: BlockFunction) -> None:
    """No path reads a variable before it is written."""
    blocks = {block.label: block for block in function.blocks}
    for label, have in defined_at_start(program, function).items():
        for var in reads(blocks[label]):
            _require(
                var in have,
                f"{function.name}, block {label} reads {var} of type {var.aval} before it is written on some path",
            )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InternalError(message)


Pass = Callable[[BlockProgram], BlockProgram]


def verify_if_asked(program: BlockProgram) -> BlockProgram:
    """`verify` where the environment has LANEWISE_VERIFY=1."""
    return verify(program) if os.environ.get("LANEWISE_VERIFY") == "1" else program


def each_function(
    step: Callable[[BlockProgram, BlockFunction], Sequence[Block]],
) -> Pass:
    """A pass over one function's blocks, lifted to programs."""

    def run(program: BlockProgram) -> BlockProgram:
        functions = {
            name: replace(function, blocks=reachable(step(program, function)))
            for name, function in program.functions.items()
        }
        return replace(program, functions=functions)

    run.__name__ = step.__name__
    run.__doc__ = step.__doc__
    return run


def reachable(blocks: Sequence[Block]) -> tuple[Block, ...]:
    by_label = {block.label: block for block in blocks}
    seen: set[Label] = set()
    work = [blocks[0].label]
    while work:
        label = work.pop()
        if label not in seen:
            seen.add(label)
            work += successors(by_label[label])
    return tuple(block for block in blocks if block.label in seen)


def substitute(env: dict[Var, Atom], atom: Atom) -> Atom:
    return atom if isinstance(atom, Literal) else env.get(atom, atom)


def substitute_inputs(env: dict[Var, Atom], eqn: JaxprEqn) -> JaxprEqn:
    """The equation itself where nothing in it is substituted: most are left as they are by most passes."""
    if not any(isinstance(atom, Var) and atom in env for atom in eqn.invars):
        return eqn
    return eqn.replace(invars=[substitute(env, atom) for atom in eqn.invars])


def substitute_block(env: dict[Var, Atom], block: Block) -> Block:
    """The block reading these atoms for variables."""
    return block.with_(
        eqns=tuple(substitute_inputs(env, eqn) for eqn in block.eqns),
        assigns=tuple((var, substitute(env, atom)) for var, atom in block.assigns),
        terminator=substitute_terminator(block.terminator, env),
    )


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
        case Fork(calls) | Spawn(calls):
            own = tuple(
                replace(c, arguments=tuple((v, substitute(env, a)) for v, a in c.arguments))
                for c in calls
            )
            if isinstance(terminator, Spawn):
                return replace(terminator, calls=own, index=substitute(env, terminator.index))
            return replace(terminator, calls=own)
        case _:
            return terminator
