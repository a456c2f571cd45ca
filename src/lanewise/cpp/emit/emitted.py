"""What an emitter writes: a kernel's text, and what is to be known to call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lanewise.cpp.emit import dtypes


@dataclass(frozen=True)
class Operand:
    """An array of the kernel's signature: shape and dtype for one example; `varies` if it has an axis of examples.

    Typed keys are given as the `uint32` words they are made of.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    varies: bool
    kind: str


@dataclass(frozen=True)
class Emitted:
    """A kernel: its text, and what the launcher must know.

    The arguments are `operands` (those of the program, then `constants`, which the launcher adds), `outputs`, then `int
    code[examples]`, `int site[examples]`, `long long steps[examples]`, `int deepest[examples]`, `unsigned long long
    next[1]` (zero at the start), `char scratch[scratch_bytes(capacity) * lanes]`, `long long examples`, `int capacity`.
    A host's threads call `lanewise_work(lw_run*)` instead, and share an `lw_run` (see `prelude.py`).
    """

    text: str
    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    constants: tuple[np.ndarray, ...]
    fixed_bytes: int
    frame_bytes: int
    # Whether a GPU runs a lane by the threads of a warp, together.
    together: bool = False

    name = "lanewise_kernel"

    def stopped_by_flag(self, ticks: int) -> Emitted:
        """The same kernel, which ends when its global `lw_stop` is set; it looks at that every `ticks` of its clock."""
        return replace(self, text=f"#define LW_STOPS {ticks}ll\n{self.text}")

    def scratch_bytes(self, capacity: int) -> int:
        """The scratch memory one lane takes when its stacks hold `capacity` frames."""
        return self.fixed_bytes + self.frame_bytes * capacity


def operand_of(shape: Sequence[int], dtype: Any, varies: bool) -> Operand:
    """An argument that holds arrays of this shape and type."""
    kind = dtypes.ctype(dtype)
    if kind == "key2":
        return Operand((*shape, 2), np.dtype(np.uint32), varies, kind)
    return Operand(tuple(shape), np.dtype(dtype), varies, kind)
