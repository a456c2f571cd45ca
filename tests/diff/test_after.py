"""Loops in reverse that read the state after an iteration."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise import _jax
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.vjp import vjp_program

WIDTH = 24


@lw.program
def recurrent(w, x, n):
    """The derivative of `tanh` reads its result, which is the next state."""
    i = 0
    while i < n:
        x = jnp.tanh(w @ x)
        i += 1
    return x


@lw.program
def hidden(w, x, n):
    """What the derivative reads is no state."""
    i = 0
    while i < n:
        x = 0.5 * x + jnp.tanh(w @ x)
        i += 1
    return x


def operands(n: int = 3) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 5
    return w, rng.normal(size=WIDTH).astype(np.float32), n


def products_in_loops(jaxpr: Any, inside: bool = False) -> int:
    found = 0
    for eqn in jaxpr.eqns:
        found += inside and eqn.primitive.name == "dot_general"
        for inner in _jax.subjaxprs(eqn):
            found += products_in_loops(inner, inside or eqn.primitive.name == "while")
    return found


def products_of_reverse(program: Any) -> int:
    staged, _ = program.stage(*operands())
    reverse = vjp_program(staged.program, (True, True, False), Checkpoints()).reverse.program
    return sum(products_in_loops(function.jaxpr) for function in reverse.functions.values())


def test_what_the_next_state_holds_is_not_computed_again() -> None:
    """Both run their body again on the way to a state that is not kept; one of them also for an iteration's reverse."""
    assert products_of_reverse(hidden) == products_of_reverse(recurrent) + 1


@pytest.mark.parametrize("setting", ["auto", 1, 3])
@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_gradients_are_those_of_a_scan(setting: Any, n: int) -> None:
    def plain(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.tanh(w @ x), None), x, length=n)[0].sum()

    w, x, _ = operands()
    run = recurrent.with_options(checkpoints=setting)
    found = jax.grad(lambda w, x: run(w, x, n).sum(), (0, 1))(w, x)
    for own, expected in zip(found, jax.grad(plain, (0, 1))(w, x), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)
