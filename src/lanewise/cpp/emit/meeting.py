"""What Python has to know of lanes that meet at products: `cpp/runtime/meeting.h` says how they do, and why."""

from __future__ import annotations

import platform
import sys

from lanewise.cpp.emit.rules import number

# The most lanes of a thread that run together.
MOST_LANES = number("LW_MOST_LANES")
# A matrix of fewer bytes stays near the core for one lane after the other; a lane with this many rows gains little.
LARGE_BYTES = number("LW_LARGE_BYTES")
MANY_ROWS = number("LW_MANY_ROWS")


def available() -> bool:
    """Whether lanes can have stacks of their own here."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
