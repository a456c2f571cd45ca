"""`jax.checkpoint` around programs that are run by levels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.errors import OptionError, TransformError
from programs.settled import TREES, encode, settled


def given() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(3, 12))), jnp.asarray(rng.normal(size=(12, 12)) / 3)


def loss(answers: Any) -> Any:
    return jnp.sum(jnp.cos(answers))


@pytest.mark.parametrize("program", [encode, settled])
def test_gradients_are_those_of_one_tree_at_a_time(program: Any) -> None:
    with jax.enable_x64(True):
        forest, weights = lw.pack(TREES), given()
        run = lw.vmap(program, in_axes=(0, None, None), schedule="levels")

        def held(table: Any, mix: Any) -> Any:
            # Something around it, of which a part is saved.
            found = jax.checkpoint(lambda t, m: loss(run(forest, jnp.sin(t), m)))(table, mix)
            return found**2

        def alone(table: Any, mix: Any) -> Any:
            return sum(loss(program(t, jnp.sin(table), mix)) for t in TREES) ** 2

        found = jax.value_and_grad(held, (0, 1))(*weights)
        with jax.disable_jit():
            expected = jax.value_and_grad(alone, (0, 1))(*weights)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected
        )


def test_what_is_not_known_is_said() -> None:
    forest, weights = lw.pack(TREES), given()
    run = lw.vmap(encode, in_axes=(0, None, None), schedule="levels")

    def held(table: Any, mix: Any) -> Any:
        return jax.checkpoint(lambda t, m: loss(run(forest, t, m)))(table, mix)

    with pytest.raises(OptionError, match="outside jit"):
        jax.jit(jax.grad(held))(*weights)
    with pytest.raises(TransformError, match=r"Take jax.checkpoint away for it"):
        jax.grad(lambda *w: jnp.sum(jax.grad(held)(*w)))(*weights)
