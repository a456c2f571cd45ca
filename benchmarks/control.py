"""The control-flow suite: every program against its `jax.vmap` twin and its limit by hand.

Ours, the twin and the limit run in turns in one process; compilation is shown apart. One line a program,
then the rows of the targets as claims: geometric means, and the worst program where each one counts.

    python benchmarks/control.py [--programs collatz gcd] [--tags scalar] [--lanes 1024] [--repeats 5]
                                 [--carrier auto] [--device cpu] [--plot]

The programs are in the package of the same name, which `import control` finds first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax

import _plot
from _harness import Claim, geometric_mean, report, use_device
from control import SUITE, Entry
from control.case import Tag
from control.measure import Disagree, Measured, lanes_for, measure
from lanewise.core.errors import LanewiseError


@dataclass(frozen=True)
class Row:
    """A row of the targets: which programs count, against whom, and what is asked of them."""

    name: str
    device: str
    peer: Literal["jax.vmap", "by hand"]
    tags: frozenset[Tag]  # all of these
    among: frozenset[str] = frozenset()  # and, where given, one of these tags or programs
    mean: str | None = None
    worst: str | None = None


ROWS = (
    Row("diverging", "cpu", "jax.vmap", frozenset({"diverges"}), mean=">= 8", worst=">= 1.2"),
    Row("steady", "cpu", "jax.vmap", frozenset({"steady"}), mean="<= 1.05", worst="<= 1.05"),
    Row("scalar", "cpu", "by hand", frozenset({"scalar"}), mean="<= 1.5", worst="<= 1.5"),
    Row(
        "small state",
        "gpu",
        "jax.vmap",
        frozenset({"diverges"}),
        among=frozenset({"scalar", "small"}),
        mean=">= 40",
    ),
    Row(
        "recursion and escape time",
        "gpu",
        "by hand",
        frozenset({"diverges"}),
        among=frozenset({"recursive", "escape_time"}),
        mean="<= 1.3",
        worst="<= 1.3",
    ),
    Row(
        "matrix-heavy",
        "gpu",
        "jax.vmap",
        frozenset({"diverges", "matrix"}),
        mean=">= 2",
        worst=">= 2",
    ),
)


def belongs(row: Row, measured: Measured) -> bool:
    entry = measured.entry
    one_of = not row.among or bool(row.among & (entry.tags | {entry.key}))
    counted = row.peer == "jax.vmap" or measured.by_hand is not None
    return row.tags <= entry.tags and one_of and counted


def peer_time(row: Row, measured: Measured) -> float:
    if row.peer == "jax.vmap":
        return measured.twin
    assert measured.by_hand is not None
    return measured.by_hand


def claims_of(row: Row, results: Sequence[Measured], label: str) -> list[Claim]:
    """The row's claims over the programs that were measured."""
    counted = [measured for measured in results if belongs(row, measured)]
    if not counted:
        return []
    name = f"control, {label}, {row.name}, {len(counted)} programs, against {row.peer}"
    claims = []
    if row.mean is not None:
        ours = geometric_mean(measured.ours for measured in counted)
        peer = geometric_mean(peer_time(row, measured) for measured in counted)
        claims.append(Claim(f"{name}: geometric mean", ours, peer, row.mean))
    if row.worst is not None:
        each = [Claim("", m.ours, peer_time(row, m), row.worst) for m in counted]
        pick = min if row.worst.startswith(">=") else max
        worst = pick(range(len(each)), key=lambda i: each[i].ratio)
        who = counted[worst].entry.name
        claims.append(Claim(f"{name}: worst, {who}", each[worst].ours, each[worst].peer, row.worst))
    return claims


def plot(row: Row, results: Sequence[Measured], label: str) -> None:
    """One bar a program, on the scale its target is on."""
    target = row.mean or row.worst
    assert target is not None
    counted = [measured for measured in results if belongs(row, measured)]
    ratios = {m.entry.name: Claim("", m.ours, peer_time(row, m), target).ratio for m in counted}
    name = f"control {row.device} {row.name}".replace(" ", "_").replace("-", "_")
    peer = row.peer if target.startswith(">=") else "ours"
    axis = f"time of {row.peer} ÷ ours" if peer == row.peer else f"time of ours ÷ {row.peer}"
    _plot.bars(name, f"{row.name}, {label}", ratios, float(target[2:]), axis)


def chosen(programs: Sequence[str], tags: Sequence[str]) -> list[Entry]:
    """The programs asked for, all of the suite if none is named."""
    unknown = set(programs) - {entry.key for entry in SUITE}
    if unknown:
        known = " ".join(entry.key for entry in SUITE)
        raise SystemExit(f"--programs: no {', '.join(sorted(unknown))} here; there are: {known}")
    return [
        entry
        for entry in SUITE
        if (not programs or entry.key in programs) and set(tags) <= entry.tags
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--programs", nargs="*", default=[], help="names as collatz or rejection")
    parser.add_argument(
        "--tags", nargs="*", default=[], help="only programs that have all of these"
    )
    parser.add_argument("--lanes", type=int, help="1,024 on a CPU; 2^12 to 2^20 on a GPU by state")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--carrier", default="auto")
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--device", choices=("cpu", "gpu"))
    parser.add_argument("--plot", action="store_true", help="write PNGs under docs/plots/")
    options = parser.parse_args()
    use_device(options.device)

    results: list[Measured] = []
    for entry in chosen(options.programs, options.tags):
        lanes = options.lanes or lanes_for(entry)
        try:
            measured = measure(
                entry,
                lanes,
                options.repeats,
                carrier=options.carrier,
                schedule=options.schedule,
            )
        except ImportError as missing:
            print(f"{entry.name}: left out, {missing.name} is not installed", flush=True)
        except (LanewiseError, Disagree) as refused:
            print(f"{entry.name}: left out, {refused}", flush=True)
        else:
            print(measured.line(), flush=True)
            results.append(measured)

    device = "cpu" if jax.default_backend() == "cpu" else "gpu"
    lanes = (
        f"{options.lanes} lanes" if options.lanes else "1024 lanes" if device == "cpu" else "full"
    )
    label = f"{device}, {lanes}, carrier {options.carrier}"
    claims: list[Claim] = []
    for row in ROWS:
        if row.device == device and any(belongs(row, measured) for measured in results):
            claims += claims_of(row, results, label)
            if options.plot:
                plot(row, results, label)
    report(claims)


if __name__ == "__main__":
    main()
