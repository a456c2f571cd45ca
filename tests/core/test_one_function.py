"""Code as one function of machine code on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import needs
from lanewise.core.one_function import as_one_function


def wander(x, n):
    """Loops and branches, with an array for every lane."""

    def turn(state):
        i, y = state
        return i + 1, lax.cond(i % 2 == 0, jnp.sin, lambda v: v * v, y)

    return [lax.map(lambda a: lax.while_loop(lambda s: s[0] < a[1], turn, (0, a[0]))[1], (x, n))]


def test_it_is_the_same_code() -> None:
    x, n = jnp.linspace(0.1, 2.0, 24).reshape(8, 3), jnp.arange(8)
    (found,) = jax.jit(lambda *args: as_one_function(wander, *args))(x, n)
    np.testing.assert_allclose(found, wander(x, n)[0], rtol=1e-6)
    (eager,) = as_one_function(wander, x, n)
    np.testing.assert_allclose(eager, found, rtol=1e-6)


@needs.on_cpu
def test_the_outermost_call_is_marked() -> None:
    x, n = jnp.ones((8, 3)), jnp.arange(8)
    lowered = jax.jit(lambda *args: as_one_function(wander, *args)).lower(x, n)
    text = lowered.compile().as_text() or ""
    entry = text[text.index("ENTRY") :]
    assert 'xla_cpu_small_call="true"' in entry
    assert " while(" not in entry


def test_an_operand_that_nothing_reads() -> None:
    """XLA would end the process."""
    run = jax.jit(lambda x, y: as_one_function(lambda x, y: [x + 1.0, y * 0], x, y))
    more, nothing = run(jnp.ones(3), jnp.arange(4))
    assert more.tolist() == [2.0, 2.0, 2.0] and nothing.tolist() == [0, 0, 0, 0]


def test_arrays_closed_over_and_vmap() -> None:
    table = jnp.arange(4.0)

    def scaled(x):
        return as_one_function(lambda v: [table * v, jnp.float32(7)], x)

    rows, constant = jax.jit(jax.vmap(scaled))(jnp.array([1.0, 2.0]))
    assert rows.tolist() == [[0, 1, 2, 3], [0, 2, 4, 6]] and constant.tolist() == [7, 7]
