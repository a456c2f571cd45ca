"""Tables made by hand, forests, and what a table computes one call at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.dynamic.table import Piece, Table, Type, piece

WIDTH = 4
WORDS = 10
INT = Type((), np.dtype(np.int32))
ROW = Type((WIDTH,), np.dtype(np.float32))
SCALAR = Type((), np.dtype(np.float32))


def leaf(embedding: Any, bias: Any, word: Any) -> Any:
    z = embedding[word] + bias
    return jnp.tanh(z), jax.nn.sigmoid(z)


def inner(weight: Any, bias: Any, h0: Any, c0: Any, h1: Any, c1: Any) -> Any:
    i, f, u = jnp.split(jnp.concatenate([h0, h1]) @ weight + bias, 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f) * (c0 + 0.5 * c1)
    return jnp.tanh(c), c


def weights(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    shapes = [(WORDS, WIDTH), (WIDTH,), (2 * WIDTH, 3 * WIDTH), (3 * WIDTH,)]
    return [jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for s in shapes]


_ROW = np.zeros(WIDTH, np.float32)
LEAF = piece(leaf, [weights()[0], weights()[1]], [np.int32(0)])
INNER = piece(inner, weights()[2:], [_ROW] * 4)


def made(
    pieces: Sequence[Piece],
    shared: Sequence[Sequence[int]],
    calls: Any,
    operands: Any,
    payload: Mapping[Type, Any] | None = None,
    **more: Any,
) -> Table:
    """A table of lists."""
    rows = {t: np.array(values, t.dtype) for t, values in (payload or {}).items()}
    flat = np.array(calls, np.int32), np.array(operands, np.int32)
    return Table(tuple(pieces), tuple(map(tuple, shared)), *flat, rows, **more)


# A tree is a word, or a pair of trees.
Tree = Any


def random_tree(rng: np.random.Generator, leaves: int) -> Tree:
    if leaves == 1:
        return int(rng.integers(WORDS))
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left), random_tree(rng, leaves - left)


def complete_tree(depth: int) -> Tree:
    return 3 if depth == 0 else (complete_tree(depth - 1), complete_tree(depth - 1))


def chain_tree(length: int) -> Tree:
    tree: Tree = 1
    for i in range(length):
        tree = (tree, i % WORDS)
    return tree


def forest(trees: Sequence[Tree]) -> tuple[Table, np.ndarray]:
    """A table of trees, and the values that are their roots' h."""
    pieces: list[int] = []
    operands: list[int] = []
    words: list[int] = []

    def add(p: int, given: Sequence[int]) -> int:
        pieces.append(p)
        operands.extend(given)
        return 2 * (len(pieces) - 1)

    def visit(tree: Tree) -> int:
        # A stack of its own: chains are deeper than Python's.
        done: list[int] = []
        todo: list[Any] = [tree]
        while todo:
            now = todo.pop()
            if now is None:
                right, left = done.pop(), done.pop()
                done.append(add(1, [left, left + 1, right, right + 1]))
            elif isinstance(now, tuple):
                todo += [None, now[1], now[0]]
            else:
                words.append(now)
                done.append(add(0, [~(len(words) - 1)]))
        return done[0]

    roots = np.array([visit(t) for t in trees], np.int64)
    return made((LEAF, INNER), ((0, 1), (2, 3)), pieces, operands, {INT: words}), roots


def wanted(table: Table, values: np.ndarray) -> list[np.ndarray]:
    """The values wanted of each type, where all of these are rows."""
    none = np.zeros(0, np.int64)
    return [values if t == ROW else none for t in table.types]


def one_at_a_time(table: Table, shared: Sequence[Any], carried: Any = None) -> list[Any]:
    """All values of a table, one call after the other."""
    values: list[Any] = []
    for call, p in enumerate(table.piece.tolist()):
        of: Piece = table.pieces[p]
        given = []
        for k, type_ in enumerate(of.rows):
            v = int(table.operands[table.first_operand[call] + k])
            rows = table.payload.get(type_, np.zeros((0, *type_.shape)))
            if v >= 0:
                given.append(values[v])
            elif ~v < len(rows):
                given.append(jnp.asarray(rows[~v], type_.dtype))
            else:
                given.append(carried[type_][~v - len(rows)])
        values += _jax.eval_jaxpr(of.code, *(shared[s] for s in table.shared[p]), *given)
    return values


def close(ours: Any, theirs: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), ours, theirs)


def compare(
    ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, rtol: float = 2e-5
) -> None:
    """Values and gradients by the first argument agree."""
    close(ours(*args), theirs(*args), rtol)

    def summed(fun: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any) -> Any:
            outs = jax.tree.leaves(fun(*args))
            return sum(jnp.sum(jnp.sin(1.0 + o)) for o in outs)

        return loss

    close(jax.grad(summed(ours))(*args), jax.grad(summed(theirs))(*args), 10 * rtol, 1e-5)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The compilations that happen inside."""
    found: list[str] = []

    def seen(event: str, duration_secs: float, **more: Any) -> None:
        del duration_secs, more
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(seen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(seen)
