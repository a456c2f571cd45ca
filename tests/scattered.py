"""Programs with parts strewn over them at random: what placement must get right is what no user would write.

`scattered` traces a function and makes parts of its equations, at every depth: most are parts on their own, each of
a name drawn at random; some are left to the rules. Random placements of these names are then random placements of
equations.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.parts import parts_in
from lanewise.core.program import part_p, program_p, with_equations
from lanewise.place.moves import Actions
from programs.case import Case


def scattered(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    names: int,
    rng: random.Random,
    share: float = 0.6,
) -> Callable[..., Any]:
    """The function with parts `p0`, `p1`, …: the share of equations that are parts."""
    leaves, tree = jax.tree.flatten(args)
    trees: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        outs, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, given)))
        trees.append(out_tree)
        return [jnp.asarray(x) for x in outs]

    def change(eqn: _jax.JaxprEqn) -> _jax.JaxprEqn:
        if eqn.primitive is program_p:
            program = eqn.params["program"]
            if program.recursive:
                return eqn
            return eqn.replace(params={**eqn.params, "program": with_equations(program, change)})
        if eqn.effects or any(True for _ in _jax.subjaxprs(eqn)) or rng.random() > share:
            return eqn
        ins = [_jax.new_var(a.aval) for a in eqn.invars]
        outs = [_jax.new_var(v.aval) for v in eqn.outvars]
        code = _jax.new_jaxpr(ins, outs, [eqn.replace(invars=ins, outvars=outs)])
        params = {
            "jaxpr": _jax.close_jaxpr(code),
            "name": f"p{rng.randrange(names)}",
            "indexed": False,
        }
        return eqn.replace(primitive=part_p, params=params)

    traced = _jax.trace_at(flat, leaves)
    changed = _jax.with_eqns(traced.jaxpr, change)

    def run(*given: Any) -> Any:
        outs = _jax.eval_jaxpr(changed, *traced.captures, *jax.tree.leaves(given))
        return jax.tree.unflatten(trees[-1], outs)

    return run


def placement_of(
    fun: Callable[..., Any], args: tuple[Any, ...], places: list[Any], rng: random.Random
) -> dict[str, Any]:
    """A random placement of the parts that a function has."""
    leaves, tree = jax.tree.flatten(args)
    traced = _jax.trace_at(
        lambda *given: jax.tree.leaves(fun(*jax.tree.unflatten(tree, given))), leaves
    )
    names = sorted(set(parts_in(traced.jaxpr)))
    return {name: rng.choice(places) for name in names}


@contextlib.contextmanager
def room_for_one() -> Iterator[list[tuple[int, int]]]:
    """Every edge holds one message, which is the least: `in_flight=1` gives it as many as one iteration sends.

    Gives the edges, call after call, that have less room than with `in_flight=1`.
    """
    credits = Actions.credits
    narrowed: list[tuple[int, int]] = []

    def one(self: Actions, in_flight: int) -> dict[tuple[int, int], int]:
        edges = credits(self, 1)
        narrowed.extend(edge for edge, room in edges.items() if room > 1)
        return dict.fromkeys(edges, 1)

    with mock.patch.object(Actions, "credits", one):
        yield narrowed


def one_example(case: Case) -> tuple[Any, ...]:
    args = case.examples(np.random.default_rng(3), 2)
    leaves, tree = jax.tree.flatten(args)
    axes = _jax.broadcast_axes(case.in_axes, args)
    one = [x if axis is None else x[0] for x, axis in zip(leaves, axes, strict=True)]
    return jax.tree.unflatten(tree, [jnp.asarray(x) for x in one])


def numbers(value: Any) -> np.ndarray:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def differs(got: Any, want: Any, rtol: float) -> str:
    """What is wrong with an answer; nothing if it is right."""
    mine, theirs = jax.tree.leaves(got), jax.tree.leaves(want)
    for a, b in zip(map(numbers, mine), map(numbers, theirs), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
        if not np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True):
            return f"{a} instead of {b}"
    return ""
