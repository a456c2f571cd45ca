"""The state of a small machine as a few arrays.

A call of a compiled function costs about a microsecond for each array that goes in or comes out, whatever its size, and
a state is some twenty of them. A state of a few kilobytes is laid end to end instead, which costs less than that: what
has 32 bits, and what is true or false, as one array of words, other types as an array each. Of a large state this would
be a copy that takes time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WORD = np.dtype(np.int32)
_AS_WORDS = frozenset(map(np.dtype, (np.int32, np.uint32, np.float32)))


class Packing:
    """How trees with leaves of these shapes and types are packed.

    >>> packing = Packing((jnp.int32(3), jnp.array([[1.0, 2.0]]), jnp.array([4, 5]), jnp.array(True)))
    >>> packed = packing.packed((np.int32(3), np.float32([[1, 2]]), np.int32([4, 5]), np.bool_(True)), np)
    >>> [x.tolist() for x in packed]
    [[3, 1065353216, 1073741824, 4, 5, 1]]
    >>> [x.tolist() for x in packing.unpacked(packed)]
    [3, [[1.0, 2.0]], [4, 5], True]
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._tree = jax.tree.flatten(tree)
        self._kinds = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        self._dtypes = list(dict.fromkeys(_packed_as(dtype) for _, dtype in self._kinds))

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(shape) * _packed_as(dtype).itemsize for shape, dtype in self._kinds)

    def packed(self, tree: Any, numpy: Any = jnp) -> list[Any]:
        """A tree as a few arrays, inside compiled code, or by NumPy."""
        groups: dict[np.dtype, list[Any]] = {dtype: [] for dtype in self._dtypes}
        for leaf, (_, dtype) in zip(jax.tree.leaves(tree), self._kinds, strict=True):
            flat = numpy.ravel(leaf)
            if dtype in _AS_WORDS:
                flat = flat.view(WORD)
            elif dtype == np.bool_:
                flat = flat.astype(WORD)
            groups[_packed_as(dtype)].append(flat)
        return [numpy.concatenate(group) for group in groups.values()]

    def unpacked(self, arrays: Sequence[Any]) -> Any:
        """The tree again; its leaves are arrays of the kind that these are."""
        whole = dict(zip(self._dtypes, arrays, strict=True))
        begins = dict.fromkeys(self._dtypes, 0)
        leaves = []
        for shape, dtype in self._kinds:
            group = _packed_as(dtype)
            begin, end = begins[group], begins[group] + math.prod(shape)
            flat = whole[group][begin:end]
            if dtype in _AS_WORDS:
                flat = flat.view(dtype)
            elif dtype == np.bool_:
                flat = flat != 0
            leaves.append(flat.reshape(shape))
            begins[group] = end
        return jax.tree.unflatten(self._tree, leaves)

    def zeros(self) -> list[np.ndarray]:
        """A packed tree of zeros."""
        return self.packed([np.zeros(shape, dtype) for shape, dtype in self._kinds], np)


def _packed_as(dtype: np.dtype) -> np.dtype:
    return WORD if dtype in _AS_WORDS or dtype == np.bool_ else dtype
