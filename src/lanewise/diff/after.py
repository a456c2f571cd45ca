"""What an iteration computes and hands on is read in the state after it.

A loop that keeps states runs its body again in reverse, from the state before each iteration. The reverse comes from
the iteration after, whose state it has just read: what the body computes of that need not be computed again. (The
derivative of `tanh` reads its result. If that is the next state, as in a recurrent network, no product is made twice.)
It costs a copy of what is read from one iteration to the one before, so it is done for what is expensive alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lanewise import _jax
from lanewise.core.primitives.facts import Cost, cost_of, size_of

# What is not computed again must be this many operations for each number that is read instead.
OPERATIONS_A_NUMBER = 8


def reading_after(
    code: _jax.Jaxpr, state: Sequence[_jax.Var], kept: Sequence[bool]
) -> tuple[_jax.Jaxpr, tuple[int, ...]]:
    """Code of an iteration's reverse that reads the state after it, where that saves work, and which parts it reads.

    The last results of `code` are that state, which goes. `state` are its inputs for the state before, behind which the
    parts that are read come to stand. `kept`: which parts are kept anyway.
    """
    number = len(state)
    found, nexts = code.outvars[:-number], code.outvars[-number:]
    plain = _jax.without_unused(_jax.new_jaxpr(code.invars, found, code.eqns))
    made = {var for eqn in plain.eqns for var in eqn.outvars}
    usable = {
        var: i
        for i, (var, flag) in enumerate(zip(nexts, kept, strict=True))
        if flag and not isinstance(var, _jax.Literal) and var in made
    }
    inputs = {var: _jax.new_var(var.aval) for var in usable}
    replaced = _replaced(plain, inputs)
    read = _jax.used_inputs(replaced)[len(code.invars) :]
    chosen = list(itertools.compress(inputs, read))
    saved = _operations(plain) - _operations(replaced)
    if not chosen or saved < OPERATIONS_A_NUMBER * sum(map(size_of, chosen)):
        return plain, ()
    replaced = _replaced(plain, {var: inputs[var] for var in chosen})
    at = code.invars.index(state[-1]) + 1
    own = len(code.invars)
    invars = [*replaced.invars[:at], *replaced.invars[own:], *replaced.invars[at:own]]
    return _jax.new_jaxpr(invars, replaced.outvars, replaced.eqns), tuple(usable[v] for v in chosen)


def _replaced(code: _jax.Jaxpr, inputs: dict[_jax.Var, _jax.Var]) -> _jax.Jaxpr:
    """The code with further inputs in place of what it computes."""

    def atom(a: _jax.Atom) -> _jax.Atom:
        return a if isinstance(a, _jax.Literal) else inputs.get(a, a)

    eqns = [eqn.replace(invars=[atom(a) for a in eqn.invars]) for eqn in code.eqns]
    outs = [atom(a) for a in code.outvars]
    return _jax.without_unused(_jax.new_jaxpr([*code.invars, *inputs.values()], outs, eqns))


def _operations(code: _jax.Jaxpr) -> float:
    total: Cost = cost_of(code.eqns)
    return total.operations
