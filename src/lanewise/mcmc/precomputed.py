"""The parts of a density that depend on constants alone, computed once.

A model may factorize a matrix of its data, or take the logarithms of its counts' factorials, each time the density is
evaluated. XLA moves such code out of its loops; a kernel would run it at every step of every chain. So the density is
traced, and expensive operations (factors and products of matrices, functions such as `exp` and `lgamma`) on constants
alone run when it is traced, with all that they depend on, in one function that is compiled for it. Sums of their
results belong to it. Other cheap operations on constants stay where they are: their results may be larger than their
operands.

A table of data with many rows and few columns, which a regression multiplies with its weights, is stored by columns:
both that product and its gradient's then read along them.

>>> import jax, jax.numpy as jnp
>>> density = lambda x: -((jnp.linalg.cholesky(4.0 * jnp.eye(2)) @ x) ** 2).sum()
>>> "cholesky" in str(jax.make_jaxpr(precomputed(density))(jnp.ones(2)))
False
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn, Var
from lanewise.core.primitives.facts import Kind, facts_of, is_function, is_matrix_work

# Functions of fewer numbers than this are left to the C++ compiler: a function compiled for them takes longer.
LEAST_NUMBERS = 8
# A matrix of fewer columns is stored by columns: a column is long enough for vector code, and a row is not.
NARROW = 16


def precomputed(density: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same density, with expensive operations on constants alone evaluated while it is traced."""

    @functools.wraps(density)
    def run(position: Any) -> Any:
        traced: Any = jax.make_jaxpr(density)(position)
        code = _jax.flat_jaxpr(traced)
        consts = _jax.attached_consts(traced)
        known = {var for var, const in zip(code.invars, consts) if not isinstance(const, Tracer)}
        early = _early(code, known)
        names = dict(zip(code.invars, (*consts, position), strict=True))
        values = _jax.Environment(names, names.values())
        found = _evaluated(code, early, {var: names[var] for var in known})
        values.bind(found, found.values())
        for at, eqn in enumerate(code.eqns):
            if at not in early:
                values.bind(eqn.outvars, _run(eqn, values.read(eqn.invars)))
        (value,) = values.read(code.outvars)
        return value

    return run


def _evaluated(code: Jaxpr, early: set[int], known: Mapping[Var, Any]) -> dict[Var, Any]:
    """The results of some equations that others, or the caller of the density, read."""
    if not early:
        return {}
    made = {var for at in early for var in code.eqns[at].outvars}
    late = [eqn for at, eqn in enumerate(code.eqns) if at not in early]
    read = [atom for eqn in late for atom in eqn.invars] + [*code.outvars]
    wanted = list(dict.fromkeys(atom for atom in read if isinstance(atom, Var) and atom in made))

    def evaluate(*consts: Any) -> list[Any]:
        values = _jax.Environment(known, consts)
        for at in sorted(early):
            eqn = code.eqns[at]
            values.bind(eqn.outvars, _jax.run_eqn(eqn, values.read(eqn.invars)))
        return values.read(wanted)

    with jax.ensure_compile_time_eval():
        found = jax.jit(evaluate)(*known.values())
    return dict(zip(wanted, found))


def _run(eqn: JaxprEqn, operands: list[Any]) -> list[Any]:
    """An equation that has the position in it; a narrow matrix of data that multiplies a vector is transposed first."""
    if eqn.primitive.name != "dot_general" or any(eqn.params["dimension_numbers"][1]):
        return _jax.run_eqn(eqn, operands)
    summed, batched = eqn.params["dimension_numbers"]
    for side, other in ((0, 1), (1, 0)):
        matrix = operands[side]
        known = np.ndim(matrix) == 2 and not isinstance(matrix, Tracer)
        if known and summed[side] == (1,) and np.ndim(operands[other]) == 1:
            rows, columns = matrix.shape
            if columns < NARROW <= rows:
                operands[side] = np.ascontiguousarray(np.asarray(matrix).T)
                sums = tuple((0,) if at == side else axes for at, axes in enumerate(summed))
                eqn = eqn.replace(params={**eqn.params, "dimension_numbers": (sums, batched)})
                break
    return _jax.run_eqn(eqn, operands)


def _early(code: Jaxpr, known: set[Var]) -> set[int]:
    """Which equations to evaluate at once: those that are known and expensive, those they need, and sums of them."""
    makes: dict[Var, int] = {}
    expensive: list[int] = []
    heavy: set[Var] = set()
    for at, eqn in enumerate(code.eqns):
        inputs = [atom for atom in eqn.invars if isinstance(atom, Var)]
        if eqn.effects or not all(atom in known or atom in makes for atom in inputs):
            continue
        makes.update(dict.fromkeys(eqn.outvars, at))
        # A reduction makes an expensive result smaller.
        less = facts_of(eqn).kind is Kind.REDUCTION and not heavy.isdisjoint(inputs)
        if less or any(map(_is_expensive, _jax.equations((eqn,)))):
            expensive.append(at)
            heavy.update(eqn.outvars)
    found: set[int] = set()
    while expensive:
        at = expensive.pop()
        if at not in found:
            found.add(at)
            needs = (atom for atom in code.eqns[at].invars if isinstance(atom, Var))
            expensive += [makes[atom] for atom in needs if atom in makes]
    return found


def _is_expensive(eqn: JaxprEqn) -> bool:
    numbers = max((var.aval.size for var in eqn.outvars), default=0)
    return is_matrix_work(eqn) or (is_function(eqn) and numbers >= LEAST_NUMBERS)
