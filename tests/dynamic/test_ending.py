"""Loops of unknown length inside pieces: each row on its own, and none for rows that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
from lanewise.dynamic.envelope import Store
from lanewise.dynamic.run import run
from lanewise.dynamic.table import Table, Type, piece

WIDTH, WORDS = 12, 7


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"words": (WORDS, WIDTH), "join": (2 * WIDTH, WIDTH), "square": (WIDTH, WIDTH)}
    return {k: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0] / 2)) for k, s in shapes.items()}


@lw.program
def settling(tree, w):
    """A loop on values at every node: a row of zeros would never end it."""
    if tree.left is None:
        return w["words"][tree.word]
    h = jnp.concatenate([settling(tree.left, w), settling(tree.right, w)]) @ w["join"]
    while jnp.sum(h * h) < 2.0:
        h = 1.5 * h + 0.1 * jnp.sin(h @ w["square"])
    return h


@lw.program
def guarded(tree, w):
    """The loop is behind a test on values, and would not end for rows that fail it."""
    if tree.left is None:
        return w["words"][tree.word]
    h = jnp.concatenate([guarded(tree.left, w), guarded(tree.right, w)]) @ w["join"]
    if h[0] > 0:
        turns = 0
        while h[0] < 3.0:
            h = 1.3 * h + 0.05 * jnp.abs(h @ w["square"])
            turns += 1
        h = h * (1 + turns)
    else:
        h = jnp.tanh(h)
    return h


@lw.program
def scanned(tree, w):
    """A loop on values inside a `scan`."""
    if tree.left is None:
        return w["words"][tree.word]
    h = jnp.tanh(jnp.concatenate([scanned(tree.left, w), scanned(tree.right, w)]) @ w["join"])

    def turn(h, scale):
        h = scale * h
        h = lax.while_loop(
            lambda h: jnp.sum(h * h) > 1.0, lambda h: 0.4 * jnp.sin(h @ w["square"]), h
        )
        return h, jnp.sum(h)

    h, sums = lax.scan(turn, h, jnp.array([1.0, 3.0, 2.0]))
    return h + 0.1 * jnp.tanh(sums).sum()


@lw.program
def each_apart(tree, w):
    """Cheap loops: one with a test for each element of an inner `jax.vmap`, one inside a `scan`."""
    if tree.left is None:
        return jnp.abs(w["words"][tree.word, :4]) + 0.1
    x = each_apart(tree.left, w) + each_apart(tree.right, w) ** 2
    x = jax.vmap(lambda y: lax.while_loop(lambda y: y < 4.0, lambda y: y * y / 2 + 2 * y, y))(x)

    def turn(total, y):
        y = lax.while_loop(lambda y: y > 1.0, lambda y: y / 3, y + 0.5 * total)
        return total + y, y * total

    total, ys = lax.scan(turn, 0.3, x)
    return ys + total * x / 100


def trees(seed: int, number: int, leaves: int = 5) -> list[Tree]:
    rng = np.random.default_rng(seed)

    def grow(size: int) -> Tree:
        if size == 1:
            return Tree(int(rng.integers(WORDS)))
        left = int(rng.integers(1, size))
        return Tree(0, grow(left), grow(size - left))

    return [grow(1 + int(rng.integers(leaves))) for _ in range(number)]


def chain(length: int) -> Tree:
    tree = Tree(1)
    for i in range(length):
        tree = Tree(0, Tree(i % WORDS), tree)
    return tree


def loss(answer: Any) -> Any:
    return jnp.sum(jnp.sin(answer))


def assert_close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11), a, b)


@pytest.mark.parametrize(
    ("program", "deep"),
    [
        (settling, False),
        pytest.param(guarded, True, marks=pytest.mark.slow),
        pytest.param(scanned, False, marks=pytest.mark.slow),
        pytest.param(each_apart, False, marks=pytest.mark.slow),
    ],
)
def test_values_and_gradients(program: Any, deep: bool) -> None:
    """As one tree at a time; a chain among the trees is run by the loop over thin levels."""
    w = weights()
    some = [*trees(3, 4), *([chain(40)] if deep else [])]
    batched = lw.vmap(program, in_axes=(0, None), schedule="levels")
    one = program.with_options(carrier="native")
    answers = batched(lw.pack(some), w)
    expected = [one(lw.pack([tree])[0], w) for tree in some]
    assert_close(list(answers), expected)
    found = jax.grad(lambda w: loss(batched(lw.pack(some), w)))(w)
    each = [jax.grad(lambda w, t=tree: loss(one(lw.pack([t])[0], w)))(w) for tree in some]
    assert_close(found, jax.tree.map(lambda *g: sum(g), *each))


@pytest.mark.slow
def test_levels_that_are_empty() -> None:
    """An envelope has room for levels and pieces that the next minibatch has not."""
    w = weights()
    batched = lw.vmap(settling, in_axes=(0, None), schedule="levels")
    grad = jax.grad(lambda w, some: loss(batched(lw.pack(some), w)))
    many = [chain(6), *trees(1, 5)]
    batched(lw.pack(many), w)
    grad(w, many)
    for some in ([Tree(1)], [Tree(2), Tree(0, Tree(1), Tree(3))]):
        one = settling.with_options(carrier="ticks")
        assert_close(list(batched(lw.pack(some), w)), [one(lw.pack([tree])[0], w) for tree in some])
        each = [jax.grad(lambda w, t=tree: loss(one(lw.pack([t])[0], w)))(w) for tree in some]
        assert_close(grad(w, some), jax.tree.map(lambda *g: sum(g), *each))


@pytest.mark.slow
def test_second_derivatives() -> None:
    w, some = weights(), trees(5, 3, 3)
    along = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=float)).reshape(x.shape), w)
    batched = lw.vmap(settling, in_axes=(0, None), schedule="levels")

    def slope(run: Any, w: Any) -> Any:
        return jax.jvp(lambda w: loss(run(w)), (w,), (along,))[1]

    found = jax.grad(lambda w: slope(lambda w: batched(lw.pack(some), w), w))(w)
    one = settling.with_options(carrier="ticks")
    each = [jax.grad(lambda w, t=t: slope(lambda w: one(lw.pack([t])[0], w), w))(w) for t in some]
    assert_close(found, jax.tree.map(lambda *g: sum(g), *each))


def doubled(x: Any) -> Any:
    """Never ends for numbers that are not positive."""
    return lax.while_loop(lambda x: x < 8.0, lambda x: 2 * x, x)


@pytest.mark.parametrize("unrolled", [8, 0])
def test_tables(unrolled: bool) -> None:
    """Of tables too; without unrolled levels, tiles reach into rows of levels that have not run."""
    f8 = Type((), np.dtype("f8"))
    half = piece(lambda w, x: w * doubled(x) / 16, shared=[np.float64(0)], rows=[np.float64(0)])
    length, lanes = 9, 3
    operands = [
        ~lane if k == 0 else lane * length + k - 1 for lane in range(lanes) for k in range(length)
    ]
    start = np.array([0.3, 1.7, 5.0])
    piece_of, operands = np.zeros(lanes * length, np.int32), np.array(operands, np.int32)
    table = Table((half,), ((0,),), piece_of, operands, {f8: start})
    wanted = [np.array([length - 1, 2 * length - 1, 3 * length - 1])]

    def ends(w: Any) -> Any:
        return run(table, [w], wanted, store=Store(unrolled)).of(f8)

    def by_hand(w: Any) -> Any:
        found = []
        for x in start:
            for _ in range(length):
                factor = 2.0 ** max(0, np.ceil(np.log2(8.0 / float(lax.stop_gradient(x)))))
                x = w * factor * x / 16
            found.append(x)
        return jnp.stack(found)

    assert_close(ends(jnp.float64(1.1)), by_hand(jnp.float64(1.1)))
    found = jax.grad(lambda w: loss(ends(w)))(jnp.float64(1.1))
    step = 1e-6
    slope = (loss(by_hand(1.1 + step)) - loss(by_hand(1.1 - step))) / (2 * step)
    np.testing.assert_allclose(found, slope, rtol=1e-6)


def test_lazy_ops() -> None:
    """Of ops that are recorded from plain Python."""

    @lw.op
    def grown(w, x):
        return lax.while_loop(lambda x: jnp.sum(x) < 8.0, lambda x: 1.5 * x, w * x)

    def instance(w, xs):
        total = jnp.ones(3)
        for x in xs:
            total = grown(w, total) * x
        return total

    instances = [[0.5], [0.25, 0.5, 1.0], []]

    def ends(w: Any) -> Any:
        return sum(jnp.sum(a) for a in lw.lazy_map(lambda xs: instance(w, xs), instances))

    w = jnp.array([1.0, 0.5, 0.7])

    def plainly(w: Any) -> Any:
        total = 0.0
        for xs in instances:
            x = jnp.ones(3)
            for scale in xs:
                x = w * x
                while float(lax.stop_gradient(jnp.sum(x))) < 8.0:
                    x = 1.5 * x
                x = x * scale
            total += jnp.sum(x)
        return total

    assert_close(ends(w), plainly(w))
    found = jax.grad(ends)(w)
    step = 1e-6
    slopes = [(plainly(w + d) - plainly(w - d)) / (2 * step) for d in step * np.eye(3)]
    np.testing.assert_allclose(found, slopes, rtol=1e-6)
