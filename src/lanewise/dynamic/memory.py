"""Memory of a step kept for the next one.

Arenas, saved values and XLA's temporaries are tens to hundreds of megabytes a step, allocated and freed again. The C
library gives such blocks back to the system at once, and takes fresh pages for the next ones: touching these for the
first time costs up to a quarter of a training step on a CPU. JAX can donate arguments, not temporaries, so the
allocator is asked to keep freed memory (`mallopt`, glibc alone): to give none back, and to have one heap for all
threads, as those of other threads than the main one hold no large blocks.

That holds for the whole process, so it is for a program to ask, not for a library: the most memory that the process
held it keeps, and threads that allocate much wait for one another.
"""

from __future__ import annotations

import ctypes
import functools
import sys

# Parameters of mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
# The threshold at which no memory is given back, however much is free. (A number is an `int`, and tapes are larger.)
_NEVER = -1


@functools.cache
def keep_pages() -> bool:
    """Let freed memory stay with the process; gives whether the allocator takes that.

    Call it once, when a training script starts, before JAX has run anything: XLA's threads keep the heaps they have.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    asked = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))
    done = [bool(mallopt(name, value)) for name, value in asked]
    return all(done)
