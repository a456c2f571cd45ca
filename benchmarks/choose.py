"""The regret of `auto`: the time of what it picks, over the time of the best there is.

Every program of the suite runs with every carrier, and `ticks` with every schedule that may stand inside
`jit`. An option far behind after one run is not timed further: it cannot be the best. What a carrier or a
schedule refuses is left out.

    python benchmarks/choose.py [--lanes 1024] [--programs ...] [--repeats 5] [--outside-jit] [--plot]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax

import _plot
import lanewise as lw
from _harness import Claim, geometric_mean, medians, report, run_seconds, use_device
from control import SUITE
from control.case import Case, Entry
from control.measure import lanes_for
from lanewise.core.errors import LanewiseError
from lanewise.core.options import CARRIERS, SCHEDULES

FAR_BEHIND = 2.0
AUTO = "auto"


def alternatives() -> Iterator[dict[str, str]]:
    """All options but `auto` itself; a schedule means something to `ticks` only."""
    for carrier in CARRIERS:
        if carrier == "ticks":
            schedules = [s for s in SCHEDULES if s not in ("auto", "local")]
            yield from ({"carrier": carrier, "schedule": schedule} for schedule in schedules)
        elif carrier != AUTO:
            yield {"carrier": carrier}


def contenders_of(
    entry: Entry, case: Case, arguments: Any, outside_jit: bool
) -> dict[str, Callable[..., Any]]:
    """What runs at all, compiled; without what one run shows to be far behind."""

    def batched(**options: str) -> Callable[..., Any]:
        fun = lw.vmap(case.ours, in_axes=case.in_axes, **case.options, **options)
        return fun if outside_jit else jax.jit(fun)

    contenders = {AUTO: batched()}
    run_seconds(contenders[AUTO], arguments)
    once = {AUTO: run_seconds(contenders[AUTO], arguments)}
    for options in alternatives():
        name = " ".join(options.values())
        try:
            fun = batched(**options)
            run_seconds(fun, arguments)
            once[name] = run_seconds(fun, arguments)
            contenders[name] = fun
        except LanewiseError as refused:
            print(f"{entry.name}, {name}: left out, {str(refused).splitlines()[0]}", flush=True)
    best = min(once.values())
    return {
        name: fun
        for name, fun in contenders.items()
        if name == AUTO or once[name] <= FAR_BEHIND * best
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, help="default: as in control.py")
    parser.add_argument("--programs", nargs="*", default=[entry.key for entry in SUITE])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--outside-jit", action="store_true", help="auto may look at the lanes")
    parser.add_argument("--device", choices=("cpu", "gpu"))
    parser.add_argument("--plot", action="store_true", help="write PNGs under docs/plots/")
    options = parser.parse_args()
    use_device(options.device)

    regrets: dict[str, tuple[float, float]] = {}
    for entry in SUITE:
        if entry.key not in options.programs:
            continue
        try:
            case = entry.make(options.lanes or lanes_for(entry), False)
            arguments = jax.device_put(case.arguments)
            contenders = contenders_of(entry, case, arguments, options.outside_jit)
        except ImportError as missing:
            print(f"{entry.name}: left out, {missing.name} is not installed", flush=True)
            continue
        except LanewiseError as refused:
            print(f"{entry.name}: left out, {refused}", flush=True)
            continue
        took = medians(contenders, arguments, options.repeats)
        best = min(took, key=lambda name: took[name])
        regrets[entry.name] = took[AUTO], took[best]
        print(
            f"{entry.name:<26} auto {1e3 * took[AUTO]:9.2f} ms, best {1e3 * took[best]:9.2f} ms"
            f" ({best}): {took[AUTO] / took[best]:.2f}",
            flush=True,
        )
    if not regrets:
        return
    name = f"choose, {jax.default_backend()}, {len(regrets)} programs: auto over the best option"
    picks = geometric_mean(pick for pick, _ in regrets.values())
    bests = geometric_mean(best for _, best in regrets.values())
    worst = max(regrets, key=lambda program: regrets[program][0] / regrets[program][1])
    if options.plot:
        ratios = {program: pick / best for program, (pick, best) in regrets.items()}
        _plot.bars("choose", "regret of auto", ratios, 1.15, "time of auto ÷ time of the best")
    report(
        [
            Claim(f"{name}, geometric mean", picks, bests, "<= 1.15"),
            Claim(f"{name}, worst, {worst}", *regrets[worst], "<= 1.6"),
        ]
    )


if __name__ == "__main__":
    main()
