"""Where the parts of an example run: processes of `lanewise launch`, or devices of this process.

Each example runs in both ways, unchanged:

    python examples/placed/lstm.py                          # four virtual devices of one CPU, a thread each
    lanewise launch -n 2 examples/placed/lstm.py            # two processes
"""

from __future__ import annotations

import os
from typing import Any

# JAX makes several devices of one CPU if the flag is set before it starts.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=4"

import jax  # noqa: E402
import numpy as np  # noqa: E402


def places(count: int) -> list[Any]:
    """Places for `count` parts: ranks of processes if there are several, else devices. Parts share them if need be."""
    processes = int(os.environ.get("LANEWISE_SIZE", 0))
    found = range(processes) if processes else jax.devices()
    return [found[i % len(found)] for i in range(count)]


def show(*words: object) -> None:
    """Print, once for all processes."""
    if os.environ.get("LANEWISE_RANK", "0") == "0":
        print(*words, flush=True)


def same(placed: Any, plain: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Check that a placed run found what the run in one piece found."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), placed, plain)
