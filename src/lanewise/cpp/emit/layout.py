"""Memory of a lane: where its arrays lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lanewise.cpp.emit.dtypes import SIZES

# Larger arrays go to the scratch memory.
LOCAL_BYTES = 1024
_ALIGNMENT = 16


class Layout:
    """Hands out memory, in scopes. `most` is what all that is alive at one time takes at worst, in bytes a lane."""

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
