"""What a program inside a program closes over is read where it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from lanewise.blocks.analysis import storage
from lanewise.blocks.form import BlockProgram, Call
from lanewise.core.options import Options
from lanewise.job.linking import blocks_of

TABLE = np.linspace(-1.0, 1.0, 400, dtype=np.float32)


@lw.program
def descend(x, step, depth):
    """A recursion that closes over a table, and hands its step on."""
    if depth == 0:
        return x + step * jnp.sum(jnp.sin(TABLE * x))
    near = descend(x, step, depth - 1)
    return descend(near, step, depth - 1)


@lw.program
def outer(x, step):
    total = x
    for i in range(20):
        total = descend(total, step * x, i % 3)
    return total


def blocks(*args: float) -> BlockProgram:
    staged, _ = outer.stage(*map(jnp.float32, args))
    varying = [False] * staged.program.num_captures + [True, True]
    return blocks_of(staged.program, varying, Options())


def test_the_table_is_no_parameter_and_is_shared() -> None:
    found = blocks(0.5, 0.1)
    given = [
        var.aval.shape
        for _, block in found.all_blocks()
        if isinstance(block.terminator, Call)
        for var, _ in block.terminator.arguments
    ]
    assert given and TABLE.shape not in given
    (table,) = [var for var in found.inputs if var.aval.shape == TABLE.shape]
    assert table in storage(found, [False, True, True]).uniform


def test_what_a_recursion_hands_on_is_not_saved() -> None:
    found = blocks(0.5, 0.1)
    saved = storage(found, [False, True, True])
    (recursion,) = [f for name, f in found.functions.items() if name.startswith("descend")]
    _, step, _ = recursion.params
    assert saved.stacks and step not in saved.stacks


def test_answers() -> None:
    xs, steps = jnp.linspace(0.1, 2.0, 5), jnp.full(5, 1e-3)
    ticked = lw.vmap(outer, carrier="ticks", schedule="sweep")(xs, steps)
    alone = jnp.stack([outer.python(x, s) for x, s in zip(xs, steps)])
    np.testing.assert_allclose(ticked, alone, rtol=1e-5)
    native = jax.vmap(outer.with_options(carrier="native"))(xs, steps)
    np.testing.assert_allclose(native, alone, rtol=1e-5)
