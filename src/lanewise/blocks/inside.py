"""What lies inside an equation: the jaxpr that a call-like equation runs, and on which of its operands.

Third-party code wraps its control flow in `jit`, `remat`, `custom_jvp` and friends; flattening and the analyses
look through all of them with this one table. Some primitives look at the whole batch under `jax.vmap` (Equinox's
`unvmap_any` and the like): a lane's answer must not depend on its neighbours, so they are given their one-lane
meaning, which is their own implementation on one lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise._jax import Atom, Jaxpr, JaxprEqn
from lanewise.core.program import machine_inside, program_p, throw_p

# Primitive name -> the parameter that holds the code it runs on all its operands.
CALL_LIKE = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}

# Primitives whose batching rule looks at, or refuses, the batch; on one lane they are plain code.
_ONE_LANE = ("unvmap_any", "unvmap_all", "unvmap_max", "nonbatchable", "select_if_vmap", "noinline")


@dataclass(frozen=True)
class Inside:
    """Code that an equation runs, on these of its operands. `consts` go to the jaxpr's constvars."""

    jaxpr: Jaxpr
    operands: tuple[Atom, ...]
    consts: tuple[object, ...] = ()


def inside(eqn: JaxprEqn) -> Inside | None:
    """The code a call-like equation runs; None for every other equation."""
    name = eqn.primitive.name
    if name in CALL_LIKE:
        jaxpr = eqn.params[CALL_LIKE[name]]
        return Inside(jaxpr, tuple(eqn.invars), _jax.attached_consts(jaxpr))
    if eqn.primitive is program_p:
        program = eqn.params["program"]
        if eqn.params["lanes"] or eqn.params["options"].stats:
            return Inside(machine_inside(eqn), tuple(eqn.invars))
        if not program.recursive:
            function = program.functions[program.entry]
            captured = eqn.invars[: program.num_captures]
            operands = [captured[i] for i in function.captures] + list(
                eqn.invars[program.num_captures :]
            )
            return Inside(function.jaxpr, tuple(operands))
        return None
    if name == "custom_linear_solve":
        return _linear_solve(eqn)
    return _one_lane(eqn) if looks_at_batch(eqn) else None


def looks_at_batch(eqn: JaxprEqn) -> bool:
    """Whether the equation's batching rule mixes lanes, or refuses them."""
    return eqn.primitive.name in _ONE_LANE


def is_throw(eqn: JaxprEqn) -> bool:
    """A throw inside a program passes its answers on: the lane's own outcome tells of the failure."""
    return eqn.primitive is throw_p


def tests_many(eqn: JaxprEqn) -> bool:
    """Whether a `while` has a test for each element of an inner `jax.vmap`: it runs until all are done."""
    return eqn.primitive.name == "while" and bool(eqn.params["cond_jaxpr"].outvars[0].aval.shape)


def with_one_test(eqn: JaxprEqn) -> _jax.Traced:
    """The same loop with one test for all elements, those that are done kept as they are."""
    cond_n, body_n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_run, body_run = _jax.flat_jaxpr(cond), _jax.flat_jaxpr(body)

    def run(*operands: Any) -> list[Any]:
        first = [*_jax.attached_consts(cond), *operands[:cond_n]]
        second = [*_jax.attached_consts(body), *operands[cond_n : cond_n + body_n]]

        def test(carry: list[Any]) -> Any:
            return _jax.eval_jaxpr(cond_run, *first, *carry)[0]

        def turn(carry: list[Any]) -> list[Any]:
            goes_on, after = test(carry), _jax.eval_jaxpr(body_run, *second, *carry)
            return [
                jnp.where(lax.expand_dims(goes_on, range(goes_on.ndim, new.ndim)), new, old)
                for new, old in zip(after, carry, strict=True)
            ]

        start = list(operands[cond_n + body_n :])
        return lax.while_loop(lambda carry: test(carry).any(), turn, start)

    return _jax.trace(run, [atom.aval for atom in eqn.invars])


def _linear_solve(eqn: JaxprEqn) -> Inside:
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat
    consts = eqn.invars[start : start + lengths.solve]
    rest = eqn.invars[start + lengths.solve + lengths.transpose_solve :]
    return Inside(solve, (*consts, *rest), _jax.attached_consts(solve))


def _one_lane(eqn: JaxprEqn) -> Inside:
    return Inside(_traced(eqn).jaxpr, tuple(eqn.invars))


def _traced(eqn: JaxprEqn) -> _jax.Traced:
    def run(*args: object) -> Sequence[object]:
        out = eqn.primitive.impl(*args, **eqn.params)
        return list(out) if eqn.primitive.multiple_results else [out]

    return _jax.trace(run, [atom.aval for atom in eqn.invars])


def implementation(eqn: JaxprEqn) -> _jax.Traced | None:
    """What a library's own primitive does, in other primitives, if its implementation is JAX code.

    JAX's own primitives are implemented by themselves, and some by code that wants real arrays: None for those.
    """
    try:
        traced = _traced(eqn)
    except Exception:
        return None
    return None if _holds(traced.jaxpr, eqn.primitive) else traced


def _holds(jaxpr: Jaxpr, primitive: _jax.Primitive) -> bool:
    return any(
        eqn.primitive is primitive or any(_holds(inner, primitive) for inner in _jax.subjaxprs(eqn))
        for eqn in jaxpr.eqns
    )
