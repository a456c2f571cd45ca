"""The tool itself: reads GradBench's messages from standard input and answers on standard output.

    python benchmarks/gradbench/run.py [--multithreaded]

Without `--multithreaded` it keeps to one core, as GradBench's other tools do.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# As a script, its own folder is on the path; the package, and the AD benchmarks it shares code with, are above it.
sys.path[0] = str(Path(__file__).resolve().parent.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--multithreaded", action="store_true", help="use all cores")
    options = parser.parse_args()
    if not options.multithreaded and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    # After the cores are chosen: JAX counts them when it starts.
    from gradbench.protocol import answers

    for line in answers(sys.stdin):
        print(line, flush=True)


if __name__ == "__main__":
    main()
