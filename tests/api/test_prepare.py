"""`lw.prepare`: control decided ahead, values inside a compiled function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from by_hand import compilations
from comparing import assert_same
from corpus import case_named
from lanewise.dynamic.run import STORE
from lanewise.errors import LaneError, OptionError

LANES = 3
NAMES = """fibonacci tree_network tree_folded node_total term_value checked choose_key identity adaptive_simpson
           empty_arrays""".split()


@lw.record
class Tree:
    value: float
    left: Tree | None = None
    right: Tree | None = None


@lw.program
def total(tree, w):
    if tree is None:
        return jnp.zeros_like(w)
    return jnp.tanh(tree.value + w * (total(tree.left, w) - total(tree.right, w)))


@lw.program
def positive(tree):
    assert tree.value > 0, "a value of {tree.value}"
    if tree.left is None:
        return tree.value
    return tree.value * positive(tree.left)


def random_trees(seed: int, count: int = 4) -> list[Tree]:
    rng = np.random.default_rng(seed)

    def grow(depth: int) -> Tree | None:
        if depth == 0 or rng.random() < 0.2:
            return None
        return Tree(float(rng.normal()), grow(depth - 1), grow(depth - 1))

    return [Tree(1.0, grow(3), grow(4)) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_corpus(name: str) -> None:
    case = case_named(name)
    args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), LANES))
    expected = lw.vmap(case.program, in_axes=case.in_axes, schedule="levels")(*args)
    ready = lw.prepare(case.program, in_axes=case.in_axes, gradient=False)(*args)
    assert_same(jax.jit(lambda ready, args: ready(*args))(ready, args), expected, case.rtol)
    assert_same(ready(*args), expected, case.rtol)


def test_derivatives_inside_jit() -> None:
    """Of first and second order, by tangents and adjoints."""
    w = jnp.linspace(-0.4, 0.7, 3)
    forest = lw.pack(random_trees(0))
    ready = lw.prepare(total, in_axes=(0, None))(forest, w)
    batched = lw.vmap(total, in_axes=(0, None), schedule="levels")

    def loss(w: Any, run: Any) -> Any:
        return jnp.sum(jnp.sin(run(forest, w)))

    found = jax.jit(jax.value_and_grad(loss))(w, ready)
    assert_same(found, jax.value_and_grad(lambda w: loss(w, batched))(w), 1e-5)
    pushed = jax.jit(lambda w, ready: jax.jvp(lambda w: loss(w, ready), (w,), (w,)))(w, ready)
    assert_same(pushed, (found[0], found[1] @ w), 1e-5)
    second = jax.jit(jax.hessian(loss))(w, ready)
    assert_same(second, jax.hessian(lambda w: loss(w, batched))(w), 1e-4)


def test_fresh_forests_compile_nothing() -> None:
    w = jnp.ones(3)
    ready_for = lw.prepare(total, in_axes=(0, None))

    @jax.jit
    def step(w: Any, forest: Any, ready: Any) -> Any:
        return jax.grad(lambda w: ready(forest, w).sum())(w)

    like: Any = None
    for seed in range(20):
        like = lw.pack(random_trees(seed), like=like)
        step(w, like, ready_for(like, w))
    made = STORE.made
    with compilations() as compiled:
        for seed in range(20):
            forest = lw.pack(random_trees(seed), like=like)
            found = step(w, forest, ready_for(forest, w))
            assert np.isfinite(found).all()
    assert (len(compiled), STORE.made) == (0, made)


def test_ahead_on_threads() -> None:
    """As a data loader does it: each step has the table of its own forest."""
    w = jnp.float32(0.5)
    ready_for = lw.prepare(total, in_axes=(0, None))
    forests = [lw.pack(random_trees(seed)) for seed in range(6)]
    run = jax.jit(lambda forest, ready: ready(forest, w))
    made = lw.ahead(lambda forest: (forest, ready_for(forest, w)), forests, depth=3, threads=2)
    found = [run(forest, ready) for forest, ready in made]
    batched = lw.vmap(total, in_axes=(0, None), schedule="levels")
    assert_same(found, [batched(forest, w) for forest in forests], 1e-6)


def test_lanes_that_fail() -> None:
    forest = lw.pack([Tree(2.0, Tree(3.0)), Tree(1.0, Tree(-1.0)), Tree(5.0)])
    with pytest.raises(LaneError, match=r"(?s)lane.*1"):
        lw.prepare(positive)(forest)
    ready = lw.prepare(positive, throw=False)(forest)
    answers, outcomes = jax.jit(lambda ready, forest: ready(forest))(ready, forest)
    np.testing.assert_array_equal(outcomes.ok(), [True, False, True])
    np.testing.assert_array_equal(answers, [6.0, np.nan, 5.0])


def test_a_lone_call_and_other_axes() -> None:
    w = jnp.ones(2)
    tree = lw.pack([Tree(1.0, Tree(0.5))])[0]
    ready = lw.prepare(total, in_axes=None)(tree, w)
    assert_same(jax.jit(lambda r, w: r(tree, w))(ready, w), total(tree, w), 1e-6)
    forest = lw.pack(random_trees(3, count=2))
    each = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    ready = lw.prepare(total, in_axes=(0, 1))(forest, each)
    expected = lw.vmap(total, in_axes=(0, 1), schedule="levels")(forest, each)
    assert_same(jax.jit(lambda r, each: r(forest, each))(ready, each), expected, 1e-6)


def test_wrong_calls() -> None:
    w, forest = jnp.ones(3), lw.pack(random_trees(0))
    ready_for = lw.prepare(total, in_axes=(0, None))
    with pytest.raises(OptionError, match="outside of jit"):
        jax.jit(lambda forest: ready_for(forest, w)(forest, w))(forest)
    with pytest.raises(OptionError, match=r"float32\[4\] for float32\[3\]"):
        ready_for(forest, w)(forest, jnp.ones(4))
    with pytest.raises(OptionError, match="2 entries for 1 arguments"):
        ready_for(forest, w)(forest)
    with pytest.raises(OptionError, match="prepared for other arguments"):
        ready_for(forest, w)(lw.pack([Tree(0.0)]), w)
    with pytest.raises(
        OptionError, match=r"in_axes=\(0, 0\) maps axis 0 of an argument of shape \(\)"
    ):
        lw.prepare(total, in_axes=(0, 0))(forest, 0.5)
    with pytest.raises(OptionError, match=r"give `lanewise.pack\(records\)`"):
        lw.prepare(total, in_axes=(0, None))(random_trees(0), w)
    with pytest.raises(OptionError, match="schedule='sweep': what prepare decides"):
        lw.prepare(total, schedule="sweep")
    with pytest.raises(OptionError, match="max_steps counts"):
        lw.prepare(total, in_axes=(0, None), max_steps=3)(forest, w)
    for name, why in {"mix_down": "control depends on values", "settled_tree": "in part"}.items():
        case = case_named(name)
        args = jax.tree.map(jnp.asarray, case.examples(np.random.default_rng(1), LANES))
        with pytest.raises(OptionError, match=why):
            lw.prepare(case.program, in_axes=case.in_axes)(*args)
