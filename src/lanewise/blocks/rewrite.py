"""What passes over blocks are made of: substitution, joining two blocks, one function at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lanewise import _jax
from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.form import (
    Block,
    BlockFunction,
    BlockProgram,
    Branch,
    Call,
    Label,
    TailCall,
    Terminator,
    successors,
)

Pass = Callable[[BlockProgram], BlockProgram]


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
