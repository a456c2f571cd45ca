"""Growth of stacks where each lane runs by itself.

Such a lane's stack has a size that it is compiled for. A kernel's state is not kept: resuming it would cost every lane
its registers' way to memory and back. So where stacks were full, those lanes start again with more room, and their
answers take their places among the others', which stay as they are. The size is remembered: later calls run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lanewise.errors import Outcome

GROWTH = 4
# If more than this share of the lanes start again, all do.
FEW = 0.5


class Rerun:
    """A program that runs again, for the lanes whose stacks were full.

    `run(*operands, capacity)` runs all lanes and `part(*operands, rows, capacity)` those of `rows`, the lane axes
    flattened; answers come first, then `codes`. Without `part` all lanes run again.
    """

    def __init__(
        self,
        run: Callable[..., list[Any]],
        part: Callable[..., list[Any]] | None,
        codes: int,
        first: int,
        most: int,
    ) -> None:
        self.run = jax.jit(run, static_argnames="capacity")
        self.part = None if part is None else jax.jit(part, static_argnames="capacity")
        self.codes, self.capacity, self.most = codes, first, most

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        out = self.run(*operands, capacity=self.capacity)
        full = self._full(out)
        while full.size and self.capacity < self.most:
            self.capacity = min(self.capacity * GROWTH, self.most)
            lanes = np.asarray(out[self.codes]).size
            if self.part is None or full.size > FEW * lanes:
                out = self.run(*operands, capacity=self.capacity)
            else:
                # As many rows as the next power of two: few numbers of them, few compilations.
                rows = np.resize(full, 1 << int(full.size - 1).bit_length())
                again = self.part(*operands, rows=rows, capacity=self.capacity)
                out = _put(out, rows, again, out[self.codes].ndim)
            full = self._full(out)
        return out

    def _full(self, out: Sequence[Any]) -> np.ndarray:
        """The lanes whose stacks were full."""
        # Codes are read as they are, not reduced before: `throw` reads them too, and an array comes to the host once.
        return np.flatnonzero(np.asarray(out[self.codes]) == int(Outcome.STACK_OVERFLOW))


def _put(out: Sequence[Any], rows: np.ndarray, again: Sequence[Any], lane_axes: int) -> list[Any]:
    """What all lanes gave, with what those of `rows` gave later in its place."""

    def put(value: Any, later: Any) -> Any:
        flat = value.reshape(-1, *value.shape[lane_axes:])
        return flat.at[rows].set(later).reshape(value.shape)

    return [put(value, later) for value, later in zip(out, again, strict=True)]
