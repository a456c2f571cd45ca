"""Long sequences of elements taken apart into numbers, laid out for loops over blocks side by side.

A number of all elements is an array (step, block) and what fills no block. All that goes on between taking elements
apart and putting them together stays in this layout, derivatives too, so that it costs one transposition on the way in
and one on the way out. On the way in, the numbers of a leaf stay one array (step, number, block) that a loop takes
apart row by row: taken apart before, the slices are fused with the transposition, which takes XLA:CPU five times as
long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise.arrays.blocked import Leaves, steps_and_blocks, with_tail

Shapes = Sequence[tuple[int, ...]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Laid:
    """Numbers of a sequence: `rows`, each (step, block, ...), and `tail`, what fills no block."""

    rows: Leaves
    tail: Leaves

    @property
    def blocks(self) -> int:
        return self.rows[0].shape[1]

    def picked(self, places: Iterable[int]) -> Laid:
        places = tuple(places)
        return Laid([self.rows[k] for k in places], [self.tail[k] for k in places])

    def one_on(self, first: Sequence[Any]) -> Laid:
        """Each element in the place of the next; `first` in that of the first."""
        rows, tail = [], []
        for e, row, end in zip(first, self.rows, self.tail, strict=True):
            e = jnp.broadcast_to(e, row.shape[2:])[None]
            starts = jnp.concatenate([e, row[-1, :-1]])
            rows.append(jnp.concatenate([starts[None], row[:-1]]))
            tail.append(jnp.concatenate([row[-1, -1:], end])[: end.shape[0]])
        return Laid(rows, tail)


def each(function: Callable[..., Leaves], *laid: Laid) -> Laid:
    """A function of numbers, at each element."""
    return Laid(function(*(x.rows for x in laid)), function(*(x.tail for x in laid)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LaidLeaves:
    """The same leaf by leaf: the axis of numbers of one that is taken apart is between its steps and its blocks."""

    rows: Leaves
    tail: Leaves

    def blocks(self, shapes: Shapes) -> int:
        return self.rows[0].shape[2 if shapes[0] else 1]

    def numbers(self, shapes: Shapes) -> Laid:
        return Laid(_numbers(self.rows, shapes, axis=1), row_numbers(self.tail, shapes))


def lay_out(leaves: Sequence[Any], shapes: Shapes) -> LaidLeaves:
    """Elements along the first axis, each leaf of one of these shapes; `()` for one that is a number as it is."""
    steps, blocks = steps_and_blocks(leaves[0].shape[0])
    end = steps * blocks
    rows, tail = [], []
    for x, shape in zip(leaves, shapes, strict=True):
        body = x[:end].reshape(blocks, steps, *x.shape[1:])
        if shape:
            rows.append(body.reshape(blocks, steps, -1).transpose(1, 2, 0))
            tail.append(x[end:].reshape(-1, math.prod(shape)).T)
        else:
            rows.append(body.swapaxes(0, 1))
            tail.append(x[end:])
    return LaidLeaves(rows, tail)


def row_numbers(row: Sequence[Any], shapes: Shapes) -> Leaves:
    """The numbers of one row, or of the tail."""
    return _numbers(row, shapes, axis=0)


def _numbers(leaves: Sequence[Any], shapes: Shapes, axis: int) -> Leaves:
    return [
        part
        for x, shape in zip(leaves, shapes, strict=True)
        for part in (_split(x, axis) if shape else [x])
    ]


def put_together(laid: Laid, shapes: Shapes) -> Leaves:
    """The elements again."""
    rows, tail, leaves = iter(laid.rows), iter(laid.tail), []
    for shape in shapes:
        if not shape:
            row, end = next(rows), next(tail)
            flat = row.swapaxes(0, 1).reshape(-1, *row.shape[2:])
        else:
            places = range(math.prod(shape))
            body = jnp.stack([next(rows) for _ in places]).transpose(2, 1, 0)
            flat = body.reshape(-1, *shape)
            end = jnp.stack([next(tail) for _ in places], axis=-1).reshape(-1, *shape)
        leaves.append(with_tail(flat, end))
    return leaves


def apart(leaves: Sequence[Any], shapes: Shapes) -> Leaves:
    """The numbers of one element."""
    flat = [x.reshape(-1) if shape else x for x, shape in zip(leaves, shapes, strict=True)]
    return row_numbers(flat, shapes)


def _split(x: Any, axis: int) -> Leaves:
    """A split has a concatenation for its transpose, slices would have a sum of padded arrays."""
    return [part.squeeze(axis) for part in lax.split(x, [1] * x.shape[axis], axis)]
