"""Memory of a step kept for the next one.

Arenas, saved values and XLA's temporaries are tens of megabytes a step, allocated and freed again. The C library
gives such blocks back to the system at once, and takes fresh pages for the next ones: touching these for the first
time costs up to a quarter of a training step on a CPU. JAX can donate arguments, not temporaries, so the allocator is
told to keep freed memory instead (`mallopt`, glibc alone). That holds for the whole process, and what the process has
held at most it keeps. `LANEWISE_KEEP_PAGES=0` in the environment leaves the allocator as it is.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# Parameters of mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1


@functools.cache
def keep_pages() -> bool:
    """Let freed memory stay with the process; whether that could be asked for."""
    if os.environ.get("LANEWISE_KEEP_PAGES", "1") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MOST)) and bool(mallopt(_TRIM_THRESHOLD, _MOST))
