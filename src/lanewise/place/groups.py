"""A batch in groups of lanes: microbatches, so that a placed program over a batch is a pipeline.

Groups come one after the other, as iterations of a `scan`: the first place begins with the next group as soon as it
has sent the last one on, as far as `in_flight` lets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from lanewise import _jax
from lanewise.core.errors import OptionError


def in_groups(fun: Callable[..., Any], groups: int, in_axes: Any) -> Callable[..., Any]:
    """A function of a batch, for one group after the other.

    >>> import jax.numpy as jnp
    >>> in_groups(lambda x, scale: x * scale, 2, (0, None))(jnp.arange(4), 10)
    Array([ 0, 10, 20, 30], dtype=int32)
    """

    def run(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        try:
            axes = _jax.broadcast_axes(in_axes, args)
        except ValueError as error:
            raise OptionError(f"in_axes={in_axes!r} does not fit the arguments: {error}.") from None
        if any(axis not in (None, 0) for axis in axes):
            raise OptionError(
                f"in_axes={in_axes!r}: with groups= lanes are the first axis: 0 or None."
            )
        sizes = {x.shape[0] for x, axis in zip(leaves, axes, strict=True) if axis == 0 and x.ndim}
        if len(sizes) != 1 or min(sizes) % groups:
            raise OptionError(
                f"groups={groups} needs a batch that it divides, the same for all arguments; got"
                f" {', '.join(map(str, sorted(sizes))) or 'no lanes'}. Choose another number, or pad the batch."
            )
        (size,) = sizes
        split = [
            x.reshape(groups, size // groups, *x.shape[1:]) if axis == 0 else x
            for x, axis in zip(leaves, axes, strict=True)
        ]

        def step(nothing: None, rows: list[Any]) -> tuple[None, Any]:
            given = iter(rows)
            whole = [next(given) if axis == 0 else x for x, axis in zip(split, axes, strict=True)]
            return nothing, fun(*jax.tree.unflatten(tree, whole))

        rows = [x for x, axis in zip(split, axes, strict=True) if axis == 0]
        _, outs = jax.lax.scan(step, None, rows)
        return jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), outs)

    run.__name__ = getattr(fun, "__name__", "batch")
    return run
