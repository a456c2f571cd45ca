"""What the benchmarks of served models share: the models' folder, one core on a CPU, arguments and the clock.

Imported before JAX, which makes threads for all cores that it finds.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

if hasattr(os, "sched_setaffinity") and "gpu" not in sys.argv:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax

from _harness import use_device, usual_arguments


class Setting(NamedTuple):
    """Where a benchmark runs, what it measures by, and the options of our side.

    On a CPU that is the time of the process, so that other work on the machine counts less.
    """

    device: str
    read: Callable[[], float]
    how: dict[str, Any]


def arguments(doc: str | None, *, repeats: int, layers: int, steps: int) -> ArgumentParser:
    parser = usual_arguments(doc, repeats)
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--steps", type=int, default=steps, help="of training")
    parser.add_argument("--carrier", default="auto")
    parser.add_argument("--schedule", default="auto")
    return parser


def setting(options: Namespace) -> Setting:
    use_device(options.device)
    device = jax.default_backend()
    read = time.perf_counter if device == "gpu" else time.process_time
    return Setting(device, read, {"carrier": options.carrier, "schedule": options.schedule})
