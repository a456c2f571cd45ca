"""A binary Tree-LSTM over a forest (Tai et al. 2015), h of each root: as a table, recorded lazily, and at the
limit."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from dynamic.forest import Forest
from lanewise.core.profile import profile_of
from lanewise.dynamic.run import Prepared, prepare
from lanewise.dynamic.table import Piece, Table, Type, piece

NAMES = ("words", "leaf", "leaf_bias", "inner", "inner_bias")
INT = Type((), np.dtype(np.int32))


def leaf(words: Any, weight: Any, bias: Any, word: Any) -> Any:
    i, o, u = jnp.split(words[word] @ weight + bias, 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def inner(weight: Any, bias: Any, h0: Any, c0: Any, h1: Any, c1: Any) -> Any:
    gates = jnp.split(jnp.concatenate([h0, h1]) @ weight + bias, 5)
    i, f0, f1, o = map(jax.nn.sigmoid, gates[:4])
    c = i * jnp.tanh(gates[4]) + f0 * c0 + f1 * c1
    return o * jnp.tanh(c), c


lazy_leaf, lazy_inner = lw.op(leaf), lw.op(inner)


@functools.cache
def pieces(width: int) -> tuple[Piece, Piece]:
    def like(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    from dynamic.forest import WORDS

    shared = [like(WORDS, width), like(width, 3 * width), like(3 * width)]
    return (
        piece(leaf, shared, [np.int32(0)]),
        piece(inner, [like(2 * width, 5 * width), like(5 * width)], [like(width)] * 4),
    )


def table(forest: Forest, width: int) -> tuple[Table, np.ndarray]:
    """The table of a forest, and the values that are its roots' h."""
    # All leaves are called before the rest. `value` has each node's h; its c is the next one.
    leaves, inner = np.flatnonzero(forest.left < 0), np.flatnonzero(forest.left >= 0)
    num = len(leaves)
    value = np.empty(len(forest.left), np.int32)
    value[leaves] = np.arange(0, 2 * num, 2, dtype=np.int32)
    value[inner] = np.arange(2 * num, 2 * len(value), 2, dtype=np.int32)
    operands = np.empty(num + 4 * len(inner), np.int32)
    operands[:num] = ~np.arange(num, dtype=np.int32)
    children = operands[num:].reshape(-1, 4)
    children[:, 0], children[:, 2] = value[forest.left[inner]], value[forest.right[inner]]
    np.add(children[:, ::2], 1, out=children[:, 1::2])
    calls = np.zeros(len(value), np.int32)
    calls[num:] = 1
    made = Table(pieces(width), ((0, 1, 2), (3, 4)), calls, operands, {INT: forest.word[leaves]})
    return made, value[forest.root]


def prepared(forest: Forest, width: int, gradient: bool) -> Prepared:
    made, roots = table(forest, width)
    return prepare(made, [np.zeros(0, np.int64), roots], gradient=gradient)


def _roots(params: dict[str, Any], ready: Prepared, trees: int) -> Any:
    return ready([params[n] for n in NAMES]).rows[1][:trees]


@functools.cache
def _forward() -> Any:
    return jax.jit(_roots, static_argnums=2, compiler_options=level_options())


@functools.cache
def _train() -> Any:
    def train(params: dict[str, Any], ready: Prepared, trees: int) -> Any:
        return jax.value_and_grad(lambda p: jnp.sum(_roots(p, ready, trees) ** 2))(params)

    return jax.jit(train, static_argnums=2, compiler_options=level_options())


def level_options() -> dict[str, bool | int]:
    """As the documentation advises."""
    return dict(profile_of(jax.default_backend()).level_options)


def roots_by_table(params: dict[str, Any], forest: Forest, ready: Prepared | None = None) -> Any:
    width = params["words"].shape[1]
    return _forward()(params, ready or prepared(forest, width, False), len(forest.root))


def train_by_table(params: dict[str, Any], forest: Forest, ready: Prepared | None = None) -> Any:
    width = params["words"].shape[1]
    return _train()(params, ready or prepared(forest, width, True), len(forest.root))


def roots_lazily(params: dict[str, Any], trees: list[Any]) -> Any:
    words, weight, bias, weight2, bias2 = (params[n] for n in NAMES)

    def visit(tree: Any) -> Any:
        if type(tree) is int:
            return lazy_leaf(words, weight, bias, tree)
        h0, c0 = visit(tree[0])
        h1, c1 = visit(tree[1])
        return lazy_inner(weight2, bias2, h0, c0, h1, c1)

    return lw.lazy_map(lambda tree: visit(tree)[0], trees)


# The same of small operations, as one writes it without batching in mind: about fifteen ops a node.
_look = lw.op(lambda words, word: words[word])
_affine = lw.op(lambda weight, bias, x: x @ weight + bias)
_both = lw.op(lambda a, b: jnp.concatenate([a, b]))
_three = lw.op(lambda z: tuple(jnp.split(z, 3)))
_five = lw.op(lambda z: tuple(jnp.split(z, 5)))
_sigmoid, _tanh = lw.op(jax.nn.sigmoid), lw.op(jnp.tanh)


def roots_finely(params: dict[str, Any], trees: list[Any]) -> Any:
    words, weight, bias, weight2, bias2 = (params[n] for n in NAMES)

    def visit(tree: Any) -> Any:
        if type(tree) is int:
            i, o, u = _three(_affine(weight, bias, _look(words, tree)))
            c = _sigmoid(i) * _tanh(u)
        else:
            h0, c0 = visit(tree[0])
            h1, c1 = visit(tree[1])
            i, f0, f1, o, u = _five(_affine(weight2, bias2, _both(h0, h1)))
            c = _sigmoid(i) * _tanh(u) + _sigmoid(f0) * c0 + _sigmoid(f1) * c1
        return _sigmoid(o) * _tanh(c), c

    return lw.lazy_map(lambda tree: visit(tree)[0], trees)


def train_finely(params: dict[str, Any], trees: list[Any]) -> Any:
    return jax.value_and_grad(lambda p: _loss(roots_finely(p, trees)))(params)


@jax.jit
def _loss(roots: Any) -> Any:
    return jnp.sum(roots**2)


def train_lazily(params: dict[str, Any], trees: list[Any]) -> Any:
    return jax.value_and_grad(lambda p: _loss(roots_lazily(p, trees)))(params)


@jax.jit
def limit_forward(params: dict[str, Any], x: Any, e: Any) -> Any:
    """The products of a forest without its dependences."""
    return x @ params["inner"], e @ params["leaf"]


@jax.jit
def limit_training(params: dict[str, Any], x: Any, e: Any, dz: Any, dl: Any) -> Any:
    return (
        x @ params["inner"],
        e @ params["leaf"],
        dz @ params["inner"].T,
        x.T @ dz,
        dl @ params["leaf"].T,
        e.T @ dl,
    )
