"""The same Tree-LSTM as a recursive program over records: by levels, and compiled whole, inside `jit`.

Trees are packed when data is loaded, as PyTorch by level has its arrays then; the slice, the levels and the index
tables are made in every step. *Prepared*, they are made by `lw.prepare`, and the rest of a step is one compiled
function. Inside `jit` a narrow network runs each lane separately (`native`), and needs none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import lanewise as lw
from dynamic.forest import Forest
from dynamic.tree_lstm import inner, leaf, level_options
from lanewise.carriers.levels import decided
from lanewise.dynamic.levels import by_levels


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.program
def tree_lstm(tree, params):
    """h of the root."""
    return node(tree, params)[0]


@lw.program
def node(tree, params):
    if tree.left is None:
        return leaf(params["words"], params["leaf"], params["leaf_bias"], tree.word)
    h0, c0 = node(tree.left, params)
    h1, c1 = node(tree.right, params)
    return inner(params["inner"], params["inner_bias"], h0, c0, h1, c1)


def records(forest: Forest) -> list[Tree]:
    made: list[Tree] = []
    nodes = zip(forest.left.tolist(), forest.right.tolist(), forest.word.tolist(), strict=True)
    for left, right, word in nodes:
        made.append(Tree(word) if left < 0 else Tree(word, made[left], made[right]))
    return [made[r] for r in forest.root.tolist()]


def packed(batches: Sequence[Forest]) -> list[Any]:
    """The minibatches, packed into arrays of one size."""
    largest: Any = None
    for batch in batches:
        largest = lw.pack(records(batch), like=largest)
    return [lw.pack(records(batch), like=largest) for batch in batches]


roots_by_program = lw.vmap(tree_lstm, in_axes=(0, None), schedule="levels")


@jax.jit
def _loss(roots: Any) -> Any:
    return jnp.sum(roots**2)


_inside = lw.vmap(tree_lstm, in_axes=(0, None), carrier="native")
roots_inside_jit = jax.jit(_inside)


@jax.jit
def train_inside_jit(params: dict[str, Any], forest: Any) -> Any:
    return jax.value_and_grad(lambda p: _loss(_inside(forest, p)))(params)


READY_FOR = {g: lw.prepare(tree_lstm, in_axes=(0, None), gradient=g) for g in (False, True)}


@functools.cache
def _with_control(gradient: bool) -> Callable[..., Any]:
    def roots(params: dict[str, Any], forest: Any, ready: Any) -> Any:
        return ready(forest, params)

    def train(params: dict[str, Any], forest: Any, ready: Any) -> Any:
        return jax.value_and_grad(lambda p: _loss(ready(forest, p)))(params)

    return jax.jit(train if gradient else roots, compiler_options=level_options())


def roots_prepared(params: dict[str, Any], forest: Any, ready: Any) -> Any:
    return _with_control(False)(params, forest, ready)


def train_prepared(params: dict[str, Any], forest: Any, ready: Any) -> Any:
    return _with_control(True)(params, forest, ready)


def train_by_program(params: dict[str, Any], forest: Any) -> Any:
    return jax.value_and_grad(lambda p: _loss(roots_by_program(forest, p)))(params)


def on_the_host(params: dict[str, Any], forests: Sequence[Any]) -> tuple[Callable[[int], Any], ...]:
    """What the host does for a minibatch: the slice and the table with its levels; and the index tables too."""
    program = tree_lstm.with_options(schedule="levels")
    job = lw.inspect(program, forests[0], params, in_axes=(0, None)).plan.job
    own = by_levels(job.program, job.varying, None)
    operands = [jax.tree.leaves((forest.roots, params)) for forest in forests]
    return (
        lambda i: own.decide(operands[i], job.examples),
        lambda i: decided(job, operands[i], gradient=True),
    )
