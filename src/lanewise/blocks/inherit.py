"""Parameters that every call gives the same input.

A program called inside another takes what it closes over, the data a density is of for example, as parameters. Such a
parameter would be copied at each call and, though all lanes share the input, be spread over the lanes, since lanes are
called at different times. Where every call gives a parameter the same input, or hands its own value on, it *is* that
input.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise._jax import Atom, Var
from lanewise.blocks.form import Block, BlockProgram, Call, TailCall, defined
from lanewise.blocks.rewrite import substitute, substitute_terminator


def inherit(program: BlockProgram) -> BlockProgram:
    """Read inputs where they are, not through parameters."""
    while env := _inherited(program):
        functions = {
            name: replace(
                function,
                params=tuple(var for var in function.params if var not in env),
                blocks=tuple(_reading_through(block, env) for block in function.blocks),
            )
            for name, function in program.functions.items()
        }
        program = replace(program, functions=functions)
    return program


def _inherited(program: BlockProgram) -> dict[Var, Atom]:
    """The parameters that every call gives one and the same variable that never changes, with that variable."""
    given: dict[Var, set[Var | None]] = {}
    changing: set[Var] = {var for f in program.functions.values() for var in f.results}
    for _, block in program.all_blocks():
        changing.update(defined(block), (var for var, _ in block.assigns))
        if isinstance(block.terminator, Call | TailCall):
            for var, atom in block.terminator.arguments:
                if atom is not var:
                    given.setdefault(var, set()).add(atom if isinstance(atom, Var) else None)
    fixed = {*program.inputs, *(var for var, _ in program.constants)} - changing - given.keys()
    found: dict[Var, Atom] = {}
    for var, atoms in given.items():
        if var not in changing and var not in program.inputs and len(atoms) == 1:
            (atom,) = atoms
            if atom in fixed:
                found[var] = atom
    return found


def _reading_through(block: Block, env: dict[Var, Atom]) -> Block:
    terminator = block.terminator
    if isinstance(terminator, Call | TailCall):
        kept = tuple((var, atom) for var, atom in terminator.arguments if var not in env)
        terminator = replace(terminator, arguments=kept)
    return block.with_(
        eqns=tuple(
            eqn.replace(invars=[substitute(env, atom) for atom in eqn.invars])
            if any(isinstance(atom, Var) and atom in env for atom in eqn.invars)
            else eqn
            for eqn in block.eqns
        ),
        assigns=tuple((var, substitute(env, atom)) for var, atom in block.assigns),
        terminator=substitute_terminator(terminator, env),
    )
