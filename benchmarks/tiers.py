"""What the quick tier of `native` costs and gives: the compiler's seconds and the run's, against the optimized tier.

Large kernels begin on the quick tier while the optimized library is compiled beside the run. Here each is compiled both
ways, in a process of its own with an empty folder for the compilers' caches. All is CPU time: of the C++ compiler, and
of the process for a run, the median of several.

    python benchmarks/tiers.py [--lanes 256] [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import jax

import lanewise as lw
from _harness import Claim, report
from control import SUITE
from lanewise.cpp.toolchain import host

SUBJECTS = ("nuts_funnel", "nuts_logistic_regression")
TIERS = ("quick", "optimized")
RUNS = 15
COMPILES, RUNS_WITHIN = "<= 0.7", "<= 1.25"


def compiler_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(name: str, tier: str, lanes: int) -> tuple[float, float]:
    """How long the C++ compiler takes for one program in this process, and its run."""
    host.LARGE = 0 if tier == "quick" else sys.maxsize
    # What would take over never gets its turn.
    for _ in range(host.MOST_BESIDE if tier == "quick" else 0):
        host._turns.acquire()
    # The probes of the compiler do not count.
    jax.block_until_ready(lw.vmap(lambda x: x * 2.0, carrier="native")(jax.numpy.ones(4)))
    (entry,) = (entry for entry in SUITE if entry.key == name)
    case = entry.make(lanes, False)
    arguments = jax.device_put(case.arguments)
    run = jax.jit(lw.vmap(case.ours, in_axes=case.in_axes, carrier="native", **case.options))
    before = compiler_seconds()
    jax.block_until_ready(run(*arguments))
    took = compiler_seconds() - before
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        jax.block_until_ready(run(*arguments))
        times.append(time.process_time() - start)
    return took, statistics.median(times)


def measured_apart(name: str, tier: str, lanes: int) -> tuple[float, float]:
    """The same in a fresh process."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", name, tier, "--lanes", str(lanes)],
            env={**os.environ, "XDG_CACHE_HOME": empty},
            capture_output=True,
            text=True,
            check=True,
        )
    took, ran = done.stdout.split()[-2:]
    return float(took), float(ran)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("SUBJECT", "TIER"))
    options = parser.parse_args()
    if options.measure:
        print(*measure(*options.measure, options.lanes))
        return
    claims: list[Claim] = []
    for name in SUBJECTS:
        found: dict[str, list[tuple[float, float]]] = {tier: [] for tier in TIERS}
        for _ in range(options.repeats):
            for tier in TIERS:
                found[tier].append(measured_apart(name, tier, options.lanes))
        (took, ran), (best_took, best_ran) = (
            tuple(statistics.median(column) for column in zip(*found[tier], strict=True))
            for tier in TIERS
        )
        compiles = Claim(f"quick tier: C++ compiler, {name}", took, best_took, COMPILES)
        runs = Claim(f"quick tier: run, {name}", ran, best_ran, RUNS_WITHIN)
        for claim, unit in ((compiles, "s"), (runs, "ms")):
            scale = 1.0 if unit == "s" else 1e3
            verdict = "met" if claim.met else "missed"
            print(
                f"{claim.claim}: {scale * claim.ours:.2f} {unit}, optimized {scale * claim.peer:.2f} {unit},"
                f" {claim.ratio:.2f}x, target {claim.target}: {verdict}",
                flush=True,
            )
        claims += [compiles, runs]
    report(claims)


if __name__ == "__main__":
    main()
