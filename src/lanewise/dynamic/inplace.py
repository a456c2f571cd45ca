"""When a launch gathers its rows before all else, so that arenas are written in place.

A launch gathers rows from an arena, and writes results into the same one. XLA does that in place if it knows that all
gathers come before the first write. It does not know where

* the first result that is written does not depend on some of the rows, so that these may as well be read later;
* two results go into one arena, and a gather is fused with the write of the second.

There it copies the whole arena at every launch, which takes many times as long as the launch. So the rows of such
pieces are gathered by a loop of one turn: it is one operation to XLA, which all results wait for, and nothing is fused
across it. (`lax.optimization_barrier` is gone before XLA fuses for a CPU.) It costs a pass over these rows.

XLA for a CPU fuses values that are used once, from a result back to a row. What is used more often is kept in memory,
as are products. XLA for a GPU computes cheap values again in each kernel that uses them, so that there nearly every
level of the reverse had a gather in a write. The barrier stays there, and costs nothing elsewhere: the reverse always
has it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import JaxprEqn, Var
from lanewise.core.primitives.facts import Effort, effort_of
from lanewise.dynamic.table import Type


@functools.lru_cache(maxsize=4096)
def gathers_first(
    code: _jax.Jaxpr, rows: tuple[Type | None, ...], results: tuple[Type, ...]
) -> bool:
    """Whether the last inputs of code, which are in the arenas of `rows`, have to be gathered before all else.

    Its first outputs go into the arenas of `results`, in this order. None: in no arena.
    """
    inputs = code.invars[len(code.invars) - len(rows) :]
    made = {var: eqn for eqn in code.eqns for var in eqn.outvars}
    read = [atom for eqn in code.eqns for atom in eqn.invars]
    uses = Counter(a for a in (*read, *code.outvars) if isinstance(a, Var))

    def reached(outs: Sequence[Any], through: Callable[[Var, JaxprEqn], bool]) -> set[Var]:
        todo, found = [v for v in outs if isinstance(v, Var)], set()
        while todo:
            var = todo.pop()
            if var not in found:
                found.add(var)
                if var in made and through(var, made[var]):
                    todo += (a for a in made[var].invars if isinstance(a, Var))
        return found

    for type_ in set(results):
        mine = {v for v, t in zip(inputs, rows, strict=True) if t == type_ and uses[v]}
        outs = [v for v, t in zip(code.outvars, results, strict=False) if t == type_]
        if mine - reached(outs[:1], lambda var, eqn: True):
            return True
        fused = reached(outs, lambda var, eqn: uses[var] == 1 and _is_fused(eqn))
        if len(outs) > 1 and mine & fused:
            return True
    return False


def _is_fused(eqn: JaxprEqn) -> bool:
    held = [each for each in _jax.equations((eqn,)) if not [*_jax.subjaxprs(each)]]
    return all(effort_of(each) <= Effort.FUNCTION for each in held)


def before_all_else(tables: Any, rows: Callable[[Any], Sequence[Any]]) -> list[Any]:
    """`rows(0)`, by a loop of one turn; on a GPU by a barrier, as a loop there waits for the host.

    How many turns is read from a table, or XLA would unroll the loop; and `rows` is given the turn's number, to add to
    the first row, or XLA would move the work out of it.
    """

    def once() -> list[Any]:
        turns = jnp.where(tables[0] >= 0, 1, 0)
        init = [jnp.zeros(s.shape, s.dtype) for s in jax.eval_shape(rows, 0)]
        return lax.fori_loop(0, turns, lambda turn, _: list(rows(turn)), init)

    def barred() -> list[Any]:
        return list(lax.optimization_barrier(tuple(rows(0))))

    return lax.platform_dependent(default=once, cuda=barred, rocm=barred)
