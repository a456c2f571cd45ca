"""The dynamic benchmark compares what computes the same: as a table, as a program,
lazily, and in PyTorch by level and by node."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import needs
from dynamic import program
from dynamic import tree_lstm as ours
from dynamic.forest import forest, weights

WIDTH = 8


@pytest.fixture(scope="module")
def answers() -> Any:
    """The loss and its gradient, by the table."""
    params = jax.tree.map(jnp.asarray, weights(WIDTH))
    batch = forest(3, seed=0)
    return params, batch, ours.train_by_table(params, batch)


def test_ours_agree(answers: Any) -> None:
    params, batch, (loss, grads) = answers
    other, others = ours.train_lazily(params, batch.trees())
    np.testing.assert_allclose(loss, other, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, others)
    roots = ours.roots_by_table(params, batch)
    np.testing.assert_allclose(jnp.sum(roots**2), loss, rtol=1e-5)
    for lazily in (ours.roots_lazily, ours.roots_finely):
        np.testing.assert_allclose(lazily(params, batch.trees()), roots, atol=1e-5)
    (packed,) = program.packed([batch])
    np.testing.assert_allclose(program.roots_by_program(packed, params), roots, atol=1e-5)
    _, others = program.train_by_program(params, packed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, others)
    _, finely = ours.train_finely(params, batch.trees())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, finely)


def test_pytorch_agrees(answers: Any) -> None:
    _, batch, (loss, grads) = answers
    needs.library("torch")
    from dynamic import in_torch as peer

    theirs = peer.parameters(weights(WIDTH))
    for train, given in ((peer.by_level_training, batch), (peer.by_node_training, batch.trees())):
        np.testing.assert_allclose(train(theirs, given), loss, rtol=1e-4)
        for name, grad in grads.items():
            expected: Any = theirs[name].grad
            np.testing.assert_allclose(grad, expected, rtol=1e-2, atol=1e-4)
    roots = peer.by_level_forward(theirs, batch)
    np.testing.assert_allclose(roots, peer.by_node_forward(theirs, batch.trees()), atol=1e-5)
