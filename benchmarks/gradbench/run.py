"""The tool itself: reads GradBench's messages from standard input and answers on standard output.

    python benchmarks/gradbench/run.py [--multithreaded]
    python benchmarks/gradbench/run.py --checkout DIR [--evals llsq det] [--beside jax manual] [--min-seconds 1.0]

Without `--multithreaded` it keeps to one core, as GradBench's other tools do. With a checkout of GradBench it runs
GradBench's own evaluations at their default sizes on itself, and on those of its tools that are named: a line for each
function and size, with GradBench's verdict on our answer, then the claims. What follows `--` goes to the evaluation,
as `--evals ht -- --max 11`.
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
    parser.add_argument("--checkout", type=Path, help="a checkout of GradBench, to run all of it")
    parser.add_argument("--evals", nargs="+", default=[], help="some of its evaluations")
    parser.add_argument("--beside", nargs="+", default=[], help="its tools to run too: jax, manual")
    parser.add_argument("--min-seconds", type=float, default=1.0, help="for each function")
    parser.add_argument("further", nargs="*", help="after --: options of the evaluation")
    options = parser.parse_args()
    if options.checkout is not None:
        evaluate(options)
        return
    if not options.multithreaded and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    # After the cores are chosen: JAX counts them when it starts.
    from gradbench.protocol import answers

    for line in answers(sys.stdin):
        print(line, flush=True)


def evaluate(options: argparse.Namespace) -> None:
    """GradBench's evaluations, from a checkout."""
    from _harness import report
    from gradbench.evaluations import PEERS, compare
    from gradbench.protocol import MODULES

    for given, known in ((options.evals, MODULES), (options.beside, PEERS)):
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise SystemExit(f"no {', '.join(unknown)} here; there are: {' '.join(known)}")
    checkout = options.checkout.resolve()
    if not (checkout / "evals").is_dir():
        raise SystemExit(f"--checkout: {checkout} is not a checkout of GradBench")
    claims = []
    for name in options.evals or MODULES:
        further = list(options.further)
        if name != "hello":  # which takes none
            # The first run of GradBench's JAX compiles: a median of several leaves it out.
            further += ["--min-runs", "5", "--min-seconds", str(options.min_seconds)]
        claims += compare(name, checkout, options.beside, further, options.multithreaded)
    report(claims)


if __name__ == "__main__":
    main()
