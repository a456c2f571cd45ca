"""How cost grows: with the number of examples, and with the recursion depth that is allowed.

Doubling the examples must at most double the time, at every doubling. Doubling the frames a lane may have
pending must not change the time of lanes that stay shallow by more than a tenth: room for a stack is not
work.

    python benchmarks/growth.py [--most 65536] [--carrier auto] [--repeats 5] [--plot]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import _plot
import lanewise as lw
from _harness import Claim, medians, report, use_device, usual_arguments
from control import SUITE
from control.measure import ours
from control.recursion import fibonacci
from lanewise.core.errors import LanewiseError

PROGRAMS = ("collatz", "rejection", "recursive_fibonacci", "early_exit_mlp")
LEAST = 2**10
SHALLOW_LANES = 1024
DEPTHS = (32, 64, 128, 256, 512)


def in_turns(contenders: dict[int, Callable[[], Any]], repeats: int) -> dict[int, float]:
    """Medians by size. All sizes run in turns: load by others on the machine must not count as growth."""
    named = {str(size): run for size, run in contenders.items()}
    return {int(size): took for size, took in medians(named, (), repeats).items()}


def growth_of_examples(key: str, most: int, carrier: str, repeats: int) -> dict[int, float]:
    """The time for each number of examples: the same ones again and again, so that only the number grows."""
    entry = next(entry for entry in SUITE if entry.key == key)
    case = entry.make(LEAST, False)
    fun = ours(case, carrier=carrier)

    def run_of(examples: int) -> Callable[[], Any]:
        again = np.arange(examples) % LEAST
        arguments = jax.device_put(
            tuple(
                argument if axis is None else argument[again]
                for argument, axis in zip(case.arguments, case.in_axes, strict=True)
            )
        )
        return lambda: fun(*arguments)

    sizes = [LEAST << i for i in range((most // LEAST).bit_length())]
    took = in_turns({size: run_of(size) for size in sizes}, repeats)
    for size, time in took.items():
        print(f"{entry.name:<22} {size:>8} examples {1e3 * time:10.2f} ms", flush=True)
    return took


def growth_of_depth(carrier: str, repeats: int) -> dict[int, float]:
    """The time of lanes at most seven frames deep, for each depth allowed, in turns."""
    n = np.random.default_rng(0).integers(0, 8, SHALLOW_LANES).astype(np.int32)
    arguments = jax.device_put((n,))

    def run_of(depth: int) -> Callable[[], Any]:
        fun = jax.jit(lw.vmap(fibonacci, max_depth=depth, carrier=carrier))
        return lambda: fun(*arguments)

    took = in_turns({depth: run_of(depth) for depth in DEPTHS}, repeats)
    for depth, time in took.items():
        print(f"shallow recursion      {depth:>8} frames   {1e3 * time:10.2f} ms", flush=True)
    return took


def worst_step(took: dict[int, float]) -> tuple[int, int]:
    """The doubling that cost most."""
    sizes = sorted(took)
    return max(itertools.pairwise(sizes), key=lambda step: took[step[1]] / took[step[0]])


def main() -> None:
    parser = usual_arguments(__doc__)
    parser.add_argument("--most", type=int, help="2^16 examples on a CPU, 2^20 on a GPU")
    parser.add_argument("--carrier", default="auto")
    options = parser.parse_args()
    use_device(options.device)
    backend = jax.default_backend()
    most = options.most or (2**16 if backend == "cpu" else 2**20)

    claims: list[Claim] = []
    curves: dict[str, dict[int, float]] = {}
    for key in PROGRAMS:
        # A GPU holds the matrices of this many lanes, but they take too long.
        bound = most if key != "early_exit_mlp" else min(most, 2**14)
        try:
            curves[key] = growth_of_examples(key, bound, options.carrier, options.repeats)
        except LanewiseError as refused:
            print(f"{key}: left out, {refused}", flush=True)
            continue
        if len(curves[key]) > 1:
            few, many = worst_step(curves[key])
            name = f"growth, {backend}, {options.carrier}: {key}, {few} to {many} examples"
            claims.append(Claim(name, curves[key][many], curves[key][few], "<= 2"))
    try:
        depths = growth_of_depth(options.carrier, options.repeats)
    except LanewiseError as refused:
        print(f"recursion: left out, {refused}", flush=True)
    else:
        few, many = worst_step(depths)
        name = (
            f"growth, {backend}, {options.carrier}: shallow lanes, {few} to {many} frames allowed"
        )
        claims.append(Claim(name, depths[many], depths[few], "<= 1.1"))
        curves_of_depth = {"shallow lanes": (list(depths), list(depths.values()))}
        if options.plot:
            title = f"depth allowed, {options.carrier}"
            _plot.lines(f"growth_depth_{backend}", title, curves_of_depth, "frames allowed")
    if options.plot and curves:
        points = {key: (list(took), list(took.values())) for key, took in curves.items()}
        title = f"examples, {options.carrier}"
        _plot.lines(f"growth_examples_{backend}", title, points, "examples")
    report(claims)


if __name__ == "__main__":
    main()
