"""Refill: eight times more examples than lanes, heavy tails, and how full the lanes were.

Two occupancies, which must not be taken for each other. The claim is that of the machine's own statistics:
active lanes over the lanes *in use*, where a machine that narrows when examples run out counts its narrow
width from then on. The line of a program also gives active lanes over the lanes *asked for*, and what a
machine of that fixed width would reach at best with these examples in this order: a long example that comes
last leaves the other lanes idle, whoever runs it. Narrowing can beat the latter in the former only.

    python benchmarks/refill.py [--lanes 128] [--carriers ticks native] [--programs ...] [--plot]
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import _plot
from _harness import Claim, geometric_mean, medians, report, use_device
from control import SUITE
from control.measure import Disagree, check, ours
from lanewise import options as lanewise_options
from lanewise.errors import LanewiseError

EXAMPLES_PER_LANE = 8
TARGET = ">= 0.9"

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, help="128 on a CPU, 16,384 on a GPU")
    parser.add_argument("--carriers", nargs="*", help="those of this device unless told")
    parser.add_argument("--programs", nargs="*", default=list(WORK))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "gpu"))
    parser.add_argument("--plot", action="store_true", help="write PNGs under docs/plots/")
    options = parser.parse_args()
    use_device(options.device)
    lanes = options.lanes or (128 if jax.default_backend() == "cpu" else 2**14)
    carriers = options.carriers or [c for c in lanewise_options.CARRIERS if c != "auto"]

    claims: list[Claim] = []
    for carrier in carriers:
        reached: dict[str, float] = {}
        for entry in SUITE:
            if entry.key not in options.programs:
                continue
            case = entry.make(EXAMPLES_PER_LANE * lanes, False)
            arguments = jax.device_put(case.arguments)
            twin = jax.jit(jax.vmap(case.twin, in_axes=case.in_axes))
            try:
                refilled = ours(case, carrier=carrier, lanes=lanes, stats=True)
                at_once = ours(case, carrier=carrier)
                answers, stats = refilled(*arguments)
                check(entry, case, answers, twin(*arguments), carrier)
                took = medians(
                    {"refilled": refilled, "at once": at_once}, arguments, options.repeats
                )
            except (LanewiseError, Disagree) as refused:
                print(f"{carrier}, {entry.name}: left out, {refused}", flush=True)
                continue
            if carrier != "ticks":
                # Lanes run by themselves: nothing is offered to a lane that it does not run, so there is no share to
                # claim, only the time.
                print(
                    f"{carrier}, {entry.name:<22} {EXAMPLES_PER_LANE * lanes} examples, {lanes} lanes:"
                    f" {1e3 * took['refilled']:.2f} ms,"
                    f" {1e3 * took['at once']:.2f} ms with a lane for each example",
                    flush=True,
                )
                continue
            work = np.asarray(WORK[entry.key](answers))
            reached[entry.name] = float(stats.occupancy)
            of_asked = float(stats.advanced) / (float(stats.runs) * lanes)
            print(
                f"{carrier}, {entry.name:<22} {work.size} examples, {lanes} lanes:"
                f" occupancy {reached[entry.name]:.1%} of the lanes in use, {of_asked:.1%} of those asked"
                f" for (fixed width: at best {fixed_width_bound(work.tolist(), lanes):.1%});"
                f" {1e3 * took['refilled']:.2f} ms,"
                f" {1e3 * took['at once']:.2f} ms with a lane for each example",
                flush=True,
            )
        if reached:
            name = f"refill, {carrier}, {jax.default_backend()}, {lanes} lanes: occupancy of lanes in use"
            worst = min(reached, key=lambda program: reached[program])
            mean = geometric_mean(reached.values())
            claims.append(Claim(f"{name}, geometric mean", mean, 1.0, TARGET, share=True))
            claims.append(Claim(f"{name}, worst, {worst}", reached[worst], 1.0, TARGET, share=True))
            if options.plot:
                _plot.figures(f"refill_{carrier}", name, reached, float(TARGET[2:]), "occupancy")
    report(claims)


if __name__ == "__main__":
    main()
