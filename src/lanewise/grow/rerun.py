"""Growth of stacks and tapes where each lane runs on its own.

Such a lane's stack and tape have sizes that it is compiled for. A kernel's state is not saved: to resume it, every lane
would have to write its registers to memory and read them back. So where stacks or tapes were full, those lanes start
again with more room, and their answers take their places among the others', which stay as they are. The size is cached:
later calls run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanewise import _jax
from lanewise.core.errors import Outcome
from lanewise.grow.memory import GROWTH
from lanewise.job.plan import Around

# If more than this share of the lanes start again, all do.
FEW = 0.5


class Rerun:
    """A program that runs again, for the lanes whose stacks were full.

    `run(*operands, capacity)` runs all lanes and `part(*operands, rows, capacity)` those of `rows`, the lane axes
    flattened; answers come first, then `codes`. Without `part` all lanes run again. `around` lets interrupts end a run.
    """

    def __init__(
        self,
        run: Callable[..., list[Any]],
        part: Callable[..., list[Any]] | None,
        codes: int,
        first: int,
        most: int,
        around: Around,
    ) -> None:
        self.run = around(jax.jit(run, static_argnames="capacity"))
        self.part = None if part is None else around(jax.jit(part, static_argnames="capacity"))
        self.codes, self.capacity, self.most = codes, first, most

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        out = self.run(*operands, capacity=self.capacity)
        full = self._full(out)
        while full.size and self.capacity < self.most:
            self.capacity = min(self.capacity * GROWTH, self.most)
            if self.part is None or full.size > FEW * out[self.codes].size:
                out = self.run(*operands, capacity=self.capacity)
            else:
                rows = _padded(full)
                with _jax.our_transfers():
                    again = self.part(*operands, rows=rows, capacity=self.capacity)
                    out = _put(out, rows, again, self.codes)
            full = self._full(out)
        return out

    def _full(self, out: Sequence[Any]) -> np.ndarray:
        """The lanes whose stacks were full."""
        # Codes are read whole, not reduced first: `throw` reads them too, and an array comes to the host once.
        return np.flatnonzero(_jax.to_host(out[self.codes]) == int(Outcome.STACK_OVERFLOW))


class RerunLarger:
    """The forward program of a gradient, which runs again with larger tapes for the lanes whose tapes were full.

    `run(operands)` is the program as it is, `whole(operands)` the same with larger tapes, `part(operands, rows)` that
    for the lanes of `rows` alone; without `part` all lanes run again. What runs with larger tapes may make them larger
    still: its answers have the room that was needed in the end, and it returns how much that is.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], list[Any]],
        whole: Callable[[Sequence[Any]], list[Any]],
        part: Callable[[Sequence[Any], np.ndarray], list[Any]] | None,
        codes: int,
    ) -> None:
        self.run, self.whole, self.part = run, whole, part
        self.codes = codes
        self.outgrown = False

    def run_growing(self, operands: Sequence[Any]) -> list[Any]:
        if self.outgrown:
            return self.whole(operands)
        out = self.run(operands)
        full = self._full(out)
        if not full.size:
            return out
        self.outgrown = True
        if self.part is None or full.size > FEW * out[self.codes].size:
            return self.whole(operands)
        rows = _padded(full)
        lane_axes = out[self.codes].ndim
        with _jax.our_transfers():
            again = self.part(operands, rows)
            larger = [_as_large(x, lane_axes, y.shape[1:]) for x, y in zip(out, again, strict=True)]
            return _put(larger, rows, again, self.codes)

    def _full(self, out: Sequence[Any]) -> np.ndarray:
        """The lanes whose tapes were full."""
        return np.flatnonzero(_jax.to_host(out[self.codes]) == int(Outcome.TAPE_FULL))


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows up to the next power of two: few sizes, few compilations."""
    return np.resize(rows, 1 << int(rows.size - 1).bit_length())


def _as_large(value: Any, lane_axes: int, shape: Sequence[int]) -> Any:
    """Values of lanes with zeros at the ends of those axes that are to be longer."""
    more = [(0, b - a) for a, b in zip(value.shape[lane_axes:], shape, strict=True)]
    return jnp.pad(value, [(0, 0)] * lane_axes + more) if any(map(any, more)) else value


def _put(out: Sequence[Any], rows: np.ndarray, again: Sequence[Any], codes: int) -> list[Any]:
    """The results of all lanes, those of `rows` replaced by their later ones.

    Codes and sites are the last results with lanes; those after them are the later run's.
    """
    lane_axes, end = out[codes].ndim, codes + 2

    def put(value: Any, later: Any) -> Any:
        flat = value.reshape(-1, *value.shape[lane_axes:])
        return flat.at[rows].set(later).reshape(value.shape)

    merged = [put(value, later) for value, later in zip(out[:end], again[:end], strict=True)]
    return [*merged, *again[end:]]
