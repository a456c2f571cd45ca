"""Large arrays of a lane on a host: what is not copied."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
import needs
from lanewise.core.options import Options
from lanewise.cpp.kernels import kernel_for
from lanewise.diff.accumulate import accumulating
from lanewise.diff.checkpoint import Checkpoints
from lanewise.diff.vjp import vjp_program

SIZE, RECORDS, LANES = 32, 77, 3


@lw.program
def folded(weights, leaves, depth, at):
    """A matrix for each node, of its children's."""
    if depth == 0:
        return leaves[at]
    first = folded(weights, leaves, depth - 1, 2 * at)
    second = folded(weights, leaves, depth - 1, 2 * at + 1)
    return jnp.tanh(first @ weights + second @ first)


def operands() -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(SIZE, SIZE)).astype(np.float32) / 8
    leaves = rng.normal(size=(LANES, 4, SIZE, SIZE)).astype(np.float32) / 8
    return weights, leaves, np.int32(2), np.int32(0)


def by_hand(weights: Any, leaves: Any) -> Any:
    def node(first: Any, second: Any) -> Any:
        return jnp.tanh(first @ weights + second @ first)

    return node(node(leaves[0], leaves[1]), node(leaves[2], leaves[3]))


def kernels() -> tuple[str, str]:
    """The kernels of both sweeps."""
    weights, leaves, depth, at = operands()
    staged, _ = folded.stage(weights, leaves[0], depth, at)
    gradient = vjp_program(
        staged.program, (True, False, False, False), Checkpoints(records=RECORDS)
    )
    forward = gradient.forward.program
    reverse = accumulating(gradient.reverse.program, (0,))
    texts = (
        kernel_for(program, (True,) * len(program.operand_avals), Options()).text
        for program in (forward, reverse)
    )
    first, second = (text[text.index("LW_KERNEL lanewise_kernel") :] for text in texts)
    return first, second


def test_matrices_exchange_their_memory_and_products_go_to_the_sum() -> None:
    forward, reverse = kernels()
    assert ".exchange(" in reverse
    running = forward.split("finished: ;")[0]
    # A tape goes through branches that push to it without a copy.
    assert not re.search(rf"< {RECORDS * SIZE * SIZE}|< {2 * RECORDS * SIZE * SIZE}", running)
    assert re.search(r"lw_add_products<float32, lw_sum<float32>::type>\(&sum0\[0\]", reverse)


@needs.compiler
def test_gradients_are_those_by_hand() -> None:
    weights, leaves, depth, at = operands()
    own = folded.with_options(carrier="native", tape=RECORDS)

    def loss(weights: Any, leaves: Any) -> Any:
        return jnp.sum(lw.vmap(own, in_axes=(None, 0, None, None))(weights, leaves, depth, at) ** 2)

    def expected(weights: Any, leaves: Any) -> Any:
        return jnp.sum(jax.vmap(by_hand, (None, 0))(weights, leaves) ** 2)

    found = jax.jit(jax.grad(loss, (0, 1)))(weights, leaves)
    for mine, theirs in zip(found, jax.grad(expected, (0, 1))(weights, leaves), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
