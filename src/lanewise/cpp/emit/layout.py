"""Where arrays lie.

A lane's scalars are C++ variables; its small arrays are C++ arrays (which a compiler keeps in registers where all
indices are known, and which CUDA spreads over memory so that neighbouring lanes coalesce); its larger arrays and its
stacks lie in the scratch memory the launcher gives, element by element: element `i` of lane `l` at `i * lanes + l`, so
that lanes at the same place of the program touch neighbouring addresses. Operands are read where they are, those that
all lanes share too: a copy of them in a GPU's shared memory was tried, and beam search took 6.9 and 7.1 ms with it, 6.6
and 6.7 without.

A host's thread runs one lane, so nothing is gained by such an order there: a larger array that is an answer of the
program lies where answers are wanted from the start. (A tape that few records came to lie on is then not copied.)

Scratch is handed out in scopes: a temporary's memory is free again after its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lanewise.cpp.emit.dtypes import SIZES

# Larger arrays go to the scratch memory.
LOCAL_BYTES = 1024
_ALIGNMENT = 16


class Layout:
    """Hands out memory for arrays. `most` is what all that is alive at one time takes at worst, in bytes a lane."""

    def __init__(self) -> None:
        self.used = 0
        self.most = 0

    def declare(self, kind: str, name: str, size: int) -> str:
        """The declaration of an array of a lane's own."""
        if not self.strides(kind, size):
            return f"{kind} {name}[{max(size, 1)}];"
        offset = self.lend(size * SIZES[kind])
        self.used += _aligned(size * SIZES[kind])
        return f"const lw_strided<{kind}> {name}(scratch + {offset} * lanes, lane, lanes);"

    @staticmethod
    def strides(kind: str, size: int) -> bool:
        """Whether such an array lies in the scratch memory."""
        return size * SIZES[kind] > LOCAL_BYTES

    def lend(self, wanted: int) -> int:
        """Where this many bytes are free at this moment."""
        self.most = max(self.most, self.used + _aligned(wanted))
        return self.used

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is handed out inside is free again after."""
        used = self.used
        yield
        self.used = used


def _aligned(wanted: int) -> int:
    return -(-wanted // _ALIGNMENT) * _ALIGNMENT
