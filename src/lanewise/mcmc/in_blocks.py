"""A function of each draw, block by block.

All blocks have one shape, so that one compiled function runs them: the last ones overlap those before. Memory is that
of a block and of the answer. A block holds about 32 MB of draws and answers, and is smaller where the compiled function
reports that it needs much more than that, as one that builds a matrix for each draw does. Draws on disk are read a
block at a time: all chains and a few draws, as they were written.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import must_be_count
from lanewise.mcmc.space import KEPT

BLOCK_BYTES = 32 * 2**20
# How many times as much memory the compiled function may need.
MOST_TEMPORARY = 4

# A function of the key of a draw and its quantities.
Work = Callable[[Key[Array, ""], dict[str, Array]], dict[str, Array]]


class Size(NamedTuple):
    """How many chains, and draws of each."""

    chains: int
    draws: int

    def block(self, rows: int) -> Size:
        """The block of at most `rows` draws in all.

        >>> Size(4, 1000).block(100), Size(1000, 50).block(100)
        (Size(chains=4, draws=25), Size(chains=100, draws=1))
        """
        chains = min(self.chains, max(rows, 1))
        return Size(chains, min(self.draws, max(rows // chains, 1)))

    def places(self, block: Size) -> Iterator[tuple[slice, slice]]:
        """Where blocks are; the last along an axis ends where the axis does.

        >>> [draws.start for _, draws in Size(1, 10).places(Size(1, 4))]
        [0, 4, 6]
        """
        chains, draws = map(_along, self, block)
        yield from itertools.product(chains, draws)


def in_blocks(
    work: Work, arrays: Mapping[str, Any], size: tuple[int, int], key: Any, rows: int | None = None
) -> dict[str, np.ndarray]:
    """The results of `work` for each draw of `arrays`, xarray variables along chains, draws and their own axes.

    `rows` is how many draws a block has in all. The key of a draw is made from `key`, its chain and its number.
    """
    whole = Size(*size)
    if 0 in whole:
        raise OptionError("data has no draws.")
    one = {name: one_of(array) for name, array in arrays.items()}
    key = jax.random.key(0) if key is None else key
    answer = jax.eval_shape(work, key, one)
    block, compiled = _fitting(work, whole, rows, key, one, answer)
    out = {name: np.empty((*whole, *leaf.shape), leaf.dtype) for name, leaf in answer.items()}
    for chains, draws in whole.places(block):
        part = {
            name: np.asarray(array[chains, draws].values, one[name].dtype)
            for name, array in arrays.items()
        }
        found = compiled(key, *_numbers(chains, draws), part)
        for name, values in found.items():
            out[name][chains, draws] = values
    return out


def one_of(array: Any) -> jax.ShapeDtypeStruct:
    """One draw's part of an array, with JAX's type."""
    return jax.ShapeDtypeStruct(array.shape[2:], jax.dtypes.canonicalize_dtype(array.dtype))


def _fitting(
    work: Work, whole: Size, rows: int | None, key: Any, one: dict[str, Any], answer: Any
) -> tuple[Size, Any]:
    """A block that fits in memory, and the function compiled for it."""
    config: Any = jax.config
    setting = key.dtype, config.jax_enable_x64, str(config.jax_default_device)
    compiled = functools.partial(
        _compiled, _hashable(work), one=tuple(one.items()), setting=setting
    )
    if rows is not None:
        must_be_count("block", rows, 1)
        block = whole.block(rows)
        return block, compiled(block)[0]
    leaves = jax.tree.leaves((one, answer))
    each = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    block = whole.block(BLOCK_BYTES // max(each, 1))
    function, needed = compiled(block)
    if needed <= MOST_TEMPORARY * BLOCK_BYTES or math.prod(block) == 1:
        return block, function
    block = whole.block(math.prod(block) * MOST_TEMPORARY * BLOCK_BYTES // needed)
    return block, compiled(block)[0]


@functools.lru_cache(KEPT)
def _compiled(
    work: Work, block: Size, one: tuple[tuple[str, Any], ...], setting: Any
) -> tuple[Any, int]:
    """The function of a block, of the key, the numbers of its chains and draws and its arrays, and the bytes it needs.

    `setting` is the kind of key, and the part of JAX's configuration that decides the code.
    """

    def run(key: Any, chain: Any, draw: Any, quantities: dict[str, Array]) -> dict[str, Array]:
        return work(jax.random.fold_in(jax.random.fold_in(key, chain), draw), quantities)

    of_draws = jax.vmap(run, (None, None, 0, 0))
    of_all = jax.jit(jax.vmap(of_draws, (None, 0, None, 0)))
    numbers = _numbers(*(slice(0, count) for count in block))
    quantities = {
        name: jax.ShapeDtypeStruct((*block, *leaf.shape), leaf.dtype) for name, leaf in one
    }
    lowered = of_all.lower(jax.ShapeDtypeStruct((), setting[0]), *numbers, quantities)
    needs = lowered.compile().memory_analysis()
    # A call of `of_all` finds what was compiled here.
    return of_all, 0 if needs is None else needs.temp_size_in_bytes


def _along(size: int, width: int) -> list[slice]:
    """Stretches of one width over an axis."""
    starts = (min(start, size - width) for start in range(0, size, width))
    return [slice(start, start + width) for start in starts]


def _numbers(chains: slice, draws: slice) -> tuple[np.ndarray, np.ndarray]:
    chain, draw = (np.arange(part.start, part.stop, dtype=np.int32) for part in (chains, draws))
    return chain, draw


def _hashable(work: Work) -> Work:
    """The function itself if compiled code can be cached for it."""
    try:
        hash(work)
    except TypeError:
        return lambda key, quantities: work(key, quantities)
    return work
