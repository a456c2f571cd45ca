"""Refill: eight times more examples than lanes, heavy tails, and how full the lanes were.

Three occupancies, which must not be taken for each other. What refill is for is that lanes have an example that
runs: *lanes* are those that have one over the lanes in use, summed over ticks (a machine that narrows when
examples run out counts its narrow width from then on), or over time for the carriers that run each lane
separately. Under `ticks` a lane with an example may wait for others: *work* is the share of the machine's work that
was for a lane, over all blocks by their operations. The line of a program also gives what lanes of a fixed
width would reach at best with these examples in this order: a long example that comes last leaves the other
lanes idle, whatever runs it.

Then the programs whose work is matrix products, a lane for each example, by `ticks`: how full their expensive blocks
run. These are nearly all of their work, so it is the occupancy by work that is claimed.

    python benchmarks/refill.py [--lanes 128] [--carriers ticks native] [--programs ...] [--plot]
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import _plot
from _harness import Claim, geometric_mean, medians, report, use_device, usual_arguments
from control import SUITE
from control.case import Entry
from control.measure import Disagree, check, lanes_for, ours
from lanewise.core import options as lanewise_options
from lanewise.core.errors import LanewiseError

EXAMPLES_PER_LANE = 8
# By device and whether lanes tick together; those that run separately are few, and a run must be long enough.
LANES = {
    ("cpu", True): 128,
    ("cpu", False): 2**11,
    ("gpu", True): 2**14,
    ("gpu", False): 2**14,
}
TARGET = ">= 0.9"

MATRIX_TARGET = ">= 0.8"
MATRIX_PROGRAMS = ("early_exit_mlp", "mixture_of_experts", "nuts_logistic_regression")

# Which of a program's answers counts its steps.
WORK: dict[str, Callable[[Any], Any]] = {
    "escape_time": lambda count: count,
    "collatz": lambda steps: steps,
    "rejection": lambda answer: answer[1],
    "random_walks": lambda answer: answer[2],
    "rk45_van_der_pol": lambda answer: answer[1],
    "hmc_random_lengths": lambda answer: answer[1],
    "early_exit_mlp": lambda answer: answer[1],
}


def fixed_width_bound(work: Sequence[int], lanes: int) -> float:
    """Of lanes that take the next example the moment they are free, to the end of the last one.

    >>> fixed_width_bound([4, 1, 1, 2], lanes=2)
    1.0
    >>> fixed_width_bound([1, 1, 4], lanes=2)
    0.6
    """
    free = [0] * lanes
    for steps in work:
        heapq.heapreplace(free, free[0] + int(steps))
    return sum(map(int, work)) / (lanes * max(free))


def measured(entry: Entry, carrier: str, lanes: int, repeats: int) -> tuple[float, float]:
    """Occupancy of the lanes, and by work, of one program; the medians where they are of time."""
    case = entry.make(EXAMPLES_PER_LANE * lanes, False)
    arguments = jax.device_put(case.arguments)
    twin = jax.jit(jax.vmap(case.twin, in_axes=case.in_axes))
    counted = ours(case, carrier=carrier, lanes=lanes, stats=True)
    answers, stats = counted(*arguments)
    check(entry, case, answers, twin(*arguments), carrier)
    contenders = {
        "refilled": ours(case, carrier=carrier, lanes=lanes),
        "at once": ours(case, carrier=carrier),
    }
    took = medians(contenders, arguments, repeats)
    again = [counted(*arguments)[1] for _ in range(repeats)]
    of_lanes = statistics.median(float(stats.lane_occupancy) for stats in again)
    of_work = float(stats.occupancy)
    work = np.asarray(WORK[entry.key](answers))
    ticked = (
        f" (fixed width: at best {fixed_width_bound(work.tolist(), lanes):.1%}), of work {of_work:.1%}"
        if carrier == "ticks"
        else ""
    )
    print(
        f"{carrier}, {entry.name:<22} {work.size} examples, {lanes} lanes: occupancy of lanes {of_lanes:.1%}{ticked};"
        f" {1e3 * took['refilled']:.2f} ms, {1e3 * took['at once']:.2f} ms with a lane for each example",
        flush=True,
    )
    return of_lanes, of_work


def expensive_claims(programs: Sequence[str]) -> list[Claim]:
    """How full the expensive blocks of matrix-heavy programs run, at the batch of the suite."""
    claims = []
    for entry in SUITE:
        if entry.key not in programs or entry.key not in MATRIX_PROGRAMS:
            continue
        lanes = lanes_for(entry)
        case = entry.make(lanes, False)
        counted = ours(case, carrier="ticks", schedule="sweep", stats=True)
        _, stats = counted(*jax.device_put(case.arguments))
        name = f"matrix-heavy, ticks, {jax.default_backend()}, {lanes} lanes: occupancy, work, {entry.name}"
        claims.append(Claim(name, float(stats.occupancy), 1.0, MATRIX_TARGET, share=True))
    return claims


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--lanes", type=int, help="default: by device and carrier")
    parser.add_argument("--carriers", nargs="*", help="default: those of this device")
    parser.add_argument("--programs", nargs="*", default=[*WORK, *MATRIX_PROGRAMS])
    options = parser.parse_args()
    use_device(options.device)
    carriers = options.carriers or [c for c in lanewise_options.CARRIERS if c != "auto"]

    claims: list[Claim] = []
    for carrier in carriers:
        lanes = options.lanes or LANES[jax.default_backend(), carrier == "ticks"]
        of_lanes: dict[str, float] = {}
        of_work: dict[str, float] = {}
        for entry in SUITE:
            if entry.key not in options.programs or entry.key not in WORK:
                continue
            try:
                reached = measured(entry, carrier, lanes, options.repeats)
            except (LanewiseError, Disagree) as refused:
                print(f"{carrier}, {entry.name}: left out, {refused}", flush=True)
                continue
            of_lanes[entry.name], of_work[entry.name] = reached
        found = {"lanes": of_lanes, "work": of_work if carrier == "ticks" else {}}
        for what, shares in found.items():
            # Not every carrier watches its lanes.
            shares = {name: share for name, share in shares.items() if not math.isnan(share)}
            if not shares:
                continue
            name = f"refill, {carrier}, {jax.default_backend()}, {lanes} lanes: occupancy, {what}"
            worst = min(shares, key=lambda program: shares[program])
            mean = geometric_mean(shares.values())
            claims.append(Claim(f"{name}, geometric mean", mean, 1.0, TARGET, share=True))
            claims.append(Claim(f"{name}, worst, {worst}", shares[worst], 1.0, TARGET, share=True))
            if options.plot and what == "lanes":
                _plot.figures(f"refill_{carrier}", name, shares, float(TARGET[2:]), "occupancy")
    if "ticks" in carriers:
        claims += expensive_claims(options.programs)
    report(claims)


if __name__ == "__main__":
    main()
