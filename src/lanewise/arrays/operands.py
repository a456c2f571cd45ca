"""What the array operators take: trees of arrays with a common first axis, and the errors for anything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import OptionError


@dataclass(frozen=True)
class Elements:
    """A tree of arrays, seen as a sequence of elements along their first axis."""

    leaves: tuple[Any, ...]
    tree: Any
    length: int
    places: tuple[str, ...]
    """Where each leaf is in the tree, as text: "" for a lone array."""

    @property
    def avals(self) -> tuple[_jax.ShapedArray, ...]:
        """The types of the leaves of one element."""
        return tuple(_jax.shaped(x.shape[1:], x.dtype) for x in self.leaves)

    def rebuilt(self, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self.tree, leaves)


def elements(what: str, argument: str, xs: Any) -> Elements:
    """The arrays of a tree, checked to have one first axis of one length."""
    found, tree = jax.tree.flatten_with_path(xs)
    if not found:
        raise OptionError(f"`{what}`: `{argument}` holds no array. Give at least one.")
    places = tuple(jax.tree_util.keystr(path) for path, _ in found)
    leaves = tuple(_array(what, f"{argument}{place}", x) for place, (_, x) in zip(places, found))
    lengths = {x.shape[0] for x in leaves}
    if len(lengths) > 1:
        found_text = ", ".join(f"{argument}{p}: {x.shape[0]}" for p, x in zip(places, leaves))
        raise OptionError(
            f"`{what}`: the arrays of `{argument}` differ in length ({found_text}). Their first axes must be one size."
        )
    return Elements(leaves, tree, lengths.pop(), places)


def _array(what: str, name: str, x: Any) -> Any:
    if not isinstance(x, jax.Array | np.ndarray | np.generic | int | float | complex | bool):
        raise OptionError(f"`{what}`: `{name}` is {x!r}, not an array.")
    if np.ndim(x) == 0:
        raise OptionError(
            f"`{what}`: `{name}` is a scalar and has no first axis. Give an array (a list counts as a tree)."
        )
    return jnp.asarray(x)


def same_length(what: str, named: dict[str, int]) -> int:
    """The one length of several arguments, or an error that names them."""
    if len(set(named.values())) > 1:
        found = ", ".join(f"`{name}`: {length}" for name, length in named.items())
        raise OptionError(f"`{what}`: lengths differ ({found}). Give first axes of one size.")
    return next(iter(named.values()))


def same_elements(what: str, into: Elements, values: Elements) -> None:
    """Check that `into` has the structure and the types of the values that are written to it."""
    if into.tree != values.tree:
        raise OptionError(
            f"`{what}`: `into` has structure {into.tree}, `values` have {values.tree}. Give one array for each."
        )
    for place, mine, theirs in zip(values.places, into.avals, values.avals, strict=True):
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise OptionError(
                f"`{what}`: elements of `into`{place} are {shape_text(mine)}, those of `values` {shape_text(theirs)}."
                " Give both one type."
            )


def indices_of(what: str, argument: str, indices: Any) -> Any:
    """A one-dimensional array of integers."""
    found = _array(what, argument, indices)
    if found.ndim != 1 or not jnp.issubdtype(found.dtype, jnp.integer):
        raise OptionError(
            f"`{what}`: `{argument}` is {shape_text(found)}. Give integers in one dimension, one for each value."
        )
    return found


def within(indices: Any, size: int) -> Any:
    """Indices with every one that is out of range, negative ones too, replaced by `size`, which writes drop."""
    return jnp.where((indices >= 0) & (indices < size), indices, size)


def shape_text(x: Any) -> str:
    """Type and shape in short.

    >>> shape_text(jnp.zeros((2, 3)))
    'float32[2,3]'
    """
    return f"{np.dtype(x.dtype).name}[{','.join(map(str, x.shape))}]"
