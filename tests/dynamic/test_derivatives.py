"""Derivatives of gradients of tables, and of what is recorded lazily, backwards as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.dynamic.envelope import Store
from lanewise.dynamic.run import prepare, run
from lanewise.dynamic.table import Table, Type, piece

PAIR = Type((2,), np.dtype("f8"))
LIKE = np.zeros(2)
MIX, SCALE = np.array([[0.6, -0.4], [0.3, 0.8]]), np.array([1.1, 0.7])
STORES = {"unrolled": Store(), "looped": Store(unrolled=0)}


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def calls(shape: str) -> tuple[list[int], list[int]]:
    """Pieces and operands: a chain, or a graph in which some values have several users."""
    if shape == "chain":
        return [0, 0, 1, 0, 1], [~0, 0, 1, ~1, 2, 3, ~0]
    return [0, 0, 1, 1, 0, 1], [~0, ~1, 0, 1, 2, 0, 2, 3, 4]


def table_of(shape: str) -> Table:
    one = piece(lambda mix, x: jnp.sin(mix @ x), shared=[np.zeros((2, 2))], rows=[LIKE])
    two = piece(lambda scale, x, y: scale * x * jnp.cos(y), shared=[LIKE], rows=[LIKE] * 2)
    pieces, operands = calls(shape)
    given = np.array([[0.5, -1.0], [0.8, 0.3]])
    return Table(
        (one, two),
        ((0,), (1,)),
        np.array(pieces, np.int32),
        np.array(operands, np.int32),
        {PAIR: given},
    )


def one_at_a_time(shape: str, shared: Any) -> Any:
    given, (pieces, operands) = [jnp.array([0.5, -1.0]), jnp.array([0.8, 0.3])], calls(shape)
    values: list[Any] = []
    turn = iter(operands)

    def read() -> Any:
        at = next(turn)
        return values[at] if at >= 0 else given[~at]

    for p in pieces:
        x = read()
        values.append(jnp.sin(shared[0] @ x) if p == 0 else shared[1] * x * jnp.cos(read()))
    return jnp.stack([values[-1], values[1]])


def squares(gradient: Any) -> Any:
    return sum(jnp.sum(jnp.sin(3 * g)) for g in jax.tree.leaves(gradient))


def backwards_twice(f: Any, shared: Any) -> Any:
    return jax.grad(lambda s: squares(jax.grad(f)(s)))(shared)


def backwards_over_tangents(f: Any, shared: Any) -> Any:
    return jax.grad(lambda s: jax.jvp(f, (s,), (shared,))[1])(shared)


def through_jit(f: Any, shared: Any) -> Any:
    return jax.grad(lambda s: squares(jax.jit(jax.grad(f))(s)))(shared)


def batches_of_directions(f: Any, shared: Any) -> Any:
    return jax.jacrev(jax.jacrev(lambda a: f([shared[0] * a[0], shared[1] * a[1]])))(jnp.ones(2))


def gradients_of_a_batch(f: Any, shared: Any) -> Any:
    two = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), shared)
    return jax.grad(lambda s: jnp.prod(jax.vmap(f)(s)))(two)


def transposed_batch_of_tangents(f: Any, shared: Any) -> Any:
    """The linear map, batched by some of its operands, and then transposed."""
    _, linear = jax.linearize(f, shared)
    two = jnp.stack([shared[0], 3 * shared[0]], 1)
    many = jax.vmap(lambda a, b: linear([a, b]), (1, None))
    return jax.linear_transpose(many, two, shared[1])(jnp.array([1.0, 2.0]))


def third(f: Any, shared: Any) -> Any:
    return jax.grad(lambda s: squares(backwards_twice(f, s)))(shared)


ORDERS = (
    backwards_twice,
    backwards_over_tangents,
    through_jit,
    batches_of_directions,
    gradients_of_a_batch,
    transposed_batch_of_tangents,
)


def assert_close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), a, b)


@pytest.mark.parametrize(
    ("shape", "store", "derivative"),
    [
        *(("graph", "unrolled", each) for each in ORDERS),
        ("chain", "looped", backwards_twice),
        ("graph", "looped", backwards_over_tangents),
        *(
            pytest.param(shape, store, each, marks=pytest.mark.slow)
            for shape in ("chain", "graph")
            for store in STORES
            for each in (*ORDERS, third)
        ),
    ],
)
def test_of_tables(shape: str, store: str, derivative: Any) -> None:
    table, shared = table_of(shape), [jnp.asarray(MIX), jnp.asarray(SCALE)]
    wanted = [np.array([len(table) - 1, 1])]

    def ours(shared: Any) -> Any:
        return jnp.sum(jnp.sin(run(table, shared, wanted, store=STORES[store]).of(PAIR)))

    def theirs(shared: Any) -> Any:
        return jnp.sum(jnp.sin(one_at_a_time(shape, shared)))

    expected = derivative(theirs, shared)
    assert_close(derivative(ours, shared), expected)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected)) > 0.1


def test_of_prepared_tables_inside_jit() -> None:
    ready = prepare(table_of("graph"), [np.array([5])], store=STORES["unrolled"])
    shared = [jnp.asarray(MIX), jnp.asarray(SCALE)]

    @jax.jit
    def step(shared: Any, ready: Any) -> Any:
        return backwards_twice(lambda s: jnp.sum(ready(s).of(PAIR)[0] ** 2), shared)

    expected = backwards_twice(lambda s: jnp.sum(one_at_a_time("graph", s)[0] ** 2), shared)
    assert_close(step(shared, ready), expected)


def test_of_what_is_recorded_lazily() -> None:
    @lw.op
    def turned(mix, x, y):
        return jnp.sin(mix @ x) + jnp.cos(y)

    def loss(mix: Any, vmapped: Any) -> Any:
        def instance(words: Any) -> Any:
            h = jnp.ones(2)
            for word in words:
                h = turned(mix, h, np.array([0.1 * word, -0.3]))
            return h

        return jnp.sum(jnp.stack(vmapped(instance)) ** 2)

    sentences = [[1, 2, 3], [4], [2, 5]]

    def ours(mix: Any) -> Any:
        return loss(mix, lambda f: list(lw.lazy_map(f, sentences)))

    def theirs(mix: Any) -> Any:
        total = 0.0
        for words in sentences:
            h = jnp.ones(2)
            for word in words:
                h = jnp.sin(mix @ h) + jnp.cos(jnp.array([0.1 * word, -0.3]))
            total = total + jnp.sum(h**2)
        return total

    mix = jnp.asarray(MIX)
    assert_close(backwards_twice(ours, mix), backwards_twice(theirs, mix))
