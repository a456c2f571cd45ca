"""Lanes that read the same place of a shared array run together.

A block that looks up its weights (`layers[i]`, `experts[choice]`) with an index of the lane's own would copy them for
every lane: what was one matrix product for all lanes becomes one for each. So the index counts as part of the place a
lane is at. A run of the block takes one index, the lanes that agree with it advance and share what is read, and the
others wait for their turn, where more lanes may have gathered.

Which index: one that enough lanes have, the most if there are several such; else the smallest, because most indices
count up and a lane that is behind may catch up with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lanewise._jax import Atom, JaxprEqn, Literal, Var
from lanewise.blocks.form import Block
from lanewise.core.primitives.facts import is_lookup

# Reading fewer elements than this for each lane costs less than waiting.
SHARED_ELEMENTS = 1024

# Lanes that agree are enough for a run at full width if they are one of this many equal groups.
FEWEST_GROUPS = 4
# Lanes are counted by their index modulo this.
BUCKETS = 64

# An index of more numbers than this is not a place but a selection.
MOST_NUMBERS = 4


@dataclass(frozen=True, eq=False)
class Lookup:
    """An equation that reads a shared array at the lane's own `indices`."""

    eqn: JaxprEqn
    indices: tuple[Var, ...]


def lookups(block: Block, is_uniform: Callable[[Var], bool]) -> tuple[Lookup, ...]:
    """The large reads of shared arrays whose indices do not depend on the result of such a read."""
    defined: set[Var] = set()
    uniform: set[Var] = set()
    after_lookup: set[Var] = set()
    found: list[Lookup] = []

    def same(atom: Atom) -> bool:
        if isinstance(atom, Literal):
            return True
        return atom in uniform if atom in defined else is_uniform(atom)

    for eqn in block.eqns:
        own = [atom for atom in eqn.invars[1:] if isinstance(atom, Var) and not same(atom)]
        late = any(atom in after_lookup for atom in eqn.invars if isinstance(atom, Var))
        if (
            is_lookup(eqn)
            and same(eqn.invars[0])
            and own
            and not late
            and all(math.prod(atom.aval.shape) <= MOST_NUMBERS for atom in own)
            and math.prod(eqn.outvars[0].aval.shape) >= SHARED_ELEMENTS
        ):
            found.append(Lookup(eqn, tuple(own)))
            after_lookup.update(eqn.outvars)
        elif late:
            after_lookup.update(eqn.outvars)
        elif not eqn.effects and all(map(same, eqn.invars)):
            uniform.update(eqn.outvars)
        defined.update(eqn.outvars)
    return tuple(found)


def index_for(column: Any, mask: Any, enough: int) -> Any:
    """The index whose lanes run next: one that at least `enough` lanes of the mask have, or the smallest.

    >>> everyone = jnp.ones(5, bool)
    >>> int(index_for(jnp.array([3, 7, 7, 9, 7]), everyone, enough=3))
    7
    >>> int(index_for(jnp.array([3, 7, 7, 9, 7]), everyone, enough=4))
    3
    """
    largest = jnp.iinfo(column.dtype).max
    bucket = column & (BUCKETS - 1)
    held = ((bucket[:, None] == jnp.arange(BUCKETS, dtype=column.dtype)) & mask[:, None]).sum(0)
    fullest = mask & ((bucket == jnp.argmax(held)) | (held.max() < enough))
    return jnp.where(fullest, column, largest).min(initial=largest)


def same_value(eqns: Sequence[JaxprEqn], first: Atom, second: Atom) -> bool:
    """Whether two variables certainly have the same value: equal equations lead to them."""
    made_by = {var: eqn for eqn in eqns for var in eqn.outvars}

    def same(first: Atom, second: Atom) -> bool:
        if first is second:
            return True
        if isinstance(first, Literal) and isinstance(second, Literal):
            return first.aval == second.aval and np.array_equal(first.val, second.val)
        one, other = (made_by.get(a) if isinstance(a, Var) else None for a in (first, second))
        return (
            one is not None
            and other is not None
            and not one.effects
            and one.primitive is other.primitive
            and one.params == other.params
            and len(one.outvars) == len(other.outvars) == 1
            and all(map(same, one.invars, other.invars))
        )

    return same(first, second)


def needed_for(block: Block, wanted: Sequence[Var]) -> tuple[JaxprEqn, ...]:
    """The block's equations that lead to these variables."""
    alive = set(wanted)
    kept: list[JaxprEqn] = []
    for eqn in reversed(block.eqns):
        if alive.intersection(eqn.outvars):
            kept.append(eqn)
            alive.update(atom for atom in eqn.invars if isinstance(atom, Var))
    return tuple(reversed(kept))
