"""How tests take lanes out of a batch, and compare answers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax


def lane_axes(in_axes: Any, args: Any) -> list[int | None]:
    """One axis for each leaf of a batch of arguments."""
    return _jax.broadcast_axes(in_axes, tuple(args) if isinstance(args, tuple) else (args,))


def lanes_of(in_axes: Any, args: Any) -> int:
    leaves = jax.tree.leaves(args)
    return next(
        x.shape[a] for x, a in zip(leaves, lane_axes(in_axes, args), strict=True) if a is not None
    )


def take(in_axes: Any, args: Any, lanes: int | slice) -> Any:
    """One lane's arguments, or the batch of some lanes."""
    leaves, tree = jax.tree.flatten(args)
    axes = lane_axes(in_axes, args)
    taken = [
        x if a is None else _part(x, (slice(None),) * a + (lanes,))
        for x, a in zip(leaves, axes, strict=True)
    ]
    return jax.tree.unflatten(tree, taken)


def _part(x: Any, index: tuple[Any, ...]) -> Any:
    """By NumPy: JAX compiles a slice for every shape and index."""
    if not isinstance(x, jax.Array) or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x[index]
    return jnp.asarray(np.asarray(x)[index])


def assert_same(found: Any, expected: Any, rtol: float) -> None:
    """Integers, bools and keys bit for bit; the rest to a tolerance."""
    ours, theirs = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        a, b = _plain(a), _plain(b)
        assert a.shape == b.shape
        if a.dtype.kind in "biu" or rtol == 0:
            np.testing.assert_array_equal(a, b)
        else:
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=rtol)


def _plain(value: Any) -> np.ndarray:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
