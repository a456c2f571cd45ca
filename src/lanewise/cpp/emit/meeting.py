"""Lanes of one thread that meet at products with a matrix they share.

A lane by itself reads a whole matrix for each of its rows, and a core waits for memory. Rows of several lanes share
what is read: products of 16 rows by 128 x 512 weights take a third of the time for each row. So a thread has
several lanes under way. Each has a stack of its own and runs by itself, as ever, up to a product of few rows with a
large matrix that all lanes share, and waits there. When all wait, one matrix has its turn, for all lanes that wait for
it. Nothing else in a kernel knows of that: blocks, recursion and refill are those of a lane by itself. An answer has
the same bits, for a row's product does not depend on the rows beside it (`rules/rows.py`).

Whose turn it is: the matrix for which lanes have waited most, summed over lanes and turns. Lanes that go through the
same products in a loop gather in one turn round it; one that waits elsewhere, alone, has its turn too.

How they do is in `cpp/runtime/meeting.h`. Switching stacks takes a few instructions that C++ has no word for: they are
written for x86-64, and lanes run one after the other elsewhere. What was considered: `swapcontext` calls the system for
each switch; with coroutines of C++20, all functions up to the product would have to be some; a state machine as in
`between.py` keeps every variable in memory.
"""

from __future__ import annotations

import platform
import sys

from lanewise.cpp.emit.runtime import number

# The most lanes of a thread that run together.
MOST_LANES = number("LW_MOST_LANES")
# A matrix of fewer bytes stays near the core for one lane after the other.
LARGE_BYTES = number("LW_LARGE_BYTES")


def available() -> bool:
    """Whether lanes can have stacks of their own here."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
