"""What Lanewise costs where there is nothing to do: importing it, and calling a compiled program.

The import is timed in fresh processes, after jax is there. The call is a program of a few lanes and no
work, under `jax.jit`, against `jax.jit(jax.vmap)` of its twin, and once more without `jit` around it. By `ticks` it is
plain code; a row of its own has it as a machine, which has a host outside `jit`.
Ratios are in units: seconds for the import, microseconds for a call.

A call takes the least of many short runs, taken in turns, and not their median: a call of a few microseconds
is either run at once or handed to a sleeping core, which costs some 30 µs more, for `jax.jit` as for ours,
and on a machine that others use the medians show how often that happened and nothing else.

    python benchmarks/overhead.py [--carriers ticks native] [--repeats 7] [--plot]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import _plot
import lanewise as lw
from _harness import Claim, report, use_device, usual_arguments
from control.iteration import collatz, collatz_lax
from lanewise.core import options as lanewise_options
from lanewise.core.errors import LanewiseError

CALLS = 50
TURNS = 60
LANES = 8

IMPORT = """
import time, jax
start = time.perf_counter()
import lanewise
print(time.perf_counter() - start)
"""


def import_seconds() -> float:
    """Importing Lanewise in a fresh process that has imported jax."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def call_microseconds(fun: Callable[..., Any], argument: Any) -> float:
    """One call, on average over many."""
    start = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(fun(argument))
    return 1e6 * (time.perf_counter() - start) / CALLS


def main() -> None:
    parser = usual_arguments(__doc__, repeats=7)
    parser.add_argument("--carriers", nargs="*", help="all, if none is named")
    options = parser.parse_args()
    use_device(options.device)

    import_seconds()  # the first one reads files that the others find in memory
    took = statistics.median(import_seconds() for _ in range(options.repeats))
    print(f"importing lanewise after jax: {took:.3f} s", flush=True)
    claims = [Claim("overhead: import over jax, seconds", took, 1.0, "<= 0.3")]

    argument = jax.device_put(np.arange(1, LANES + 1, dtype=np.int32))
    extra: dict[str, float] = {}
    ways: list[tuple[str, dict[str, str]]] = []
    for carrier in options.carriers or lanewise_options.CARRIERS:
        ways.append((carrier, {"carrier": carrier}))
        if carrier == "ticks":
            ways.append(("ticks as a machine", {"carrier": carrier, "schedule": "sweep"}))
    for carrier, how in ways:
        try:
            program = lw.vmap(collatz, **how)
            contenders = {
                "jax": jax.jit(jax.vmap(collatz_lax)),
                "inside jit": jax.jit(program),
                "outside jit": program,
            }
            for fun in contenders.values():
                call_microseconds(fun, argument)
        except LanewiseError as refused:
            print(f"{carrier}: left out, {refused}", flush=True)
            continue
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(TURNS):
            for name, fun in contenders.items():
                times[name].append(call_microseconds(fun, argument))
        least = {name: min(values) for name, values in times.items()}
        for where in ("inside jit", "outside jit"):
            more = least[where] - least["jax"]
            print(
                f"{carrier}, {where}: {least[where]:.1f} µs a call, jax.jit {least['jax']:.1f} µs",
                flush=True,
            )
            extra[f"{carrier}, {where}"] = more
            name = f"overhead: call, {carrier}, {where}, microseconds over jax.jit"
            claims.append(Claim(name, more, 1.0, "<= 30"))
    if options.plot:
        _plot.figures("overhead_call", "a call over jax.jit", extra, 30.0, "microseconds")
    report(claims)


if __name__ == "__main__":
    main()
