"""How many frames stacks hold: at first, after they have grown, and at most."""

from __future__ import annotations

import math

from lanewise._jax import storage_struct
from lanewise.blocks.link import Linked
from lanewise.core.options import Options

FIRST_DEPTH = 32
# Without max_depth, growth ends here: a recursion this deep, or stacks this large, will not end by itself.
DEEPEST = 1 << 20
MOST_STACK_BYTES = 4 << 30
# How many times as many after each growth.
GROWTH = 4


def most_depth(linked: Linked, lanes: int, options: Options) -> int:
    """How deep stacks may grow outside `jit`."""
    if options.max_depth is not None:
        return options.max_depth
    frame = sum(
        math.prod(s.shape) * s.dtype.itemsize for s in map(storage_struct, linked.storage.stacks)
    )
    return max(FIRST_DEPTH, min(DEEPEST, MOST_STACK_BYTES // max((frame + 4) * lanes, 1)))
