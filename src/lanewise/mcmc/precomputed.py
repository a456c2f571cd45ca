"""What a density computes from constants alone, computed once.

A model may factorize a matrix of its data, or invert one, each time it is asked for the density. XLA takes such code
out of its loops; a kernel would run it at every step of every chain. So the density is traced, and what feeds expensive
operations on constants alone runs when it is traced. Cheap operations on constants stay where they are: their results
may be larger than what they are made of.

>>> import jax, jax.numpy as jnp
>>> density = lambda x: -((jnp.linalg.cholesky(4.0 * jnp.eye(2)) @ x) ** 2).sum()
>>> "cholesky" in str(jax.make_jaxpr(precomputed(density))(jnp.ones(2)))
False
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from lanewise import _jax
from lanewise._jax import Jaxpr, JaxprEqn, Var
from lanewise.core.primitives.facts import is_matrix_work


def precomputed(density: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same density, with what is expensive and depends on constants alone evaluated while it is traced."""

    @functools.wraps(density)
    def run(position: Any) -> Any:
        traced: Any = jax.make_jaxpr(density)(position)
        code = _jax.flat_jaxpr(traced)
        consts = _jax.attached_consts(traced)
        known = {var for var, const in zip(code.invars, consts) if not isinstance(const, Tracer)}
        early = {id(code.eqns[at]) for at in _early(code, known)}

        def rule(eqn: JaxprEqn, arguments: list[Any]) -> list[Any]:
            with jax.ensure_compile_time_eval() if id(eqn) in early else contextlib.nullcontext():
                return _jax.run_eqn(eqn, arguments)

        (value,) = _jax.evaluate(code, (*consts, position), rule)
        return value

    return run


def _early(code: Jaxpr, known: set[Var]) -> set[int]:
    """Which equations to evaluate at once: those that are known and expensive, and those they need."""
    makes: dict[Var, int] = {}
    expensive: list[int] = []
    for at, eqn in enumerate(code.eqns):
        inputs = [atom for atom in eqn.invars if isinstance(atom, Var)]
        if eqn.effects or not all(atom in known or atom in makes for atom in inputs):
            continue
        makes.update(dict.fromkeys(eqn.outvars, at))
        if any(map(is_matrix_work, _jax.equations((eqn,)))):
            expensive.append(at)
    found: set[int] = set()
    while expensive:
        at = expensive.pop()
        if at not in found:
            found.add(at)
            needs = (atom for atom in code.eqns[at].invars if isinstance(atom, Var))
            expensive += [makes[atom] for atom in needs if atom in makes]
    return found
