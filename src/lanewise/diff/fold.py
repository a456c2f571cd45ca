"""Adjoints of what is read by index are added in place.

JAX's rule for a read by index makes an array of zeros, writes the adjoint there and adds the whole to the sum so far:
for a table of a million entries that is two million operations for one read. Where the zeros are only added to
something, the adjoint is added to that, at its place. What adds up may stand behind further sums of the same kind.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.core.primitives.facts import adds_at, is_sum


def folded(jaxpr: _jax.Jaxpr) -> _jax.Jaxpr:
    """The same code with every `sum + (zeros with an update)` as an update of the sum."""
    made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    reads = Counter(a for eqn in jaxpr.eqns for a in eqn.invars if not isinstance(a, _jax.Literal))
    reads.update(a for a in jaxpr.outvars if not isinstance(a, _jax.Literal))

    def only_read_here(
        atom: _jax.Atom, test: Callable[[_jax.JaxprEqn], bool]
    ) -> _jax.JaxprEqn | None:
        if isinstance(atom, _jax.Literal) or reads[atom] != 1:
            return None
        eqn = made.get(atom)
        return eqn if eqn and test(eqn) else None

    def terms(eqn: _jax.JaxprEqn) -> list[_jax.Atom]:
        """What a sum of sums adds."""
        found = []
        for atom in eqn.invars:
            part = (
                only_read_here(atom, is_sum)
                if atom.aval.shape == eqn.outvars[0].aval.shape
                else None
            )
            found += terms(part) if part else [atom]
        return found

    sums: dict[_jax.Var, tuple[list[_jax.Atom], list[_jax.JaxprEqn]]] = {}
    for eqn in jaxpr.eqns:
        if is_sum(eqn) and eqn.outvars[0].aval.shape:
            whole, updates = [], []
            for atom in terms(eqn):
                update = only_read_here(atom, _adds_part)
                if update and is_zeros(update.invars[0], made):
                    updates.append(update)
                else:
                    whole.append(atom)
            if updates and len(whole) + len(updates) > 1:
                sums[eqn.outvars[0]] = (whole, updates)
    if not sums:
        return jaxpr

    def run(*args: Any) -> list[Any]:
        values = _jax.Environment(jaxpr.invars, args)
        for eqn in jaxpr.eqns:
            if eqn.outvars and eqn.outvars[0] in sums:
                whole, updates = sums[eqn.outvars[0]]
                if not whole:
                    whole, updates = [updates[0].outvars[0]], updates[1:]
                total = functools.reduce(lax.add, values.read(whole))
                for update in updates:
                    total = _updated(update, total, values.read(update.invars[1:]))
                outs = [total]
            else:
                outs = _jax.run_eqn(eqn, values.read(eqn.invars))
            values.bind(eqn.outvars, outs)
        return values.read(jaxpr.outvars)

    traced = _jax.trace(run, [v.aval for v in jaxpr.invars])
    assert not traced.captures
    return traced.jaxpr


def _adds_part(eqn: _jax.JaxprEqn) -> bool:
    """Whether an update of zeros adds a part to them."""
    return adds_at(eqn) or eqn.primitive.name == "dynamic_update_slice"


def _updated(eqn: _jax.JaxprEqn, total: Any, rest: list[Any]) -> Any:
    """The update of an equation, added to a sum in place of zeros."""
    if eqn.primitive.name == "dynamic_update_slice":
        part, *starts = rest
        # The equation's own starts: a negative one is out of range by now, and clipped, not counted from the end.
        old = lax.dynamic_slice(total, starts, part.shape, allow_negative_indices=False)
        new = lax.add(old, part)
        return lax.dynamic_update_slice(total, new, starts, allow_negative_indices=False)
    return _jax.run_eqn(eqn, [total, *rest])[0]


def is_zeros(atom: _jax.Atom, made: dict[_jax.Var, _jax.JaxprEqn]) -> bool:
    """Whether a value is zero by how it is made."""
    if isinstance(atom, _jax.Literal):
        return bool(jnp.ndim(atom.val) == 0 and atom.val == 0)
    eqn = made.get(atom)
    if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
        return False
    return is_zeros(eqn.invars[0], made)
