"""The blocks a kernel is written from.

They are those of `ticks`, but for branches: where every lane has a program counter of its own, skipping code is cheaper
than running it and selecting, and arrays that only one side changes are not copied. Lanes in step (`tiles.py`) want
`selects`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanewise.blocks.flatten import flatten
from lanewise.blocks.link import Linked, link
from lanewise.blocks.simplify import simplify
from lanewise.core.options import Options
from lanewise.core.program import Program


def kernel_blocks(
    program: Program,
    varying: Sequence[bool],
    options: Options,
    *,
    selects: bool = False,
) -> Linked:
    """The program's blocks with real branches, or with cheap ones as selects."""
    blocks = flatten(program, varying, every_loop=options.max_steps is not None)
    return link(simplify(blocks, selects=selects), varying)
