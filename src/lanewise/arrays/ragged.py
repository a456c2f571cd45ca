"""Sequences whose length is known at run time alone: the children of a node.

`map` over such a sequence gives a `Ragged`: an array with room for the longest there can be, and a length. A list of
records is mapped one by one, since the function may recurse; a `Ragged` all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.core.objects import Items, is_held


class Ragged(Items):
    """Elements along the first axis of `values`, of which the first `length` count; the others may hold anything.

    >>> from lanewise import arrays
    >>> three = Ragged(jnp.array([1.0, 2.0, 3.0, 0.0]), jnp.int32(3))
    >>> float(arrays.reduce(jnp.add, arrays.map(jnp.square, three))), float(arrays.reduce(jnp.maximum, three))
    (14.0, 3.0)
    """

    __slots__ = ("length", "values")

    def __init__(self, values: Any, length: Any) -> None:
        self.values = values
        self.length = length

    @property
    def mask(self) -> Any:
        """Which elements count."""
        return jnp.arange(self._lw_most()) < self.length

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and place < 0:
            place = self.length + place
        return self._lw_item(place)

    def _lw_most(self) -> int:
        return jax.tree.leaves(self.values)[0].shape[0]

    def _lw_length(self) -> Any:
        return self.length

    def _lw_item(self, index: Any) -> Any:
        return jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, index, 0, keepdims=False), self.values
        )

    def _lw_parts(self) -> tuple[Any, ...]:
        return (*jax.tree.leaves(self.values), self.length)

    def _lw_with(self, parts: Sequence[Any]) -> Ragged:
        return Ragged(jax.tree.unflatten(jax.tree.structure(self.values), parts[:-1]), parts[-1])

    def _lw_type(self) -> Any:
        return Ragged, jax.tree.structure(self.values)

    def _lw_is_none(self, gone: Sequence[Any] = ()) -> bool:
        return False

    def _lw_truth(self) -> Any:
        return self.length > 0

    def _lw_loose(self) -> Ragged:
        return self


jax.tree_util.register_pytree_node(
    Ragged, lambda x: ((x.values, x.length), None), lambda _, parts: Ragged(*parts)
)


def are_items(xs: Sequence[Any]) -> bool:
    return any(isinstance(x, Items) for x in xs)


def map_items(function: Callable[..., Any], xs: Sequence[Any]) -> Ragged:
    """`function` of each element of sequences of one length."""
    if not all(isinstance(x, Items) for x in xs):
        raise OptionError(
            "`map`: some of `xs` have a length that is known at run time alone, and others do not. Give one kind."
        )
    most = min(x._lw_most() for x in xs)
    length = xs[0]._lw_length()
    if all(isinstance(x, Ragged) for x in xs):
        values = [jax.tree.map(lambda v: v[:most], x.values) for x in xs]
        return Ragged(jax.vmap(function)(*values), length)

    def one(index: Any) -> Any:
        found = function(*(x._lw_item(index) for x in xs))
        if any(map(is_held, jax.tree.leaves(found, is_leaf=is_held))):
            raise OptionError("`map`: `function` gives a reference. Give numbers and arrays.")
        return jax.tree.map(jnp.asarray, found)

    if not isinstance(length, _jax.Tracer) and int(length) > 0:  # as plain Python
        found = [one(i) for i in range(int(length))]
        return Ragged(jax.tree.map(lambda *rows: _stacked(rows, most), *found), length)
    shapes = jax.eval_shape(one, jnp.int32(0))
    room = jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes)

    def step(carry: Any) -> Any:
        index, filled = carry
        return index + 1, jax.tree.map(
            lambda into, x: lax.dynamic_update_index_in_dim(into, x.astype(into.dtype), index, 0),
            filled,
            one(index),
        )

    _, filled = lax.while_loop(lambda carry: carry[0] < length, step, (jnp.int32(0), room))
    return Ragged(filled, length)


def _stacked(rows: Sequence[Any], most: int) -> Any:
    return jnp.stack([*rows, *[jnp.zeros_like(rows[0])] * (most - len(rows))])


def as_ragged(what: str, xs: Any) -> Ragged:
    """A list of numbers or arrays as what `reduce` takes."""
    if isinstance(xs, Ragged):
        return xs
    if is_held(xs._lw_item(jnp.int32(0))):
        raise OptionError(
            f"`{what}`: the elements are records. `map` them to numbers or arrays first."
        )
    return map_items(lambda x: x, [xs])


def masked(xs: Ragged, leaves: Sequence[Any], neutral: Sequence[Any]) -> list[Any]:
    """Elements that do not count, replaced by neutral ones."""
    return [
        jnp.where(xs.mask.reshape(-1, *(1,) * (x.ndim - 1)), x, e)
        for x, e in zip(leaves, neutral, strict=True)
    ]
